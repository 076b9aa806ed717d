// The owner's side of a shard: find-or-insert, publish, abandon, evict, rebuild. One worker runs this for its shard.

/*
 * Order of stores (design: memory). A slot becomes findable last and stops being findable first:
 *
 *     reserve   key, chain position, link  ->  WRITING  ->  entry's tag  ->  entry's slot  ->  slot and status in the extent
 *     publish   WRITING -> READY (one store, with the pin when there is one)  ->  status in the extent
 *     abandon   entry's slot = 0  ->  FREE, generation + 1 (or QUARANTINED)   ->  status in the extent
 *     evict     READY without pins -> FREE, generation + 1 (one compare-and-swap)  ->  entry's slot = 0  ->  free list
 *
 * The status in the extent comes last, so a thread that dies in the middle leaves a position that still asks for the
 * step. publish, abandon and unquarantine can be run again on the same extent and do only what is left.
 */

import { Counter, type WorkerCounters } from '../shared/counters.js';
import { ExtentMemory } from '../shared/extent.js';
import {
  BUCKET_ENTRIES,
  HASH_WORDS,
  RECORD_CHAIN_POSITION,
  RECORD_KEY,
  RECORD_CHECKSUM,
  RECORD_KEY_LENGTH,
  SCRATCH_BYTES,
  firstSlotOfShard,
  recordOffset,
  workerScratch,
} from '../shared/layout.js';
import type { ResidencyMarker } from '../shared/residency-marks.js';
import { ExtentWord, PositionStatus, type RebuildMode } from '../shared/operations.js';
import { NO_SLOT, Phase, type SlotTable, generationOf, phaseOf } from '../shared/slot-state.js';
import { EvictionHistory } from './eviction-history.js';
import { type EvictionPolicy, ReusePolicy, type ScanBudget } from './eviction.js';
import { type HashKeys, NO_ENTRY, ShardIndex } from './shard-index.js';
import { rebuildShard } from './shard-rebuild.js';
import { SlotPhases } from './slot-phases.js';

/** Keys that fit the scratch area at once. */
const BATCH_KEYS = SCRATCH_BYTES / (HASH_WORDS * 4);
/** Slots looked at for eviction in one operation, at most this many and this many more per key. */
const SCAN_PER_OPERATION = 65_536;
const SCAN_PER_KEY = 64;
const MAX_CHAIN_POSITION = 255;

export class ShardSlots {
  readonly firstSlot: number;
  readonly slotCount: number;
  private readonly shard: number;
  private readonly table: SlotTable;
  private readonly memory: ExtentMemory;
  private readonly words: Int32Array;
  private readonly bytes: Uint8Array;
  private readonly keyBytes: number;
  private readonly counters: WorkerCounters;
  private readonly hashKeys: HashKeys;
  private readonly policy: EvictionPolicy;
  private readonly history: EvictionHistory;
  private readonly index: ShardIndex;
  private readonly phases: SlotPhases;
  /** Told of every slot whose block came or went; undefined when nobody publishes it. */
  private readonly residency: ResidencyMarker | undefined;
  /** Index in `words` of the first word that hashKeys writes. */
  private readonly scratchWord: number;

  private readonly missing = new Int32Array(BATCH_KEYS);
  private readonly taken = new Int32Array(BATCH_KEYS);
  /** Slots that the positions in `missing` were given, or NO_SLOT. */
  private readonly given = new Int32Array(BATCH_KEYS);

  constructor(
    table: SlotTable,
    memory: ExtentMemory,
    shard: number,
    counters: WorkerCounters,
    hashKeys: HashKeys,
    policy?: EvictionPolicy,
    residency?: ResidencyMarker,
  ) {
    const { layout } = table;
    this.table = table;
    this.memory = memory;
    this.words = table.words;
    this.bytes = table.bytes;
    this.shard = shard;
    this.keyBytes = layout.keyBytes;
    this.counters = counters;
    this.hashKeys = hashKeys;
    this.firstSlot = firstSlotOfShard(layout, shard);
    this.slotCount = layout.slotsPerShard;
    this.history = new EvictionHistory(table.words.buffer, layout, shard);
    this.policy = policy ?? new ReusePolicy(table, this.history, this.firstSlot, this.slotCount);
    this.residency = residency;
    this.scratchWord = workerScratch(layout, shard) / 4;
    this.index = new ShardIndex(table, shard);
    this.phases = new SlotPhases(table, shard);
    this.reportGauges();
  }

