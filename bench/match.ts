// How long does a lookup take per key in an index of 64 thousand, of one and of ten million blocks, and what does a slot
// cost?

import { randomFillSync } from 'node:crypto';
import type { ControlHandle, Native } from '../native/index.js';
import { loadNative, unpackMatch } from '../native/index.js';
import type { Layout } from '../src/shared/layout.js';
import {
  BUCKET_ENTRIES,
  HASH_WORDS,
  RECORD_KEY,
  RECORD_KEY_LENGTH,
  SCRATCH_BYTES,
  bucketOffset,
  computeLayout,
  firstSlotOfShard,
  recordOffset,
  workerScratch,
} from '../src/shared/layout.js';
import { writeHeader } from '../src/shared/layout-header.js';
import {
  EXTENT_HEADER_BYTES,
  EXTENT_UNIT_BYTES,
  ExtentFlag,
  ExtentWord,
  PositionStatus,
} from '../src/shared/operations.js';
import { Phase, SlotTable, packState } from '../src/shared/slot-state.js';
import type { Section } from './rows.js';
import { nanosecondsOf } from './rows.js';
import { median } from './stats.js';

const KEY_BYTES = 36;
const BATCH = 1024;
const SHARDS = 2;
/** Rounds that are summed up in one sample: a single match is too short for the clock and for a busy machine. */
const LISTS = 50;

/** The control mapping of a node whose blocks are all READY (there is no pool: a lookup never touches one). */
class FullIndex {
  readonly layout: Layout;
  readonly #native: Native;
  readonly #handle: ControlHandle;
  readonly #table: SlotTable;
  readonly #keys: Uint8Array;
  #keyCount = 0;

