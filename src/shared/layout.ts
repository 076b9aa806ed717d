// The one map of the control mapping and the pool: every offset that JavaScript and the native code share.

/*
 * Control mapping (all sections start on a multiple of 4096 bytes):
 *
 *     0         header        magic, layout version, sizes, seed, incarnation, section offsets: u64 each (layout-header.ts)
 *     words     control words main's armed word; then per worker its armed word and its stop word; 128 bytes each
 *     rings     per worker    submission ring, completion ring: | head, 128 | tail, 128 | ringCapacity x 32 |
 *     scratch   per worker    SCRATCH_BYTES for native calls that hand JavaScript a list (hashKeys)
 *     counters  per worker    COUNTERS_PER_WORKER float64, written by that worker only (counters.ts)
 *     arena     extents of operations.ts, handed out by main in units of EXTENT_UNIT_BYTES
 *     index     per shard     bucketsPerShard x 64 bytes: eight entries (tag, slot + 1), slot + 1 = 0 means empty;
 *                             both buckets of a key lie in the same 64 of them
 *     records   per slot      recordBytes: | state u32 | key length u8, chain position u8, eviction u16 | checksum u64 |
 *                                          | link A i32 | link B i32 | key, zero-padded |
 *     history   per shard     what eviction has learned: statistics, then GHOSTS_PER_SLOT u16 per slot
 *                             (workers/eviction-history.ts)
 *
 * Pool: | slot 0 | slot 1 | ... | slot numBlocks-1 | scratch page, 4096 |   slot address = base + slot * blockBytes
 *
 * No address is stored anywhere: both mappings can be adopted by another process at another place.
 */

import { EXTENT_UNIT_BYTES, RECORD_WORDS } from './operations.js';

declare const brand: unique symbol;
type Branded<Name extends string> = number & { readonly [brand]: Name };

/** A slot of the pool, 0 .. numBlocks - 1. */
export type SlotIndex = Branded<'SlotIndex'>;
/** A shard and the worker that owns it, 0 .. shardCount - 1. */
export type ShardId = Branded<'ShardId'>;
/** Bytes from the start of a mapping. */
export type ByteOffset = Branded<'ByteOffset'>;

/** Two cache lines: adjacent-line prefetch would otherwise let neighbours disturb each other. */
export const CONTROL_WORD_BYTES = 128;
export const RING_HEAD_OFFSET = 0;
export const RING_TAIL_OFFSET = 128;
export const RING_RECORDS_OFFSET = 256;
export const RING_RECORD_BYTES = RECORD_WORDS * 4;

/** Index buckets: eight entries of two int32 words, one cache line. */
export const BUCKET_BYTES = 64;
export const BUCKET_ENTRIES = 8;
/** Both buckets of a key lie in the same page of this many (native/core/hash.h says why). */
export const PAGE_BUCKETS = 64;

/** Offsets inside a slot record. */
export const RECORD_STATE = 0;
export const RECORD_KEY_LENGTH = 4;
export const RECORD_CHAIN_POSITION = 5;
/** Queue and age of the block (workers/eviction.ts). */
export const RECORD_EVICTION = 6;
export const RECORD_CHECKSUM = 8;
export const RECORD_LINK_A = 16;
export const RECORD_LINK_B = 20;
export const RECORD_KEY = 24;

export const MAX_KEY_BYTES = 64;
/** Keys up to this length fit a 64-byte record. */
export const SMALL_KEY_BYTES = 40;
export const MAX_SLOTS = 2 ** 31 - 2;
export const MAX_CONTROL_BYTES = 2 ** 32;
export const MAX_SHARDS = 30;
/** Keys of one extent: a match packs three counts of 17 bits into one number. */
export const MAX_EXTENT_KEYS = 65_536;
export const BLOCK_ALIGN_BYTES = 4096;
/** Registered behind the last slot, never counted in num_blocks: a peer's first write lands here. */
export const POOL_SCRATCH_BYTES = 4096;
/** One hashKeys call describes a key in four int32 words (shard, bucket A, bucket B, tag). */
export const HASH_WORDS = 4;
export const SCRATCH_BYTES = 65_536;
export const COUNTERS_PER_WORKER = 64;
export const HISTORY_STATISTICS_BYTES = 256;
export const GHOSTS_PER_SLOT = 2;