  /**
   * Inserts every key of this shard whose status is Miss (a native match has pinned what is READY before): Reserved,
   * Pending when it is being written, or Full.
   *
   * @param chainStart chain position of key 0
   */
  reserve(extent: number, chainStart: number): void {
    const count = this.memory.header(extent, ExtentWord.Count);
    const budget: ScanBudget = { left: SCAN_PER_OPERATION + SCAN_PER_KEY * count };
    for (let first = 0; first < count; first += BATCH_KEYS) {
      this.reserveBatch(extent, first, Math.min(BATCH_KEYS, count - first), chainStart, budget);
    }
    this.reportGauges();
  }

  private reserveBatch(
    extent: number,
    first: number,
    count: number,
    chainStart: number,
    budget: ScanBudget,
  ): void {
    const statuses = this.memory.statusesAt(extent) + first;
    this.hashKeys(extent, first, count);
    let missing = 0;
    for (let i = 0; i < count; i += 1) {
      if (
        this.bytes[statuses + i] === PositionStatus.Miss &&
        this.words[this.scratchWord + i * HASH_WORDS] === this.shard
      ) {
        this.missing[missing] = i;
        missing += 1;
      }
    }
    const knownCount = missing === 0 ? 0 : this.countKnown(statuses, count);
    let taken = 0;
    while (taken < missing) {
      const slot = this.takeSlot(budget);
      if (slot === NO_SLOT) break;
      this.taken[taken] = slot;
      taken += 1;
    }
    for (let j = 0; j < missing; j += 1) {
      const i = this.missing[j];
      const slot = taken === 0 ? NO_SLOT : this.taken[taken - 1];
      const hash = this.scratchWord + i * HASH_WORDS;
      const used = this.reserveOne(extent, first + i, hash, chainStart, slot, budget);
      this.given[j] = used ? slot : NO_SLOT;
      if (used) taken -= 1;
    }
    const last = this.memory.header(extent, ExtentWord.Count) - 1;
    for (let j = missing - 1; j >= 0; j -= 1) {
      if (this.given[j] === NO_SLOT) continue;
      const i = this.missing[j];
      const tag = this.words[this.scratchWord + i * HASH_WORDS + 3];
      this.policy.admit(this.given[j], tag, i < knownCount, first + i === last);
    }
    while (taken > 0) {
      taken -= 1;
      this.phases.pushFree(this.taken[taken]);
    }
  }

  /**
   * How many keys of a batch, from its first, were here before. A key names its whole prefix, so the last one that any
   * shard remembers speaks for all before it, and, unless a list ended there, for those behind it up to the next that
   * would be remembered.
   */
  private countKnown(statuses: number, count: number): number {
    // Nothing is forgotten before the shard was full once.
    if (!this.phases.wasFull()) return 0;
    let known = 0;
    let nextTraced = count;
    for (let i = count - 1; i >= 0; i -= 1) {
      const hash = this.scratchWord + i * HASH_WORDS;
      const tag = this.words[hash + 3];
      const isOwn = this.words[hash] === this.shard;
      if (this.bytes[statuses + i] === PositionStatus.Miss || !isOwn) {
        if (known === 0) {
          const memory = this.history.recall(this.words[hash], tag);
          if (memory !== 'unknown') known = memory === 'tail' ? i + 1 : nextTraced;
        }
        if (isOwn) this.history.noteReturn(tag);
      }
      if (this.history.isTraced(tag)) nextTraced = i;
    }
    return known;
  }

