// The index of a shard as its owner writes it: which slot has a key, by two candidate buckets of eight entries each.

import {
  BUCKET_BYTES,
  BUCKET_ENTRIES,
  RECORD_CHAIN_POSITION,
  RECORD_LINK_A,
  recordOffset,
} from '../shared/layout.js';
import { NO_SLOT, Phase, type SlotTable, phaseOf, pinsOf } from '../shared/slot-state.js';

/** Hashes keys of an extent into the worker's scratch area (native `hashKeys`): HASH_WORDS words per key. */
export type HashKeys = (extent: number, first: number, count: number) => void;

/** No entry: an entry is the index of its first word, tag, in the control mapping's words; slot + 1 follows. */
export const NO_ENTRY = -1;

/** A key's place is where its HASH_WORDS begin in `words`: shard, the two buckets, tag, as hashKeys writes them. */
export class ShardIndex {
  private readonly table: SlotTable;
  private readonly words: Int32Array;
  /** Index in `words` of the shard's first bucket. */
  private readonly firstWord: number;

  constructor(table: SlotTable, shard: number) {
    const { layout } = table;
    this.table = table;
    this.words = table.words;
    this.firstWord = (layout.indexOffset + shard * layout.bucketsPerShard * BUCKET_BYTES) / 4;
  }

  /** Nothing is found any more. */
  clear(): void {
    const wordCount = this.table.layout.bucketsPerShard * (BUCKET_BYTES / 4);
    this.words.fill(0, this.firstWord, this.firstWord + wordCount);
  }

  /** The slot that has this key, READY or WRITING, or NO_SLOT. Only the owner may look without a pin. */
  find(hash: number, keyAt: number): number {
    const tag = this.words[hash + 3];
    const slot = this.findIn(this.bucketWord(this.words[hash + 1]), tag, keyAt);
    return slot === NO_SLOT ? this.findIn(this.bucketWord(this.words[hash + 2]), tag, keyAt) : slot;
  }

  private findIn(bucket: number, tag: number, keyAt: number): number {
    for (let entry = bucket; entry < bucket + 2 * BUCKET_ENTRIES; entry += 2) {
      const slot = this.words[entry + 1] - 1;
      if (slot >= 0 && this.words[entry] === tag && this.table.keyEquals(slot, this.table.bytes, keyAt)) {
        return slot;
      }
    }
    return NO_SLOT;
  }

  /** An empty entry in the emptier of the key's two buckets, or NO_ENTRY. */
  emptyEntry(hash: number): number {
    const bucketA = this.bucketWord(this.words[hash + 1]);
    const bucketB = this.bucketWord(this.words[hash + 2]);
    let entry = NO_ENTRY;
    let most = 0;
    for (const bucket of bucketA === bucketB ? [bucketA] : [bucketA, bucketB]) {
      let empty = 0;
      let last = NO_ENTRY;
      for (let e = bucket; e < bucket + 2 * BUCKET_ENTRIES; e += 2) {
        if (this.words[e + 1] !== 0) continue;
        empty += 1;
        last = e;
      }
      if (empty > most) {
        most = empty;
        entry = last;
      }
    }
    return entry;
  }

  /** Of the blocks in the key's two buckets, which are full, the deepest that is READY without pins, or NO_SLOT. */
  deepestUnpinned(hash: number): number {
    let victim = NO_SLOT;
    let deepest = -1;
    for (const bucket of [this.bucketWord(this.words[hash + 1]), this.bucketWord(this.words[hash + 2])]) {
      for (let e = bucket; e < bucket + 2 * BUCKET_ENTRIES; e += 2) {
        const slot = this.words[e + 1] - 1;
        const state = this.table.state(slot);
        if (phaseOf(state) !== Phase.Ready || pinsOf(state) > 0) continue;
        const depth = this.table.bytes[recordOffset(this.table.layout, slot) + RECORD_CHAIN_POSITION];
        if (depth <= deepest) continue;
        deepest = depth;
        victim = slot;
      }
    }
    return victim;
  }

  /** Notes in the slot's record which entry is its own, or that it has none. */
  link(slot: number, entry: number): void {
    this.words[this.linkWord(slot)] = entry === NO_ENTRY ? 0 : entry - this.firstWord + 1;
  }

  /** The key's slot is found from now on; it was linked to the entry before. */
  enter(entry: number, hash: number, slot: number): void {
    this.words[entry] = this.words[hash + 3];
    Atomics.store(this.words, entry + 1, slot + 1);
  }

  /** The tag that the slot is found by; undefined when it has no entry. */
  tagOf(slot: number): number | undefined {
    const entry = this.entryOf(slot);
    return entry === NO_ENTRY ? undefined : this.words[entry];
  }

  /** The slot is not found any more. */
  remove(slot: number): void {
    const entry = this.entryOf(slot);
    if (entry !== NO_ENTRY) Atomics.store(this.words, entry + 1, 0);
    this.words[this.linkWord(slot)] = 0;
  }

  private entryOf(slot: number): number {
    const link = this.words[this.linkWord(slot)];
    const entry = this.firstWord + link - 1;
    return link > 0 && this.words[entry + 1] === slot + 1 ? entry : NO_ENTRY;
  }

  private linkWord(slot: number): number {
    return (recordOffset(this.table.layout, slot) + RECORD_LINK_A) / 4;
  }

  private bucketWord(bucket: number): number {
    return this.firstWord + bucket * (BUCKET_BYTES / 4);
  }
}
