// The one table of options: API name, flag, environment variable, YAML key, range, default and help all come from it.

import { MAX_EXTENT_KEYS } from '../../shared/layout.js';
import { shardCountFor, usableCores } from './cores.js';
import {
  bindHost,
  bytes,
  count,
  dialledAddress,
  fingerprintSource,
  formatBytes,
  milliseconds,
  oneOf,
  onOff,
  orWord,
  powerOfTwo,
  share,
  textOfBytes,
  type OptionKind,
} from './kinds.js';

/** Headings of the help and of the README, in their order. */
export const OPTION_GROUPS = [
  'Addresses',
  'Memory and shards',
  'Compatibility and data plane',
  'Operation',
  'KV events',
  'Times towards a peer',
  'Times of requests and blocks',
  'Times towards a plain vLLM peer',
  'Limits on what arrives',
] as const;
export type OptionGroup = (typeof OPTION_GROUPS)[number];

/** One option. */
export interface OptionSpec<T, In = T> extends OptionKind<T, In> {
  readonly group: OptionGroup;
  readonly help: string;
  /** The section of the design that the rule and the default come from; undefined for a choice of operation. */
  readonly source: string | undefined;
  readonly defaultOf: () => T;
  /** The default in words, where the value alone would not say it. */
  readonly defaultText: string | undefined;
  /** An environment variable of vLLM that is honoured when ours is not set. */
  readonly fallbackVariable: string | undefined;
  /** True for what only `kvpeer serve` uses and `Peer.start` does not. */
  readonly isServeOnly: boolean;
}

interface Extras {
  readonly source?: string;
  readonly defaultText?: string;
  readonly fallbackVariable?: string;
  readonly isServeOnly?: boolean;
}

function in_(group: OptionGroup) {
  return <T, In>(kind: OptionKind<T, In>, value: T | (() => T), help: string, extras: Extras = {}) =>
    ({
      ...kind,
      group,
      help,
      source: extras.source,
      defaultOf: isFactory(value) ? value : () => value,
      defaultText: extras.defaultText,
      fallbackVariable: extras.fallbackVariable,
      isServeOnly: extras.isServeOnly ?? false,
    }) satisfies OptionSpec<T, In>;
}

function isFactory<T>(value: T | (() => T)): value is () => T {
  return typeof value === 'function';
}

const address = in_('Addresses');
const memory = in_('Memory and shards');
const compatibility = in_('Compatibility and data plane');
const operation = in_('Operation');
const kvEvents = in_('KV events');
const peerTime = in_('Times towards a peer');
const requestTime = in_('Times of requests and blocks');
const plainTime = in_('Times towards a plain vLLM peer');
const limit = in_('Limits on what arrives');

const RULE_4 = { source: '6, rule 4' };
const RULE_5 = { source: '6, rule 5' };
const RULE_9 = { source: '6, rule 9' };
const SECTION_10 = { source: '10' };
const MIB = 2 ** 20;
const GIB = 2 ** 30;
/** vLLM reuses its slots 40 s after its fetch (30 s to load, 10 s for the acknowledgement of its abort). */
const PLAIN_STOP_MAX_MS = 39_000;
const PLAIN_ABORT_MAX_MS = 9_000;

