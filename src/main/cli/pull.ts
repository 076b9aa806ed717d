// The command `kvpeer pull`: an operator's probe that looks blocks up at one peer, pulls them, and says what came.

import { createHash, randomUUID } from 'node:crypto';
import { open as openFile, readFile, type FileHandle } from 'node:fs/promises';
import { isIP, isIPv6 } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { Command, Option } from 'commander';
import { resolveHost } from '../control/dealer.js';
import { KvpeerError } from '../errors.js';
import { createLogger } from '../observe/log.js';
import { parseHostPort } from '../params/index.js';
import type { PeerApi, Connection, PeerStarter } from '../peer-api.js';
import { EXIT_CODES_HELP, EXIT_FAILED, EXIT_OK } from './exit-codes.js';
import {
  addressTowards,
  identityFlags,
  probeOptions,
  standardError,
  type IdentityFlags,
} from './identity-flags.js';
import { renderPull, type PullReport, type PulledKey } from './pull-report.js';

const MODES = ['remote_kv_source', 'remote_prefiller'] as const;

interface PullFlags extends IdentityFlags {
  readonly from: string;
  readonly keys: string;
  readonly mode: (typeof MODES)[number];
  readonly kvRequestId?: string;
  readonly out?: string;
  readonly json?: boolean;
}

const EXAMPLES = `The exit status is 0 only if the peer answered and every block that it promised arrived. A miss is no failure.
With --out block i stands at i x the block's bytes, a block that did not come as zeros.

Examples:
  kvpeer pull --from 10.0.0.5:5710 --keys keys.txt
  kvpeer pull --from 10.0.0.5:5710 --keys - --block-bytes 128KiB --json < keys.txt
  kvpeer pull --from 10.0.0.5:5710 --keys keys.txt --mode remote_prefiller --kv-request-id U --out blocks.bin`;

/** @param start starts a peer; given from outside, so that help needs no native code */
export function pullCommand(start: PeerStarter['start']): Command {
  const command = new Command('pull')
    .summary('look blocks up at a peer and pull them')
    .description(
      'Pulls the blocks of some keys from a peer, vLLM or kvpeer, and prints what came: hit or miss and a SHA-256 per\n' +
        'key, bytes, and how long handshake, lookup and load took. The peer dials back: it must reach --host and --port.',
    )
    .requiredOption('--from <host:port>', 'the peer to pull from')
    .requiredOption('--keys <file>', 'keys, one per line in hexadecimal; - reads standard input')
    .addOption(
      new Option('--mode <mode>', 'look up first, or expect every block')
        .choices(MODES)
        .default('remote_kv_source'),
    )
    .option('--kv-request-id <id>', 'id of the request (default: a new one)')
    .option('--out <file>', 'write the blocks to a file')
    .option('--json', 'print one JSON object')
    .addHelpText('after', `\n${EXIT_CODES_HELP}\n\n${EXAMPLES}`)
    .action(async (flags: PullFlags) => {
      process.exitCode = await pull(flags, start);
    });
  for (const option of identityFlags({ host: 'the address that routes to the peer' }))
    command.addOption(option);
  return command;
}

async function pull(flags: PullFlags, start: PeerStarter['start']): Promise<number> {
  const { from, keys: file, mode, kvRequestId = randomUUID(), out, json, ...identity } = flags;
  const source = parseHostPort(from);
  if ('reason' in source) throw invalid(`--from ${from} ${source.reason}`);
  const keys = parseKeys(await readKeys(file), file);
  const options = probeOptions(identity, process.env, {
    keyBytes: keys[0].length,
    slots: keys.length,
    host: await addressTowards(source.host, source.port),
  });
  if (keys.length > options.maxKeys) {
    throw invalid(`--keys ${file} holds ${keys.length} keys; one list has at most ${options.maxKeys}`);
  }
  // Before anything is pulled: what cannot be written would be pulled for nothing.
  const output = out === undefined ? undefined : await openOutput(out);
  const peer = await start({ ...options, logger: createLogger(options.logLevel, standardError()) });
  try {
    const report = await pullFrom(peer, { from, source, mode, kvRequestId, keys, output });
    process.stdout.write(json === true ? `${JSON.stringify(report)}\n` : renderPull(report));
    return report.ok ? EXIT_OK : EXIT_FAILED;
  } finally {
    await peer.close({ drainMs: 0 });
    await output?.close();
  }
}