/** Sections start on a page; the header has one of its own. */
export const PAGE_BYTES = 4096;
const ARENA_BASE_BYTES = 16 * 1024 * 1024;
const ARENA_BYTES_PER_SLOT = 24;
const DEFAULT_RING_CAPACITY = 1024;

export interface LayoutOptions {
  /** Slots asked for; rounded down to a multiple of shardCount. */
  readonly numBlocks: number;
  /** Bytes per block, a multiple of 4096. */
  readonly blockBytes: number;
  /** 1 to 64. */
  readonly keyBytes: number;
  readonly shardCount: number;
  /** Records per ring, a power of two (default 1024). */
  readonly ringCapacity?: number;
  /** Request arena (default 16 MiB + 24 bytes per slot), rounded up to a page. */
  readonly arenaBytes?: number;
}

export interface Layout {
  readonly numBlocks: number;
  readonly blockBytes: number;
  readonly keyBytes: number;
  readonly shardCount: number;
  readonly slotsPerShard: number;
  readonly bucketsPerShard: number;
  readonly recordBytes: number;
  readonly ringCapacity: number;
  readonly wordsOffset: ByteOffset;
  readonly ringsOffset: ByteOffset;
  readonly scratchOffset: ByteOffset;
  readonly countersOffset: ByteOffset;
  readonly arenaOffset: ByteOffset;
  readonly arenaBytes: number;
  readonly indexOffset: ByteOffset;
  readonly recordsOffset: ByteOffset;
  readonly historyOffset: ByteOffset;
  /** Bytes the control mapping needs. */
  readonly controlBytes: number;
  /** Bytes the pool needs: all slots and the scratch page. */
  readonly poolBytes: number;
}

/**
 * Places every section for a node of this size.
 *
 * @throws RangeError naming the value that cannot work and its limits
 */
export function computeLayout(options: LayoutOptions): Layout {
  const { blockBytes, keyBytes, shardCount } = options;
  const ringCapacity = options.ringCapacity ?? DEFAULT_RING_CAPACITY;
  requireInteger('shardCount', shardCount, 1, MAX_SHARDS);
  requireInteger('numBlocks', options.numBlocks, shardCount, MAX_SLOTS);
  requireInteger('blockBytes', blockBytes, BLOCK_ALIGN_BYTES, 2 ** 40);
  if (blockBytes % BLOCK_ALIGN_BYTES !== 0) {
    throw new RangeError(`blockBytes is ${blockBytes}; it must be a multiple of ${BLOCK_ALIGN_BYTES}`);
  }
  requireInteger('keyBytes', keyBytes, 1, MAX_KEY_BYTES);
  requireInteger('ringCapacity', ringCapacity, 2, 2 ** 20);
  if ((ringCapacity & (ringCapacity - 1)) !== 0) {
    throw new RangeError(`ringCapacity is ${ringCapacity}; it must be a power of two`);
  }
  const slotsPerShard = Math.floor(options.numBlocks / shardCount);
  const numBlocks = slotsPerShard * shardCount;
  const askedArenaBytes = options.arenaBytes ?? ARENA_BASE_BYTES + ARENA_BYTES_PER_SLOT * numBlocks;
  requireInteger('arenaBytes', askedArenaBytes, PAGE_BYTES, MAX_CONTROL_BYTES);
  const arenaBytes = roundUp(askedArenaBytes, PAGE_BYTES);
  const bucketsPerShard = bucketsFor(slotsPerShard);
  const recordBytes = keyBytes <= SMALL_KEY_BYTES ? 64 : 128;
  const poolBytes = numBlocks * blockBytes + POOL_SCRATCH_BYTES;
  if (!Number.isSafeInteger(poolBytes)) {
    throw new RangeError(`a pool of ${numBlocks} x ${blockBytes} bytes cannot be addressed; lower numBlocks`);
  }

  let end = PAGE_BYTES;
  const place = (bytes: number): ByteOffset => {
    const offset = end;
    end = roundUp(end + bytes, PAGE_BYTES);
    return offset as ByteOffset;
  };
  const wordsOffset = place((1 + 2 * shardCount) * CONTROL_WORD_BYTES);
  const ringsOffset = place(2 * shardCount * ringBytes(ringCapacity));
  const scratchOffset = place(shardCount * SCRATCH_BYTES);
  const countersOffset = place(shardCount * COUNTERS_PER_WORKER * 8);
  const arenaOffset = place(arenaBytes);
  const indexOffset = place(shardCount * bucketsPerShard * BUCKET_BYTES);
  const recordsOffset = place(numBlocks * recordBytes);
  const historyOffset = place(shardCount * historyBytes(slotsPerShard));
  if (end > MAX_CONTROL_BYTES) {
    throw new RangeError(
      `${numBlocks} blocks need ${end} bytes of control memory, more than ${MAX_CONTROL_BYTES}; lower numBlocks or run several nodes`,
    );
  }
  return {
    numBlocks,
    blockBytes,
    keyBytes,
    shardCount,
    slotsPerShard,
    bucketsPerShard,
    recordBytes,
    ringCapacity,
    wordsOffset,
    ringsOffset,
    scratchOffset,
    countersOffset,
    arenaOffset,
    arenaBytes,
    indexOffset,
    recordsOffset,
    historyOffset,
    controlBytes: end,
    poolBytes,
  };
}

