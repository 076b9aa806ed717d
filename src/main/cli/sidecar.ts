// The command `kvpeer sidecar`: the routing sidecar in front of a model server.

import { isIP } from 'node:net';
import { Command, Option } from 'commander';
import type { Logger } from 'pino';
import { parse as parseYaml } from 'yaml';
import { KvpeerError } from '../errors.js';
import { createLogger } from '../observe/log.js';
import {
  defaultTextOf as peerDefaultTextOf,
  flagOf,
  OPTION_GROUPS,
  OPTION_NAMES,
  OPTION_TABLE,
  resolveOptions,
  type OptionName,
  type Resolution,
} from '../options.js';
import { readConfigText } from '../options/config-file.js';
import type { PeerApi, PeerStarter } from '../peer-api.js';
import { SIDECAR_OPTION_GROUPS } from '../sidecar/options-table.js';
import {
  resolveSidecarOptions,
  SIDECAR_OPTION_NAMES,
  sidecarFlagOf,
  sidecarSpecOf,
  type ResolvedSidecarOptions,
  type SidecarOptionName,
} from '../sidecar/options.js';
import type { Sidecar } from '../sidecar/sidecar.js';
import { EndSignals } from './end-signals.js';
import { EXIT_CODES_HELP, EXIT_OK, exitCodeOf } from './exit-codes.js';

/** Time for what is left when the command is done. */
const LEAVE_MS = 1_000;

const EXAMPLES = `A flag wins over its environment variable, that over the configuration.

Examples:
  kvpeer sidecar --port 8000 --model-server-port 8200 --p2p-connector-port 7777 --secure-serving=false
  kvpeer sidecar --ssrf-allow 10.0.0.7:8000 --ssrf-allow 10.0.0.8:8000 --cert-path /etc/tls
  kvpeer sidecar --enable-ssrf-protection --inference-pool default/pool --configuration-file sidecar.yaml
  kvpeer sidecar --peer --peer-pool-bytes 64GiB --peer-block-bytes 8MiB --pull-block-tokens 64 --secure-serving=false`;

/** Flags of the embedded peer are those of `kvpeer serve`, with this in front. */
const PEER_PREFIX = '--peer-';

/** The same list is in README.md. */
const NOT_HERE = `Of the reference, these parts are not here:
  connectors other than offloading (nixlv2 with --enable-p2p-pull too), encoder legs, chunked decode, prefill retries:
    asking for one of the first three ends the start with a message; the retry flags have no effect, as with the reference
    and this connector; x-encoder-hosts-ports is ignored and counted
  HTTP/2: HTTP/1.1 is negotiated; a wish for h2c is read past
  export of traces: trace context is passed to both legs, --tracing has no effect
  the reference's metrics by their names, --metrics-cert-dir, speculative prefill`;

type SidecarFlags = Readonly<Record<string, string | boolean | string[] | undefined>> & {
  readonly configuration?: string;
  readonly configurationFile?: string;
  readonly vllmPort?: string;
  readonly peer?: boolean;
};

/** What the command line, the environment and the configuration say together. */
interface SidecarSettings {
  readonly options: ResolvedSidecarOptions;
  /** Of the embedded peer. */
  readonly peer: Resolution | undefined;
}

/** @param start starts a peer; given from outside, so that no native code is loaded without one */
export function sidecarCommand(start: PeerStarter['start']): Command {
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
    .addOption(
      new Option(
        '--peer',
        'run a peer in this process; its options are those of kvpeer serve as --peer-NAME (which imply this), KVPEER_NAME, or in the map `peer` of the configuration',
      ).helpGroup('Embedded peer:'),
    )
    .addOption(new Option('--vllm-port <port>', 'older name of --model-server-port').hideHelp())
    .addOption(new Option('--configuration <yaml>', 'options as a YAML map').helpGroup('Operation:'))
    .addOption(new Option('--configuration-file <file>', 'YAML file of options').helpGroup('Operation:'))
    .addHelpText('after', `\n${NOT_HERE}\n\n${EXIT_CODES_HELP}\n\n${EXAMPLES}`)
    .action(async (flags: SidecarFlags) => {
      process.exitCode = await run(flags, start);
      setTimeout(() => process.exit(), LEAVE_MS).unref();
    });
  for (const group of OPTION_GROUPS) {
    for (const name of OPTION_NAMES) {
      if (OPTION_TABLE[name].group === group) command.addOption(peerFlagFor(name));
    }
  }
  return command;
}

function peerFlagFor(name: OptionName): Option {
  const { help, placeholder, group } = OPTION_TABLE[name];
  const flag = flagOf(name).replace('--', PEER_PREFIX);
  const value = placeholder === undefined ? '[on|off]' : `<${placeholder.toLowerCase()}>`;
  const ownDefault = PEER_DEFAULTS[name] ?? peerDefaultTextOf(name);
  return new Option(`${flag} ${value}`, `${help} (default: ${ownDefault})`).helpGroup(
    `Embedded peer, ${group}:`,
  );
}

/** What the sidecar knows already is the peer's default. */
const PEER_DEFAULTS: Partial<Record<OptionName, string>> = {
  host: '--pod-ip, else 127.0.0.1',
  logLevel: '--log-level',
};

