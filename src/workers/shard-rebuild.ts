// A shard made anew from its slot records: its worker has died, or the pool was another process's.

import type { ExtentMemory } from '../shared/extent.js';
import {
  HASH_WORDS,
  RECORD_KEY,
  RECORD_KEY_LENGTH,
  firstSlotOfShard,
  recordOffset,
  workerScratch,
} from '../shared/layout.js';
import { REBUILD_BATCH_KEYS, RebuildMode } from '../shared/operations.js';
import {
  MAX_VISITED,
  NO_SLOT,
  Phase,
  type SlotTable,
  generationOf,
  phaseOf,
  visitedOf,
} from '../shared/slot-state.js';
import type { EvictionPolicy } from './eviction.js';
import { type HashKeys, NO_ENTRY, type ShardIndex } from './shard-index.js';
import type { SlotPhases } from './slot-phases.js';

export interface RebuildParts {
  readonly table: SlotTable;
  readonly memory: ExtentMemory;
  readonly shard: number;
  readonly hashKeys: HashKeys;
  readonly index: ShardIndex;
  readonly phases: SlotPhases;
  readonly policy: EvictionPolicy;
  /** READY without pins -> FREE, not on the free list yet. */
  readonly evict: (slot: number) => boolean;
}

/** @param extent working space of REBUILD_BATCH_KEYS packed keys */
export function rebuildShard(parts: RebuildParts, extent: number, mode: RebuildMode): void {
  const { table, shard, index, phases, policy } = parts;
  const firstSlot = firstSlotOfShard(table.layout, shard);
  const kept = new Int32Array(REBUILD_BATCH_KEYS);
  let count = 0;
  index.clear();
  phases.clear();
  policy.clear();
  for (let slot = firstSlot + table.layout.slotsPerShard - 1; slot >= firstSlot; slot -= 1) {
    if (!keepSlot(table, phases, slot, mode)) {
      policy.forget(slot);
      continue;
    }
    policy.adopt(slot);
    kept[count] = slot;
    count += 1;
    if (count === REBUILD_BATCH_KEYS) {
      indexBatch(parts, extent, kept, count);
      count = 0;
    }
  }
  if (count > 0) indexBatch(parts, extent, kept, count);
}

/** @returns whether the slot goes into the index */
function keepSlot(table: SlotTable, phases: SlotPhases, slot: number, mode: RebuildMode): boolean {
  const state = table.state(slot);
  const phase = phaseOf(state);
  const generation = generationOf(state);
  const isClaimed = mode === RebuildMode.Replaced && visitedOf(state) === MAX_VISITED;
  switch (phase) {
    case Phase.Ready: {
      const length = table.bytes[recordOffset(table.layout, slot) + RECORD_KEY_LENGTH];
      if (length !== table.layout.keyBytes) break;
      if (mode === RebuildMode.Adopted) phases.keep(slot, phase, generation);
      return true;
    }
    case Phase.Writing:
      if (!isClaimed) break;
      phases.keep(slot, phase, generation);
      return true;
    case Phase.Quarantined:
      if (!isClaimed) break;
      phases.keep(slot, phase, generation);
      return false;
    case Phase.Free:
      phases.pushFree(slot);
      return false;
  }
  phases.free(slot, generation);
  return false;
}

/** Puts the slots back into the index, by the keys of their records. */
function indexBatch(parts: RebuildParts, extent: number, slots: Int32Array, count: number): void {
  const { table, memory, shard, hashKeys, index, phases, evict } = parts;
  const { layout, bytes, words } = table;
  const { keyBytes } = layout;
  const keys = memory.keysAt(extent);
  for (let j = 0; j < count; j += 1) {
    const key = recordOffset(layout, slots[j]) + RECORD_KEY;
    bytes.copyWithin(keys + j * keyBytes, key, key + keyBytes);
  }
  hashKeys(extent, 0, count);
  const scratchWord = workerScratch(layout, shard) / 4;
  for (let j = 0; j < count; j += 1) {
    const slot = slots[j];
    const hash = scratchWord + j * HASH_WORDS;
    const isHome = words[hash] === shard;
    const isTwice = index.find(hash, keys + j * keyBytes) !== NO_SLOT;
    const entry = isHome && !isTwice ? index.emptyEntry(hash) : NO_ENTRY;
    index.link(slot, entry);
    if (entry === NO_ENTRY) {
      // Not findable any more: gone at once when nobody holds it, otherwise when the pins go and the hand comes by.
      if (evict(slot)) phases.pushFree(slot);
      continue;
    }
    index.enter(entry, hash, slot);
  }
}