  /** @returns whether `slot` was used */
  private reserveOne(
    extent: number,
    position: number,
    hash: number,
    chainStart: number,
    slot: number,
    budget: ScanBudget,
  ): boolean {
    const keyAt = this.memory.keysAt(extent) + position * this.memory.header(extent, ExtentWord.KeyStride);
    const found = this.index.find(hash, keyAt);
    if (found !== NO_SLOT) {
      this.joinFound(extent, position, found);
      return false;
    }
    const entry = slot === NO_SLOT ? NO_ENTRY : this.roomFor(hash, budget);
    if (entry === NO_ENTRY) {
      this.counters.add(Counter.PoolFull, 1);
      this.answer(extent, position, PositionStatus.Full, NO_SLOT, 0);
      return false;
    }
    const record = recordOffset(this.table.layout, slot);
    this.bytes.copyWithin(record + RECORD_KEY, keyAt, keyAt + this.keyBytes);
    this.bytes[record + RECORD_KEY_LENGTH] = this.keyBytes;
    // The checksum of the slot's last block is not this one's.
    this.words[(record + RECORD_CHECKSUM) / 4] = 0;
    this.words[(record + RECORD_CHECKSUM) / 4 + 1] = 0;
    this.bytes[record + RECORD_CHAIN_POSITION] = Math.min(MAX_CHAIN_POSITION, chainStart + position);
    this.index.link(slot, entry);
    const generation = this.phases.reserve(slot);
    this.index.enter(entry, hash, slot);
    this.counters.add(Counter.Reservations, 1);
    this.answer(extent, position, PositionStatus.Reserved, slot, generation);
    return true;
  }

  /**
   * A key that is here although the native match did not pin it: being written by somebody (maybe by an earlier
   * position of this list), or READY with all 4095 pins taken. Pins are taken by native calls only, which cannot be
   * torn by this thread's death, so the latter has no slot for this caller.
   */
  private joinFound(extent: number, position: number, slot: number): void {
    const state = this.table.state(slot);
    if (phaseOf(state) === Phase.Writing) {
      this.answer(extent, position, PositionStatus.Pending, slot, generationOf(state));
    } else {
      this.answer(extent, position, PositionStatus.Full, NO_SLOT, 0);
    }
  }

  /** Reserved positions of this shard become READY. @param keepPins with one pin each: Pinned instead of Found */
  publish(extent: number, keepPins: boolean, dropUnwritten = false): void {
    const status = keepPins ? PositionStatus.Pinned : PositionStatus.Found;
    let published = 0;
    this.forOwn(extent, PositionStatus.Reserved, status, (slot, generation) => {
      if (!this.phases.isIn(slot, Phase.Writing, generation)) return;
      this.phases.publish(slot, generation, keepPins ? 1 : 0);
      this.residency?.mark(slot);
      published += 1;
    });
    this.counters.add(Counter.Publications, published);
    if (dropUnwritten) this.giveUp(extent, PositionStatus.Unwritten, false);
    this.reportGauges();
  }

  /** Reserved (or Damaged, or Unwritten) positions of this shard become FREE, or QUARANTINED and stay the extent's. */
  abandon(extent: number, toQuarantine: boolean): void {
    this.giveUp(extent, PositionStatus.Reserved, toQuarantine);
    this.giveUp(extent, PositionStatus.Damaged, toQuarantine);
    this.giveUp(extent, PositionStatus.Unwritten, toQuarantine);
    this.reportGauges();
  }

  private giveUp(extent: number, from: PositionStatus, toQuarantine: boolean): void {
    const status = toQuarantine ? PositionStatus.Quarantined : PositionStatus.Miss;
    this.forOwn(extent, from, status, (slot, generation) => {
      if (!this.phases.isIn(slot, Phase.Writing, generation)) return;
      this.index.remove(slot);
      this.phases.abandon(slot, generation, toQuarantine);
    });
  }

  /** Quarantined positions of this shard become FREE. */
  unquarantine(extent: number): void {
    this.forOwn(extent, PositionStatus.Quarantined, PositionStatus.Miss, (slot, generation) => {
      if (!this.phases.isIn(slot, Phase.Quarantined, generation)) return;
      this.phases.unquarantine(slot, generation);
    });
    this.reportGauges();
  }

