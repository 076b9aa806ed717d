// The command `kvpeer serve`: one peer as a service, with an admin server and a bounded drain.

import { Command, Option } from 'commander';
import type { Logger } from 'pino';
import { parse as parseYaml } from 'yaml';
import { applyNixlEnvironment } from '../../shared/nixl-environment.js';
import { KvpeerError } from '../errors.js';
import { metricsRoute, startAdmin, type AdminRoute, type AdminServer } from '../observe/admin.js';
import { healthRoute, readyRoute, type Readiness } from '../observe/health.js';
import { createLogger } from '../observe/log.js';
import {
  defaultTextOf,
  flagOf,
  OPTION_GROUPS,
  OPTION_NAMES,
  OPTION_TABLE,
  resolveOptions,
  type OptionName,
  type Resolution,
  type ResolvedOptions,
} from '../options.js';
import { readConfigText } from '../options/config-file.js';
import type { PeerApi, PeerStarter } from '../peer-api.js';
import { EndSignals } from './end-signals.js';
import { EXIT_CODES_HELP, EXIT_OK, exitCodeOf } from './exit-codes.js';

/** Beyond `drainMs`: what closing itself may take (telling peers, stopping workers, unmapping the pool). */
const CLOSE_MS = 10_000;
/** Time for what is left when the command is done. */
const LEAVE_MS = 1_000;

const EXAMPLES = `Every option is also a variable (--pool-bytes is KVPEER_POOL_BYTES) and a key of the YAML file (poolBytes).
Sizes may have a unit: 64KiB, 1.5GiB, 10GB.
A flag wins over a variable, that over VLLM_P2P_SIDE_CHANNEL_HOST and _PORT, those over the file.

Examples:
  kvpeer serve --host 10.0.0.7 --pool-bytes 64GiB
  kvpeer serve --host 0.0.0.0 --advertise node-7.kv:5710 --config /etc/kvpeer.yaml
  kvpeer serve --data-plane none --port 0 --admin-port off --log-level debug`;

type ServeFlags = Readonly<Record<string, string | boolean | undefined>> & { readonly config?: string };

/** @param start starts a peer; given from outside, so that NIXL is not loaded before its environment is set */
export function serveCommand(start: PeerStarter['start']): Command {
  const command = new Command('serve')
    .summary('run a peer')
    .description(
      'Runs a peer: keeps KV blocks in memory, answers lookups of other peers and writes blocks into their memory.\n' +
        'Prints one JSON line per event; the line with "msg":"ready" has the addresses. SIGTERM and SIGINT drain it.',
    );
  for (const group of OPTION_GROUPS) {
    for (const name of OPTION_NAMES) {
      if (OPTION_TABLE[name].group === group) command.addOption(flagFor(name));
    }
  }
  command
    .addOption(new Option('--config <file>', 'YAML file of options, one per line').helpGroup('Operation:'))
    .addHelpText('after', `\n${EXIT_CODES_HELP}\n\n${EXAMPLES}`)
    .action(async (flags: ServeFlags) => {
      process.exitCode = await serve(flags, start);
      // A node that could not be closed in time must not keep the process: the timer only fires when something does.
      setTimeout(() => process.exit(), LEAVE_MS).unref();
    });
  return command;
}

/** No default is given to commander: the table knows it, and a flag that was not given must not hide a variable. */
function flagFor(name: OptionName): Option {
  const { help, placeholder, group } = OPTION_TABLE[name];
  const flag =
    placeholder === undefined ? `${flagOf(name)} [on|off]` : `${flagOf(name)} <${placeholder.toLowerCase()}>`;
  const description = `${help} (default: ${defaultTextOf(name)})`;
  return new Option(flag, description).helpGroup(`${group}:`);
}