export function mainArmedWord(layout: Layout): ByteOffset {
  return layout.wordsOffset;
}

export function workerArmedWord(layout: Layout, worker: number): ByteOffset {
  return (layout.wordsOffset + (1 + 2 * worker) * CONTROL_WORD_BYTES) as ByteOffset;
}

/** Non-zero: the worker leaves its serve loop. */
export function workerStopWord(layout: Layout, worker: number): ByteOffset {
  return (layout.wordsOffset + (2 + 2 * worker) * CONTROL_WORD_BYTES) as ByteOffset;
}

export function submissionRing(layout: Layout, worker: number): ByteOffset {
  return (layout.ringsOffset + 2 * worker * ringBytes(layout.ringCapacity)) as ByteOffset;
}

export function completionRing(layout: Layout, worker: number): ByteOffset {
  return (layout.ringsOffset + (2 * worker + 1) * ringBytes(layout.ringCapacity)) as ByteOffset;
}

export function workerScratch(layout: Layout, worker: number): ByteOffset {
  return (layout.scratchOffset + worker * SCRATCH_BYTES) as ByteOffset;
}

export function bucketOffset(layout: Layout, shard: number, bucket: number): ByteOffset {
  return (layout.indexOffset + (shard * layout.bucketsPerShard + bucket) * BUCKET_BYTES) as ByteOffset;
}

export function recordOffset(layout: Layout, slot: number): ByteOffset {
  return (layout.recordsOffset + slot * layout.recordBytes) as ByteOffset;
}

export function shardHistory(layout: Layout, shard: number): ByteOffset {
  return (layout.historyOffset + shard * historyBytes(layout.slotsPerShard)) as ByteOffset;
}

/** Slots are split in contiguous, equal shares. */
export function shardOfSlot(layout: Layout, slot: number): ShardId {
  return Math.floor(slot / layout.slotsPerShard) as ShardId;
}

export function firstSlotOfShard(layout: Layout, shard: number): SlotIndex {
  return (shard * layout.slotsPerShard) as SlotIndex;
}

/** Bytes from the pool's start. */
export function slotOffset(layout: Layout, slot: number): ByteOffset {
  return (slot * layout.blockBytes) as ByteOffset;
}

export function poolScratchOffset(layout: Layout): ByteOffset {
  return slotOffset(layout, layout.numBlocks);
}

/** First unit of the arena that EXTENT_UNIT_BYTES divides (the arena starts on a page, so all of them are). */
export function extentOffset(extentUnit: number): ByteOffset {
  return (extentUnit * EXTENT_UNIT_BYTES) as ByteOffset;
}

/** Two entries per slot keep the load at one half; at least a pair, and whole pages beyond one. */
function bucketsFor(slots: number): number {
  const buckets = Math.ceil((slots * 2) / BUCKET_ENTRIES);
  return buckets <= PAGE_BUCKETS ? Math.max(2, buckets) : roundUp(buckets, PAGE_BUCKETS);
}

function historyBytes(slotsPerShard: number): number {
  return roundUp(HISTORY_STATISTICS_BYTES + 2 * GHOSTS_PER_SLOT * slotsPerShard, 64);
}

function ringBytes(ringCapacity: number): number {
  return RING_RECORDS_OFFSET + ringCapacity * RING_RECORD_BYTES;
}

function roundUp(value: number, unit: number): number {
  return Math.ceil(value / unit) * unit;
}

function requireInteger(name: string, value: number, min: number, max: number): void {
  if (!Number.isInteger(value) || value < min || value > max) {
    throw new RangeError(`${name} is ${value}; it must be an integer from ${min} to ${max}`);
  }
}