/** `poolBytes` -> `peerPoolBytes`, as commander calls `--peer-pool-bytes`. */
function attributeOf(name: OptionName): string {
  return `peer${name[0].toUpperCase()}${name.slice(1)}`;
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

async function run(flags: SidecarFlags, start: PeerStarter['start']): Promise<number> {
  const { options, peer: embedded } = await readOptions(flags);
  const logger = createLogger(options.logLevel);
  for (const warning of embedded?.warnings ?? []) logger.warn(warning);
  const signals = new EndSignals(logger);
  let peer: PeerApi | undefined;
  try {
    // Loaded with the command: the others start faster without an HTTP client.
    const { createSidecar } = await import('../sidecar/sidecar.js');
    peer = embedded && (await start({ ...embedded.options, logger }));
    const admin = adminOf(options, embedded);
    const starting = createSidecar(optionsForProgram(options), { logger, peer, admin });
    // A start may wait for Kubernetes for half a minute; whoever ends it then has no requests to wait for.
    const sidecar = await Promise.race([starting, signals.first]);
    if (sidecar === undefined) {
      void starting.then(
        (late) => late.close({ drainMs: 0 }),
        () => undefined,
      );
    } else {
      logReady(sidecar, peer, options, logger);
      await signals.first;
      // Requests first: what they pull ends with them.
      await sidecar.close();
    }
    await peer?.close();
    logger.info('closed');
    return EXIT_OK;
  } catch (err) {
    logger.fatal({ err }, err instanceof Error ? err.message : 'failed');
    await peer?.close({ drainMs: 0 });
    return exitCodeOf(err);
  } finally {
    signals.close();
  }
}

/** One port for both: that of the sidecar's metrics where it is given, else the peer's. */
function adminOf(
  { metricsPort }: ResolvedSidecarOptions,
  embedded: Resolution | undefined,
): { readonly host: string; readonly port: number } | undefined {
  if (embedded === undefined || metricsPort !== 0) return undefined;
  const { adminHost, adminPort } = embedded.options;
  return adminPort === 'off' ? undefined : { host: adminHost, port: adminPort };
}

/** The pod's address and the level of the log: see PEER_DEFAULTS. The engine's tier has --p2p-connector-port itself. */
function peerOptionsOf(
  options: ResolvedSidecarOptions,
  flags: Readonly<Record<string, string | boolean>>,
  given: object,
  yamlFile: string,
): Resolution {
  const { podIp, logLevel } = options;
  const host = podIp !== undefined && isIP(podIp) !== 0 ? { host: podIp } : {};
  const yaml = { logLevel, ...host, ...given };
  return resolveOptions({ flags, flagPrefix: PEER_PREFIX, env: process.env, yaml, yamlFile });
}

/** The older spelling was merged into the newer one; given again they would be checked again. */
function optionsForProgram(options: ResolvedSidecarOptions): Partial<ResolvedSidecarOptions> {
  const { secureServing, ...rest } = options;
  return { ...rest, secureProxy: secureServing };
}

async function readOptions(flags: SidecarFlags): Promise<SidecarSettings> {
  const { configuration, configurationFile, vllmPort, peer: hasPeer, ...others } = flags;
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
  const { own, ofPeer } = split(yaml);
  const options = resolveSidecarOptions({
    flags: { ...others, modelServerPort },
    env: process.env,
    yaml: own,
    yamlFile,
  });
  const peerFlags = peerFlagsIn(flags);
  const isEmbedded = hasPeer === true || ofPeer !== undefined || Object.keys(peerFlags).length > 0;
  return {
    options,
    peer: isEmbedded ? peerOptionsOf(options, peerFlags, ofPeer ?? {}, yamlFile) : undefined,
  };
}

function peerFlagsIn(flags: SidecarFlags): Readonly<Record<string, string | boolean>> {
  const given: Record<string, string | boolean> = {};
  for (const name of OPTION_NAMES) {
    const value = flags[attributeOf(name)];
    if (typeof value === 'string' || typeof value === 'boolean') given[name] = value;
  }
  return given;
}

/** The map `peer` of the configuration is the peer's, the rest is the sidecar's. */
function split(yaml: unknown): { readonly own: unknown; readonly ofPeer: object | undefined } {
  if (typeof yaml !== 'object' || yaml === null || !('peer' in yaml)) return { own: yaml, ofPeer: undefined };
  const { peer, ...own } = yaml;
  if (peer === true || peer === null) return { own, ofPeer: {} };
  if (peer === false) return { own, ofPeer: undefined };
  return typeof peer === 'object' && !Array.isArray(peer)
    ? { own, ofPeer: peer }
    : { own: yaml, ofPeer: undefined };
}

async function contentOf(file: string): Promise<string> {
  try {
    return await readConfigText(file);
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
  { addresses, metricsAddress: metrics }: Sidecar,
  peer: PeerApi | undefined,
  options: ResolvedSidecarOptions,
  logger: Logger,
): void {
  const { profile, modelServerPort, p2pConnectorPort, secureServing } = options;
  const of = peer === undefined ? {} : { peer: peer.address, dataPlane: peer.dataPlane };
  logger.info(
    { addresses, metrics, profile, modelServerPort, p2pConnectorPort, secureServing, ...of },
    'ready',
  );
}