  constructor(numBlocks: number) {
    this.#native = loadNative();
    this.layout = computeLayout({ numBlocks, blockBytes: 4096, keyBytes: KEY_BYTES, shardCount: SHARDS });
    const { buffer } = this.#native.mapAnonymous({
      bytes: this.layout.controlBytes,
      huge: true,
      lock: false,
    });
    writeHeader(buffer, this.layout, { seed: 0x5eed_5eed_5eed_5eedn, incarnation: 1n });
    this.#handle = this.#native.attachControl(buffer);
    this.#table = new SlotTable(buffer, this.layout);
    this.#keys = new Uint8Array(numBlocks * KEY_BYTES);
    this.#fill();
  }

  /**
   * Nanoseconds per key of match and of release, one of each per round. Each round has a list of its own; they are drawn
   * some at a time beforehand, for drawing one walks through all keys and empties the caches that a match works with.
   *
   * @param draw `scattered`: every key from anywhere; `chain`: blocks stored one after another, as those of a request are
   */
  measure(
    rounds: number,
    missShare: number,
    draw: 'scattered' | 'chain' = 'scattered',
  ): { matchNs: number[]; releaseNs: number[] } {
    const matchNs: number[] = [];
    const releaseNs: number[] = [];
    const lists = Array.from({ length: LISTS }, (_, list) => this.#writeExtent(BATCH, list));
    // The first rounds warm caches and the compiler up.
    for (let round = -LISTS; round < rounds; round += LISTS) {
      const missCounts = lists.map(({ keysAt }) => this.#drawKeys(keysAt, missShare, draw));
      for (const [list, { offset }] of lists.entries()) {
        let packed = 0;
        const matched = nanosecondsOf(() => {
          packed = this.#native.match(this.#handle, offset, 0, -1, 0, -1);
        });
        if (unpackMatch(packed).hitCount !== BATCH - missCounts[list])
          throw new Error('a key that is there was missed');
        const released = nanosecondsOf(() => {
          this.#native.release(this.#handle, offset);
        });
        if (round < 0) continue;
        matchNs.push(matched / BATCH);
        releaseNs.push(released / BATCH);
      }
    }
    return { matchNs, releaseNs };
  }

  /** Fills a list with keys that are there, and spoils some. @returns how many are not there */
  #drawKeys(keysAt: number, missShare: number, draw: 'scattered' | 'chain'): number {
    let missCount = 0;
    const first = Math.floor(Math.random() * (this.#keyCount - BATCH));
    for (let i = 0; i < BATCH; i++) {
      const number = draw === 'chain' ? first + i : Math.floor(Math.random() * this.#keyCount);
      const key = number * KEY_BYTES;
      const at = keysAt + i * KEY_BYTES;
      this.#table.bytes.set(this.#keys.subarray(key, key + KEY_BYTES), at);
      if (Math.random() >= missShare) continue;
      this.#table.bytes[at + 9] ^= 0xff;
      missCount += 1;
    }
    return missCount;
  }

  /** The reference in JavaScript on the same memory; the hash is the native one. @returns ns per key and round */
  measureReference(rounds: number): number[] {
    const scratch = workerScratch(this.layout, 0);
    const perBatch = Math.min(BATCH, SCRATCH_BYTES / (4 * HASH_WORDS));
    const { keysAt: positions } = this.#writeExtent(perBatch);
    const table = this.#table;
    const slots = new Int32Array(perBatch);
    const samples: number[] = [];
    for (let round = -20; round < rounds; round++) {
      for (let i = 0; i < perBatch; i++) {
        const key = Math.floor(Math.random() * this.#keyCount) * KEY_BYTES;
        table.bytes.set(this.#keys.subarray(key, key + KEY_BYTES), positions + i * KEY_BYTES);
      }
      const ns = nanosecondsOf(() => {
        this.#native.hashKeys(this.#handle, this.layout.arenaOffset, 0, perBatch, scratch);
        for (let i = 0; i < perBatch; i++) {
          const at = scratch / 4 + i * HASH_WORDS;
          const place = {
            shard: table.words[at],
            bucketA: table.words[at + 1],
            bucketB: table.words[at + 2],
            tag: table.words[at + 3],
          };
          slots[i] = table.probe(place, table.bytes, positions + i * KEY_BYTES, true).slot;
        }
      });
      for (const slot of slots) {
        if (slot < 0) throw new Error('a key that is there was missed');
        table.unpin(slot);
      }
      if (round >= 0) samples.push(ns / perBatch);
    }
    return samples;
  }

  #fill(): void {
    for (let at = 0; at < this.#keys.length; at += 65_536) {
      randomFillSync(this.#keys, at, Math.min(65_536, this.#keys.length - at));
    }
    const perBatch = SCRATCH_BYTES / (4 * HASH_WORDS);
    const { keysAt: positions } = this.#writeExtent(perBatch);
    const scratch = workerScratch(this.layout, 0);
    const nextSlots = Array.from({ length: SHARDS }, (_, shard) => firstSlotOfShard(this.layout, shard));
    for (let first = 0; first < this.layout.numBlocks; first += perBatch) {
      const batch = this.#keys.subarray(first * KEY_BYTES, (first + perBatch) * KEY_BYTES);
      this.#table.bytes.set(batch, positions);
      const count = batch.length / KEY_BYTES;
      this.#native.hashKeys(this.#handle, this.layout.arenaOffset, 0, count, scratch);
      for (let i = 0; i < count; i++) this.#insert(first + i, scratch / 4 + i * HASH_WORDS, nextSlots);
    }
  }

  /** Random keys do not fall evenly on the shards: one whose shard is full already is left out. */
  #insert(key: number, hashAt: number, nextSlots: number[]): void {
    const { words, bytes } = this.#table;
    const [shard, bucketA, bucketB, tag] = words.subarray(hashAt, hashAt + HASH_WORDS);
    const slot = nextSlots[shard];
    if (slot >= firstSlotOfShard(this.layout, shard + 1)) return;
    const a = this.#emptyEntries(shard, bucketA);
    const b = this.#emptyEntries(shard, bucketB);
    const [free, bucket] = a >= b ? [a, bucketA] : [b, bucketB];
    if (free === 0) return;
    const entry = bucketOffset(this.layout, shard, bucket) / 4 + 2 * (BUCKET_ENTRIES - free);
    const record = recordOffset(this.layout, slot);
    const source = this.#keys.subarray(key * KEY_BYTES, (key + 1) * KEY_BYTES);
    bytes.set(source, record + RECORD_KEY);
    bytes[record + RECORD_KEY_LENGTH] = KEY_BYTES;
    words[this.#table.stateWord(slot)] = packState(Phase.Ready, 1, 0, 0);
    words[entry] = tag;
    words[entry + 1] = slot + 1;
    nextSlots[shard] = slot + 1;
    this.#keys.copyWithin(this.#keyCount * KEY_BYTES, key * KEY_BYTES, (key + 1) * KEY_BYTES);
    this.#keyCount += 1;
  }

  #emptyEntries(shard: number, bucket: number): number {
    const first = bucketOffset(this.layout, shard, bucket) / 4;
    let empty = 0;
    for (let entry = 0; entry < BUCKET_ENTRIES; entry++) {
      if (this.#table.words[first + 2 * entry + 1] === 0) empty += 1;
    }
    return empty;
  }

  /** Extent number `list` of the arena, each with room for `count` keys. @returns byte offsets of it and its first key */
  #writeExtent(count: number, list = 0): { offset: number; keysAt: number } {
    const bytes =
      Math.ceil((EXTENT_HEADER_BYTES + (7 + KEY_BYTES) * count) / EXTENT_UNIT_BYTES) * EXTENT_UNIT_BYTES;
    const offset = this.layout.arenaOffset + list * bytes;
    const words = new Int32Array(this.#table.words.buffer, offset, EXTENT_HEADER_BYTES / 4);
    const slotsAt = EXTENT_HEADER_BYTES;
    const generationsAt = slotsAt + 4 * count;
    const statusesAt = generationsAt + 2 * count;
    const keysAt = statusesAt + count;
    words.fill(0);
    words[ExtentWord.Count] = count;
    words[ExtentWord.Flags] = ExtentFlag.Pin;
    words[ExtentWord.PinLimit] = count;
    words[ExtentWord.SlotsOffset] = slotsAt;
    words[ExtentWord.GenerationsOffset] = generationsAt;
    words[ExtentWord.StatusesOffset] = statusesAt;
    words[ExtentWord.KeysOffset] = keysAt;
    words[ExtentWord.KeyStride] = KEY_BYTES;
    words[ExtentWord.Bytes] = keysAt + count * KEY_BYTES;
    const statuses = offset + statusesAt;
    this.#table.bytes.fill(PositionStatus.Miss, statuses, statuses + count);
    return { offset, keysAt: offset + keysAt };
  }
}

function medians(perRound: readonly number[]): number[] {
  return Array.from({ length: Math.ceil(perRound.length / LISTS) }, (_, i) =>
    median(perRound.slice(i * LISTS, (i + 1) * LISTS)),
  );
}

/** `npm run bench -- --only match` */
export const matchBench: Section = {
  group: 'match',
  title: 'match and pin in the index',
  goals: ['index.1m.matchPinNs', 'index.10mVs64k', 'index.bytesPerSlot'],
  prefixes: ['index.'],
  run({ isQuick, rows }) {
    const rounds = isQuick ? 5 * LISTS : 40 * LISTS;
    const small = new FullIndex(65_536);
    const smallNs = small.measure(rounds, 0);
    rows.measured('index.64k.matchPinNs', medians(smallNs.matchNs), 'ns/key');
    rows.measured('index.64k.releaseNs', medians(smallNs.releaseNs), 'ns/key');
    const large = new FullIndex(1_000_000);
    const hits = large.measure(rounds, 0);
    rows.measured('index.1m.matchPinNs', medians(hits.matchNs));
    // The first match after each drawing: caches and page tables as other work has left them.
    const cold = hits.matchNs.filter((_ns, round) => round % LISTS === 0);
    rows.measured('index.1m.coldMatchPinNs', cold, 'ns/key');
    rows.measured('index.1m.chainMatchPinNs', medians(large.measure(rounds, 0, 'chain').matchNs), 'ns/key');
    rows.measured('index.1m.releaseNs', medians(hits.releaseNs), 'ns/key');
    rows.measured('index.1m.halfMissedNs', medians(large.measure(rounds, 0.5).matchNs), 'ns/key');
    rows.measured('index.1m.allMissedNs', medians(large.measure(rounds, 1).matchNs), 'ns/key');
    for (const [name, index] of [
      ['64k', small],
      ['1m', large],
    ] as const) {
      rows.measured(
        `index.${name}.javascript.matchPinNs`,
        medians(index.measureReference(rounds / 5)),
        'ns/key',
      );
    }
    rows.figure('index.bytesPerSlot', large.layout.controlBytes / large.layout.numBlocks);
    if (isQuick) {
      rows.skip('index.10mVs64k', 'left out of --quick');
      return;
    }
    const huge = new FullIndex(10_000_000);
    const hugeNs: number[] = [];
    const pairs: number[] = [];
    for (let i = 0; i < 7; i++) {
      const high = median(huge.measure(rounds / 10, 0).matchNs);
      hugeNs.push(high);
      pairs.push(high / median(small.measure(rounds / 10, 0).matchNs));
    }
    rows.measured('index.10m.matchPinNs', hugeNs, 'ns/key');
    rows.measured('index.10mVs64k', pairs);
  },
};