interface Source {
  readonly host: string;
  readonly port: number;
}

interface Task {
  readonly from: string;
  readonly source: Source;
  readonly mode: (typeof MODES)[number];
  readonly kvRequestId: string;
  readonly keys: readonly Buffer[];
  readonly output: FileHandle | undefined;
}

/** How long a peer that was dialled by its address is waited for, before it is looked for under the name. */
const OTHER_NAME_MS = 2000;

/**
 * A session belongs to the address by which a peer calls itself, mostly a numeric one: dialled as `localhost`, it calls
 * back as 127.0.0.1. So a name is dialled by its address; a peer that does call itself by the name has a session of its
 * own making under that by then.
 */
async function connectTo(
  peer: PeerApi,
  source: Source,
): Promise<{ readonly connection: Connection; readonly source: Source }> {
  const host = isIP(source.host) === 0 ? await resolveHost(source.host) : undefined;
  if (host === undefined) return { connection: await peer.connect(addressOf(source)), source };
  const numeric = { host, port: source.port };
  const dialled = peer.connect(addressOf(numeric)).then((connection) => ({ connection, source: numeric }));
  const first = await Promise.race([dialled, delay(OTHER_NAME_MS)]);
  if (first !== undefined) return first;
  const connection = await peer.connect(addressOf(source));
  return connection.isReady ? { connection, source } : dialled;
}

function addressOf({ host, port }: Source): string {
  return `${isIPv6(host) ? `[${host}]` : host}:${port}`;
}

async function pullFrom(peer: PeerApi, task: Task): Promise<PullReport> {
  const { from, mode, kvRequestId, keys, output } = task;
  const base = { from, mode, kvRequestId, blockBytes: peer.blockBytes };
  const [{ connection, source }, handshakeMs] = await timed(connectTo(peer, task.source));
  if (!connection.isReady) {
    const fault = await writeBlocks(output, keys.length, peer.blockBytes, () => undefined);
    if (fault !== undefined) process.stderr.write(`kvpeer: ${fault}\n`);
    const missed = keys.map((key) => ({ key: key.toString('hex'), promised: false, bytes: 0 }));
    return { ...base, ok: false, reason: connection.reason, handshakeMs, ...summaryOf(missed), keys: missed };
  }
  const request = peer.open({
    [mode]: { kv_request_id: kvRequestId, remote_host: source.host, remote_port: source.port },
  });
  const packed = Buffer.concat(keys);
  const [hits, lookupMs] = await timed(request.lookup(packed));
  // A fetch names each key once; the report has a line for each line of the input.
  const firstLine = new Map<string, number>();
  keys.forEach((key, line) => {
    const text = key.toString('hex');
    if (hits.has(line) && !firstLine.has(text)) firstLine.set(text, line);
  });
  const wanted = [...firstLine.values()];
  const [load, loadMs] = await timed(request.load(Buffer.concat(wanted.map((line) => keys[line]))));
  const positions = new Map(wanted.map((line, position) => [line, position]));
  const blockAt = (line: number): Uint8Array | undefined => {
    const first = firstLine.get(keys[line].toString('hex'));
    return first === undefined ? undefined : load.block(positions.get(first) ?? -1);
  };
  const pulled = keys.map((key, line) => pulledKey(key, hits.has(line), blockAt(line)));
  const fault = await writeBlocks(output, keys.length, peer.blockBytes, blockAt);
  load.release();
  request.finish();
  const reason = fault ?? (await missReasons(peer));
  const ok = reason === undefined && pulled.every(({ promised, bytes }) => !promised || bytes > 0);
  return {
    ...base,
    ok,
    ...(reason === undefined ? {} : { reason }),
    handshakeMs,
    lookupMs,
    loadMs,
    ...summaryOf(pulled),
    keys: pulled,
  };
}

