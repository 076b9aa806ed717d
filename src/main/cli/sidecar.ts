// The command `kvpeer sidecar`: the routing sidecar in front of a model server.

import { readFile } from 'node:fs/promises';
import { Command, Option } from 'commander';
import type { Logger } from 'pino';
import { parse as parseYaml } from 'yaml';
import { KvpeerError } from '../errors.js';
import { createLogger } from '../observe/log.js';
import { SIDECAR_OPTION_GROUPS } from '../sidecar/options-table.js';
import {
  resolveSidecarOptions,
  SIDECAR_OPTION_NAMES,
  sidecarFlagOf,
  sidecarSpecOf,
  type ResolvedSidecarOptions,
  type SidecarOptionName,
} from '../sidecar/options.js';
import { createSidecar } from '../sidecar/sidecar.js';
import { EndSignals } from './end-signals.js';
import { EXIT_CODES_HELP, EXIT_OK, exitCodeOf } from './exit-codes.js';

/** Time for what is left when the command is done. */
const LEAVE_MS = 1_000;

const EXAMPLES = `A flag wins over its environment variable, that over the configuration.

Examples:
  kvpeer sidecar --port 8000 --model-server-port 8200 --p2p-connector-port 7777 --secure-serving=false
  kvpeer sidecar --ssrf-allow 10.0.0.7:8000 --ssrf-allow 10.0.0.8:8000 --cert-path /etc/tls
  kvpeer sidecar --enable-ssrf-protection --inference-pool default/pool --configuration-file sidecar.yaml`;

type SidecarFlags = Readonly<Record<string, string | boolean | string[] | undefined>> & {
  readonly configuration?: string;
  readonly configurationFile?: string;
  readonly vllmPort?: string;
};

export function sidecarCommand(): Command {
  const command = new Command('sidecar')
    .summary("run the routing sidecar in front of a model server, in place of llm-d's")
    .description(
      "Turns the headers of llm-d's router into kv_transfer_params for each leg of a request, in front of vLLM with the\n" +
        'P2P tier. Prints one JSON line per event. SIGTERM and SIGINT let running answers end.',
    );
  for (const group of SIDECAR_OPTION_GROUPS) {
    for (const name of SIDECAR_OPTION_NAMES) {
      if (sidecarSpecOf(name).group === group) command.addOption(flagFor(name));
    }
  }
  command
    .addOption(new Option('--vllm-port <port>', 'older name of --model-server-port').hideHelp())
    .addOption(new Option('--configuration <yaml>', 'options as a YAML map').helpGroup('Operation:'))
    .addOption(new Option('--configuration-file <file>', 'YAML file of options').helpGroup('Operation:'))
    .addHelpText('after', `\n${EXIT_CODES_HELP}\n\n${EXAMPLES}`)
    .action(async (flags: SidecarFlags) => {
      process.exitCode = await run(flags);
      setTimeout(() => process.exit(), LEAVE_MS).unref();
    });
  return command;
}

function flagFor(name: SidecarOptionName): Option {
  const { help, placeholder, group, defaultValue, variable, isRepeatable } = sidecarSpecOf(name);
  const flag = sidecarFlagOf(name);
  const value = placeholder === undefined ? '[true|false]' : `<${placeholder.toLowerCase()}>`;
  const notes = [variable, defaultTextOf(defaultValue)].filter((note) => note !== undefined);
  const option = new Option(`${flag} ${value}`, notes.length === 0 ? help : `${help} (${notes.join('; ')})`);
  if (isRepeatable)
    option.argParser((text: string, before: string[] | undefined) => [...(before ?? []), text]);
  return option.helpGroup(`${group}:`);
}

function defaultTextOf(value: unknown): string | undefined {
  const isEmpty = value === undefined || value === '' || (Array.isArray(value) && value.length === 0);
  return isEmpty ? undefined : `default: ${typeof value === 'string' ? value : JSON.stringify(value)}`;
}

async function run(flags: SidecarFlags): Promise<number> {
  const options = await readOptions(flags);
  const logger = createLogger(options.logLevel);
  const signals = new EndSignals(logger);
  try {
    const sidecar = await createSidecar(optionsForProgram(options), { logger });
    logReady(sidecar.addresses, sidecar.metricsAddress, options, logger);
    await signals.first;
    await sidecar.close();
    logger.info('closed');
    return EXIT_OK;
  } catch (err) {
    logger.fatal({ err }, err instanceof Error ? err.message : 'failed');
    return exitCodeOf(err);
  } finally {
    signals.close();
  }
}

/** The older spelling was merged into the newer one; given again they would be checked again. */
function optionsForProgram(options: ResolvedSidecarOptions): Partial<ResolvedSidecarOptions> {
  const { secureServing, ...rest } = options;
  return { ...rest, secureProxy: secureServing };
}

async function readOptions(flags: SidecarFlags): Promise<ResolvedSidecarOptions> {
  const { configuration, configurationFile, vllmPort, ...others } = flags;
  if (configuration !== undefined && configurationFile !== undefined) {
    const message = '--configuration and --configuration-file exclude each other; give one of them';
    throw new KvpeerError('KVPEER_INVALID_OPTION', message);
  }
  const yamlFile = configurationFile ?? '--configuration';
  const yaml =
    configurationFile === undefined
      ? parsed(configuration ?? '', yamlFile)
      : parsed(await contentOf(configurationFile), yamlFile);
  const modelServerPort = others.modelServerPort ?? vllmPort;
  return resolveSidecarOptions({ flags: { ...others, modelServerPort }, env: process.env, yaml, yamlFile });
}

async function contentOf(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    throw unreadable(file, error);
  }
}

function parsed(text: string, from: string): unknown {
  try {
    return parseYaml(text);
  } catch (error) {
    throw unreadable(from, error);
  }
}

function unreadable(from: string, error: unknown): KvpeerError {
  const reason = error instanceof Error ? error.message : String(error);
  const message = `${from} cannot be read as YAML: ${reason}; correct it, or leave it out`;
  return new KvpeerError('KVPEER_INVALID_OPTION', message, { cause: error });
}

function logReady(
  addresses: readonly string[],
  metrics: string | undefined,
  options: ResolvedSidecarOptions,
  logger: Logger,
): void {
  const { profile, modelServerPort, p2pConnectorPort, secureServing } = options;
  logger.info({ addresses, metrics, profile, modelServerPort, p2pConnectorPort, secureServing }, 'ready');
}
