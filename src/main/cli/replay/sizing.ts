// How large each peer's pool is, and whether all of them fit into this machine's free memory.
import { KvpeerError } from '../../errors.js';
import { formatBytes } from './report.js';

/** Slots beyond the distinct blocks: keys are not spread evenly over shards, and a full shard would evict. */
const SPARE_SLOTS_PER_SHARD = 256;
const SPARE_SHARE = 1.1;

/** The part of the free memory that the pools of all peers may take. */
const FREE_MEMORY_SHARE = 0.5;

export interface PoolSizing {
  readonly peers: number;
  readonly blockBytes: number;
  readonly shards: number;
  /** Distinct blocks of all requests: at most that many end up in one peer. */
  readonly distinctBlocks: number;
  /** What `--pool-bytes` says, or undefined. */
  readonly poolBytes: number | undefined;
  /** What this process and its children may still take, or undefined where nothing is known. */
  readonly freeBytes: number | undefined;
}

/**
 * Bytes of one peer's pool: what was asked for, else room for all distinct blocks x 1.1 and 256 slots per shard.
 *
 * @throws KVPEER_MEMORY when the pools together exceed half of the free memory, with the numbers
 */
export function choosePoolBytes(sizing: PoolSizing): number {
  const { peers, blockBytes, shards, distinctBlocks, freeBytes } = sizing;
  const slots = Math.ceil(distinctBlocks * SPARE_SHARE) + SPARE_SLOTS_PER_SHARD * shards;
  const poolBytes = sizing.poolBytes ?? slots * blockBytes;
  if (freeBytes === undefined || poolBytes * peers <= freeBytes * FREE_MEMORY_SHARE) return poolBytes;
  const origin =
    sizing.poolBytes === undefined
      ? ` (${slots} slots of ${formatBytes(blockBytes)}: ${distinctBlocks} distinct blocks x ${SPARE_SHARE} + ${SPARE_SLOTS_PER_SHARD} for each of ${shards} shards)`
      : '';
  throw new KvpeerError(
    'KVPEER_MEMORY',
    `${peers} pools of ${formatBytes(poolBytes)}${origin} are ${formatBytes(poolBytes * peers)}, more than half of the ` +
      `${formatBytes(freeBytes)} of memory that is free; lower --pool-bytes, --block-bytes, --requests or --peers`,
  );
}