function pulledKey(key: Buffer, promised: boolean, block: Uint8Array | undefined): PulledKey {
  const text = key.toString('hex');
  if (!block) return { key: text, promised, bytes: 0 };
  const sha256 = createHash('sha256').update(block).digest('hex');
  return { key: text, promised, bytes: block.length, sha256 };
}

function summaryOf(
  keys: readonly PulledKey[],
): Pick<PullReport, 'keyCount' | 'promised' | 'loaded' | 'bytes'> {
  const loaded = keys.filter(({ bytes }) => bytes > 0);
  return {
    keyCount: keys.length,
    promised: keys.filter(({ promised }) => promised).length,
    loaded: loaded.length,
    bytes: loaded.reduce((sum, { bytes }) => sum + bytes, 0),
  };
}

/** Why keys were misses other than by the peer's word; undefined when it answered everything. */
async function missReasons(peer: PeerApi): Promise<string | undefined> {
  const metric = await peer.metrics.getSingleMetric('kvpeer_misses_total')?.get();
  const reasons = (metric?.values ?? [])
    .filter(({ value }) => value > 0)
    .map(({ labels, value }) => `${String(labels.reason)} (${value})`);
  return reasons.length === 0 ? undefined : reasons.join(', ');
}

async function openOutput(file: string): Promise<FileHandle> {
  try {
    return await openFile(file, 'w');
  } catch (error) {
    throw invalid(
      `--out ${file} cannot be written: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
}

/** One block after the other. @returns why not all could be written; the report is worth having all the same */
async function writeBlocks(
  output: FileHandle | undefined,
  count: number,
  blockBytes: number,
  blockAt: (line: number) => Uint8Array | undefined,
): Promise<string | undefined> {
  if (output === undefined) return undefined;
  const zeros = new Uint8Array(blockBytes);
  try {
    for (let line = 0; line < count; line++) {
      // A copy: the file system may not read shared memory.
      const block = blockAt(line);
      await output.writeFile(block ? Uint8Array.from(block) : zeros);
    }
    return undefined;
  } catch (error) {
    return `--out could not be written: ${error instanceof Error ? error.message : String(error)}`;
  }
}

async function readKeys(file: string): Promise<string> {
  try {
    return (file === '-' ? await buffer(process.stdin) : await readFile(file)).toString('utf8');
  } catch (error) {
    throw invalid(`--keys ${file} cannot be read: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function parseKeys(text: string, file: string): readonly Buffer[] {
  const lines = text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
  if (lines.length === 0) throw invalid(`--keys ${file} holds no key; write one per line in hexadecimal`);
  return lines.map((line, i) => {
    if (!/^(?:[0-9a-f]{2}){1,64}$/i.test(line)) {
      throw invalid(
        `key ${i + 1} of ${file} is not 1 to 64 bytes in hexadecimal: ${JSON.stringify(line.slice(0, 140))}`,
      );
    }
    if (line.length !== lines[0].length) {
      throw invalid(`key ${i + 1} of ${file} is not as long as the first; all keys of a node are`);
    }
    return Buffer.from(line, 'hex');
  });
}

function invalid(message: string): KvpeerError {
  return new KvpeerError('KVPEER_INVALID_ARGUMENT', message);
}

async function timed<T>(promise: Promise<T>): Promise<readonly [T, number]> {
  const startedAt = performance.now();
  const value = await promise;
  return [value, Math.round((performance.now() - startedAt) * 1000) / 1000];
}