async function serve(flags: ServeFlags, start: PeerStarter['start']): Promise<number> {
  const resolution = await readOptions(flags);
  const { options } = resolution;
  const logger = createLogger(options.logLevel);
  logOptions(resolution, logger);
  const signals = new EndSignals(logger);
  let admin: AdminServer | undefined;
  try {
    const startedAt = performance.now();
    const node: { peer: PeerApi | undefined } = { peer: undefined };
    if (options.adminPort !== 'off') {
      admin = await startAdmin({
        host: options.adminHost,
        port: options.adminPort,
        routes: routesOf(node, signals),
        onError: (path, err) => {
          logger.error({ err, path }, 'an admin route failed');
        },
      });
    }
    if (options.dataPlane === 'nixl') {
      logger.info({ settings: applyNixlEnvironment(options.host) }, 'environment of the transport');
    }
    const peer = await start({ ...options, logger });
    node.peer = peer;
    logReady(peer, options, admin, performance.now() - startedAt, logger);
    await signals.first;
    await within(options.drainMs + CLOSE_MS, peer.close({ drainMs: options.drainMs }));
    logger.info('closed');
    return EXIT_OK;
  } catch (err) {
    logger.fatal({ err }, err instanceof Error ? err.message : 'failed');
    return exitCodeOf(err);
  } finally {
    await admin?.close();
    signals.close();
  }
}

async function readOptions(flags: ServeFlags): Promise<Resolution> {
  const { config, ...optionFlags } = flags;
  const file = config ?? process.env.KVPEER_CONFIG;
  if (file === undefined || file === '') return resolveOptions({ flags: optionFlags, env: process.env });
  let yaml: unknown;
  try {
    yaml = parseYaml(await readConfigText(file));
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    const message = `${file} cannot be read as YAML: ${reason}; correct it, or leave --config out`;
    throw new KvpeerError('KVPEER_INVALID_OPTION', message, { cause: error });
  }
  return resolveOptions({ flags: optionFlags, env: process.env, yaml, yamlFile: file });
}

function logOptions({ options, origins, warnings }: Resolution, logger: Logger): void {
  for (const warning of warnings) logger.warn(warning);
  const given = OPTION_NAMES.filter((name) => origins[name] !== 'default').map((name) => [
    name,
    { value: options[name], from: origins[name] },
  ]);
  logger.info({ options: Object.fromEntries(given) as unknown }, 'options that were given');
}

function routesOf(
  node: { readonly peer: PeerApi | undefined },
  signals: EndSignals,
): Readonly<Record<string, AdminRoute>> {
  const notReady = (reason: string): Readiness => ({
    isReady: false,
    reasons: [reason],
    dataPlane: undefined,
  });
  return {
    '/healthz': healthRoute(),
    '/readyz': readyRoute(() => {
      if (signals.isEnding) return notReady('the node is draining');
      return node.peer?.readiness() ?? notReady('the node is starting');
    }),
    '/metrics': () => {
      if (node.peer !== undefined) return metricsRoute(node.peer.metrics)();
      return { status: 503, contentType: 'text/plain; charset=utf-8', body: 'the node is starting\n' };
    },
  };
}

function logReady(
  peer: PeerApi,
  options: ResolvedOptions,
  admin: AdminServer | undefined,
  startMs: number,
  logger: Logger,
): void {
  const { address, numBlocks, blockBytes, keyBytes, shardCount, dataPlane, kvEvents } = peer;
  const fields = {
    address,
    admin: admin?.address,
    poolBytes: options.poolBytes,
    numBlocks,
    blockBytes,
    keyBytes,
    shards: shardCount,
    dataPlane,
    ...(kvEvents === undefined ? {} : { kvEvents }),
    startMs: Math.round(startMs),
  };
  logger.info(fields, 'ready');
}

/** Rejects when closing takes longer than its bound; the process then ends all the same. */
async function within(ms: number, closing: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new KvpeerError('KVPEER_DEADLINE', `the node did not close within ${ms} ms; raise --drain-ms`));
    }, ms);
  });
  try {
    await Promise.race([closing, late]);
  } finally {
    clearTimeout(timer);
  }
}