  /** Evicts the READY, unpinned blocks of these keys; their positions become Found. */
  evictKeys(extent: number): void {
    const count = this.memory.header(extent, ExtentWord.Count);
    const statuses = this.memory.statusesAt(extent);
    const keys = this.memory.keysAt(extent);
    const stride = this.memory.header(extent, ExtentWord.KeyStride);
    for (let first = 0; first < count; first += BATCH_KEYS) {
      const batch = Math.min(BATCH_KEYS, count - first);
      this.hashKeys(extent, first, batch);
      for (let i = 0; i < batch; i += 1) {
        const hash = this.scratchWord + i * HASH_WORDS;
        const position = first + i;
        if (this.words[hash] !== this.shard) continue;
        if (this.bytes[statuses + position] === PositionStatus.Skip) continue;
        const slot = this.index.find(hash, keys + position * stride);
        const isEvicted = slot !== NO_SLOT && this.evict(slot);
        if (isEvicted) this.phases.pushFree(slot);
        this.bytes[statuses + position] = isEvicted ? PositionStatus.Found : PositionStatus.Miss;
      }
    }
    this.reportGauges();
  }

  /**
   * Makes index, free list and gauges anew from the slot records (RebuildMode says what stays).
   *
   * @param extent working space of REBUILD_BATCH_KEYS packed keys
   */
  rebuild(extent: number, mode: RebuildMode): void {
    const { table, memory, shard, hashKeys, index, phases, policy } = this;
    const evict = (slot: number): boolean => this.evict(slot);
    rebuildShard({ table, memory, shard, hashKeys, index, phases, policy, evict }, extent, mode);
    // A predecessor may have died between a change and its mark.
    this.residency?.markAll();
    this.reportGauges();
  }

  // ---- slots

  private takeSlot(budget: ScanBudget): number {
    const free = this.phases.popFree();
    if (free !== NO_SLOT) return free;
    while (budget.left > 0) {
      const slot = this.policy.propose(budget);
      if (slot === NO_SLOT) return NO_SLOT;
      if (this.evict(slot)) return slot;
    }
    return NO_SLOT;
  }

  /** An empty entry; when both buckets are full, the deepest unpinned block of the sixteen makes room. */
  private roomFor(hash: number, budget: ScanBudget): number {
    for (;;) {
      const entry = this.index.emptyEntry(hash);
      if (entry !== NO_ENTRY || budget.left <= 0) return entry;
      budget.left -= 2 * BUCKET_ENTRIES;
      const victim = this.index.deepestUnpinned(hash);
      if (victim === NO_SLOT) return NO_ENTRY;
      if (this.evict(victim)) {
        this.phases.pushFree(victim);
        this.counters.add(Counter.BucketEvictions, 1);
      }
    }
  }

  /** READY without pins -> FREE. False when somebody pinned it meanwhile. */
  private evict(slot: number): boolean {
    if (!this.phases.evict(slot)) return false;
    this.policy.left(slot, this.index.tagOf(slot));
    this.index.remove(slot);
    this.residency?.mark(slot);
    this.counters.add(Counter.Evictions, 1);
    return true;
  }

  // ---- extents

  private answer(
    extent: number,
    position: number,
    status: PositionStatus,
    slot: number,
    generation: number,
  ): void {
    this.words[this.memory.slotsAt(extent) + position] = slot;
    this.memory.halves[this.memory.generationsAt(extent) + position] = generation;
    this.bytes[this.memory.statusesAt(extent) + position] = status;
  }

  /** Runs `step` for positions in this shard with status `from`, which become `to`. */
  private forOwn(
    extent: number,
    from: PositionStatus,
    to: PositionStatus,
    step: (slot: number, generation: number) => void,
  ): void {
    const count = this.memory.header(extent, ExtentWord.Count);
    const statuses = this.memory.statusesAt(extent);
    const slots = this.memory.slotsAt(extent);
    const generations = this.memory.generationsAt(extent);
    for (let i = 0; i < count; i += 1) {
      if (this.bytes[statuses + i] !== from) continue;
      const slot = this.words[slots + i];
      if (slot < this.firstSlot || slot >= this.firstSlot + this.slotCount) continue;
      step(slot, this.memory.halves[generations + i]);
      this.bytes[statuses + i] = to;
    }
  }

  private reportGauges(): void {
    this.counters.set(Counter.FreeSlots, this.phases.freeCount);
    this.counters.set(Counter.WritingSlots, this.phases.writingCount);
    this.counters.set(Counter.QuarantinedSlots, this.phases.quarantinedCount);
  }
}