export const OPTION_TABLE = {
  host: address(bindHost(), '127.0.0.1', 'address that the control socket binds', {
    source: '7',
    fallbackVariable: 'VLLM_P2P_SIDE_CHANNEL_HOST',
  }),
  port: address(count(0, 65_535, 'PORT'), 5710, 'port of the control socket, 0 takes a free one', {
    source: '7',
    fallbackVariable: 'VLLM_P2P_SIDE_CHANNEL_PORT',
  }),
  advertise: address(
    orWord(dialledAddress(), '', 'the bound address'),
    '',
    'address that other nodes dial; needed when the bound address is a wildcard',
    { source: '7', defaultText: 'the bound address' },
  ),

  poolBytes: memory(bytes(4096, 2 ** 46), GIB, 'memory for blocks, rounded down to whole slots per shard', {
    source: '3',
  }),
  blockBytes: memory(
    bytes(4096, GIB, 4096),
    65_536,
    'bytes of one block, the same at all nodes that exchange blocks',
    {
      source: '1',
    },
  ),
  keyBytes: memory(count(1, 64), 36, 'bytes of a key: 36 for SHA-256 hashes, 20 for xxhash', { source: '1' }),
  shards: memory(count(1, 32), () => shardCountFor(usableCores()), 'shard workers', {
    source: '2',
    defaultText: 'cores - 1, at least 2, at most 4',
  }),
  checksums: memory(onOff(), false, 'keep a checksum per block and verify it after a pull', {
    source: '6, rule 8',
  }),
  ringCapacity: memory(powerOfTwo(16, 2 ** 16), 1024, 'records of a ring between main thread and worker', {
    source: '4',
  }),
  arenaBytes: memory(
    orWord(bytes(MIB, 2 ** 32 - 4096, 4096), 'auto', 'by the size of the pool'),
    'auto',
    'memory for the key lists of open requests',
    { source: '4' },
  ),

  hashSeed: compatibility(
    textOfBytes(1, 512),
    'vllm-none-hash',
    "seed of the engines' block hashes, compared in the handshake",
    {
      source: '7',
    },
  ),
  fingerprint: compatibility(
    textOfBytes(0, 512),
    '',
    "fingerprint of the engines' cache layout, compared in the handshake; trust-first takes over the first peer's",
    {
      source: '7',
      defaultText: 'empty: not compared',
    },
  ),
  fingerprintFrom: compatibility(
    fingerprintSource(),
    '',
    'model and parallelism of the engines, of which the fingerprint is computed as vLLM does',
    { source: '7', defaultText: 'none' },
  ),
  dataPlane: compatibility(
    oneOf(['nixl', 'none']),
    'nixl',
    'how blocks move; none answers lookups and moves nothing',
    {
      source: '10',
    },
  ),

  adminHost: operation(bindHost(), '127.0.0.1', 'address that /healthz, /readyz and /metrics bind', {
    isServeOnly: true,
  }),
  adminPort: operation(
    orWord(count(0, 65_535, 'PORT'), 'off', 'no admin server'),
    5780,
    'port of /healthz, /readyz and /metrics, 0 takes a free one',
    { isServeOnly: true },
  ),
  logLevel: operation(
    oneOf(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']),
    'info',
    'lowest level that is logged',
  ),
  drainMs: operation(milliseconds(0), 10_000, 'time for running requests when the node closes'),

  kvEventsPort: kvEvents(
    orWord(count(0, 65_535, 'PORT'), 'off', 'no KV events'),
    'off',
    'port on which what this node holds is published for routers (5557 at vLLM), 0 takes a free one',
  ),
  kvEventsReplayPort: kvEvents(
    orWord(count(0, 65_535, 'PORT'), 'off', 'no replay'),
    'off',
    'port on which a router asks for the batches it missed, 0 takes a free one',
  ),
  kvEventsHost: kvEvents(
    orWord(bindHost(), '', 'the address of host'),
    '',
    'address that both ports of KV events bind',
    { defaultText: 'as host' },
  ),
  kvEventsModel: kvEvents(
    textOfBytes(0, 512),
    '',
    'model name as the router knows it, a part of the topic; needed with kvEventsPort',
    { defaultText: 'none' },
  ),
  kvEventsPod: kvEvents(
    orWord(dialledAddress(), '', 'the advertised host, port 8000'),
    '',
    'address at which the router reaches the engine of this pod, a part of the topic',
    { defaultText: 'the advertised host, port 8000' },
  ),
  kvEventsForm: kvEvents(
    oneOf(['array', 'map']),
    'array',
    'form of an event: classic, or as newer vLLM writes it',
  ),
  kvEventsUnknown: kvEvents(
    onOff(),
    false,
    'also announce blocks whose tokens nobody told; a router can use them where it knows the hash from an engine',
  ),
  kvEventsBlockTokens: kvEvents(count(1, 65_536), 16, 'tokens of a block, for events without tokens'),
  kvEventsRank: kvEvents(count(0, 65_535), 0, 'data-parallel rank in the batches'),
  kvEventsBufferBatches: kvEvents(
    count(16, 10_000_000),
    10_000,
    'batches kept for replay; then the numbering begins again with what is here',
  ),
  kvEventsBufferBytes: kvEvents(
    bytes(65_536, 16 * GIB),
    64 * MIB,
    'bytes kept for replay; then the numbering begins again with what is here',
  ),
  kvEventsSettleMs: kvEvents(
    milliseconds(),
    6_000,
    'time after the start when the numbering begins again for routers that have come back; llm-d dials every 5 s',
  ),
  kvEventsResubscribeMs: kvEvents(
    milliseconds(),
    5_000,
    'a new subscriber that does not ask for a replay makes the numbering begin again, at most this often',
  ),

  handshakeMs: peerTime(milliseconds(), 30_000, 'time for a handshake', RULE_4),
  suspectedHandshakeMs: peerTime(
    milliseconds(),
    1_000,
    'time for a handshake with a host of which another port just failed',
    RULE_4,
  ),
  redialMs: peerTime(
    milliseconds(),
    3_000,
    "time to wait for the other side's connect before dialling once more",
    RULE_4,
  ),
  heartbeatMs: peerTime(milliseconds(), 2_000, 'interval of heartbeats', RULE_4),
  heartbeatTimeoutMs: peerTime(milliseconds(), 10_000, 'silence after which a peer is dead', RULE_4),
  backoffMinMs: peerTime(
    milliseconds(),
    1_000,
    'first time that a failed peer is left alone; doubles',
    RULE_4,
  ),
  backoffMaxMs: peerTime(milliseconds(), 60_000, 'longest time that a failed peer is left alone', RULE_4),

  retireMs: peerTime(
    milliseconds(),
    1_000,
    'time that writes to other peers get when the send agent they share is stopped',
    SECTION_10,
  ),
  socketDrainMs: peerTime(
    milliseconds(),
    2_000,
    'longest wait for unsent data towards a plain vLLM peer after its writes were stopped',
    RULE_9,
  ),

  lookupMs: requestTime(milliseconds(), 8_000, 'time for the answer to a lookup, more than holdMs', RULE_4),
  holdMs: requestTime(
    milliseconds(),
    5_000,
    'longest time that a lookup waits for blocks that are being written',
    RULE_4,
  ),
  leaseMs: requestTime(
    milliseconds(),
    30_000,
    'time from an answer to a lookup until its blocks are unpinned',
    RULE_4,
  ),
  loadMs: requestTime(milliseconds(), 30_000, 'time for a load, beside the time for its size', RULE_4),
  abortAckMs: requestTime(milliseconds(), 10_000, 'time for the acknowledgement of an abort', RULE_4),
  storeMs: requestTime(milliseconds(), 30_000, 'time for a store', RULE_4),
  unclaimedStoreMs: requestTime(
    milliseconds(),
    60_000,
    'time that blocks wait for their remote decoder after the request has ended',
    RULE_4,
  ),
  rememberedMs: requestTime(milliseconds(), 60_000, 'time that ended leases and ids are remembered', RULE_4),
  quarantineMaxMs: requestTime(
    milliseconds(),
    600_000,
    'age of a quarantined slot after which the receive agent is replaced',
    RULE_4,
  ),
  recycleIntervalMs: requestTime(
    milliseconds(),
    60_000,
    'the receive agent is replaced at most this often',
    SECTION_10,
  ),
  queueMs: requestTime(
    milliseconds(),
    1_000,
    'time that an operation waits for room in a ring or the arena',
    RULE_4,
  ),

  plainPostMs: plainTime(milliseconds(), 25_000, 'time after its fetch in which writes are started', RULE_4),
  plainAbortMs: plainTime(
    milliseconds(1, PLAIN_ABORT_MAX_MS),
    5_000,
    'time after its abort until unfinished writes are stopped',
    RULE_9,
  ),
  plainStopMs: plainTime(
    milliseconds(1, PLAIN_STOP_MAX_MS),
    35_000,
    'time after its fetch until unfinished writes are stopped; vLLM reuses its memory after 40 s',
    RULE_9,
  ),

  maxMessageBytes: limit(bytes(4096, GIB), 8 * MIB, 'longest message', RULE_5),
  maxKeys: limit(count(1, MAX_EXTENT_KEYS), 65_536, 'keys in one list', RULE_5),
  maxStringBytes: limit(count(36, 65_535), 512, 'bytes of a string, such as an id', RULE_5),
  maxMetadataBytes: limit(bytes(1024, 16 * MIB), 64 * 1024, "bytes of a peer's NIXL metadata", RULE_5),
  maxPeers: limit(count(1, 65_535), 128, 'peers at the same time', RULE_5),
  maxRounds: limit(count(1, 2 ** 20), 1024, 'open rounds of one peer', RULE_5),
  peerPinShare: limit(
    share(),
    0.25,
    "share of the pool's slots that the lookups of one peer may pin",
    RULE_5,
  ),
  allPeersPinShare: limit(
    share(),
    0.5,
    "share of the pool's slots that the lookups of all peers together may pin",
    RULE_5,
  ),
  quarantineShare: limit(
    share(),
    0.1,
    'share of the pool in quarantine above which the receive agent is replaced',
    SECTION_10,
  ),
} as const;

export type OptionName = keyof typeof OPTION_TABLE;
export const OPTION_NAMES = Object.keys(OPTION_TABLE) as readonly OptionName[];

/** The row of an option, without its value type. */
export function specOf(name: OptionName): OptionSpec<unknown, unknown> {
  return OPTION_TABLE[name];
}

export function isOptionName(name: string): name is OptionName {
  return Object.hasOwn(OPTION_TABLE, name);
}

/** `poolBytes` -> `--pool-bytes`. */
export function flagOf(name: OptionName): string {
  return `--${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/** `poolBytes` -> `KVPEER_POOL_BYTES`. */
export function variableOf(name: OptionName): string {
  return `KVPEER_${name.replaceAll(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase()}`;
}

/** The default as people read it. */
export function defaultTextOf(name: OptionName): string {
  const spec = specOf(name);
  if (spec.defaultText !== undefined) return spec.defaultText;
  const value = spec.defaultOf();
  if (typeof value === 'number' && spec.placeholder === 'BYTES') return formatBytes(value);
  return String(value);
}
