// The phases of a shard's slots as their owner changes them: state words, the free list, and how many are in which.

/*
 *     FREE --reserve--> WRITING --publish--> READY --evict--> FREE
 *                          |----abandon----> FREE, or QUARANTINED --unquarantine--> FREE
 *
 * A slot that becomes FREE has the next generation. What evict() frees is its caller's: it uses it, or pushes it.
 */

import { firstSlotOfShard } from '../shared/layout.js';
import {
  GENERATION_COUNT,
  NO_SLOT,
  Phase,
  type SlotTable,
  generationOf,
  packState,
  phaseOf,
  pinsOf,
} from '../shared/slot-state.js';

export class SlotPhases {
  private readonly table: SlotTable;
  private readonly firstSlot: number;
  private readonly slotCount: number;
  /** Free slots that were used before; those from `untouched` on never were, and their memory is not touched yet. */
  private readonly freeStack: Int32Array;
  private stackedCount = 0;
  private untouched = 0;
  private writing = 0;
  private quarantined = 0;

  /** All slots are free and were never used, until clear() says otherwise. */
  constructor(table: SlotTable, shard: number) {
    this.table = table;
    this.firstSlot = firstSlotOfShard(table.layout, shard);
    this.slotCount = table.layout.slotsPerShard;
    this.freeStack = new Int32Array(this.slotCount);
  }

  get freeCount(): number {
    return this.stackedCount + this.slotCount - this.untouched;
  }

  get writingCount(): number {
    return this.writing;
  }

  get quarantinedCount(): number {
    return this.quarantined;
  }

  /** Whether every slot was used at some time. */
  wasFull(): boolean {
    return this.untouched >= this.slotCount;
  }

  isIn(slot: number, phase: Phase, generation: number): boolean {
    const state = this.table.state(slot);
    return phaseOf(state) === phase && generationOf(state) === generation;
  }

  // ---- the free list

  /** A FREE slot, taken from the list, or NO_SLOT. */
  popFree(): number {
    if (this.stackedCount > 0) {
      this.stackedCount -= 1;
      return this.freeStack[this.stackedCount];
    }
    if (this.untouched < this.slotCount) {
      this.untouched += 1;
      return this.firstSlot + this.untouched - 1;
    }
    return NO_SLOT;
  }

  /** A FREE slot that is not on the list. */
  pushFree(slot: number): void {
    this.freeStack[this.stackedCount] = slot;
    this.stackedCount += 1;
  }

  // ---- transitions

  /** @returns the generation of the reservation */
  reserve(slot: number): number {
    const generation = generationOf(this.table.state(slot));
    this.store(slot, Phase.Writing, generation, 0);
    this.writing += 1;
    return generation;
  }

  publish(slot: number, generation: number, pins: number): void {
    this.store(slot, Phase.Ready, generation, pins);
    this.writing -= 1;
  }

  abandon(slot: number, generation: number, toQuarantine: boolean): void {
    this.writing -= 1;
    if (toQuarantine) {
      this.store(slot, Phase.Quarantined, generation, 0);
      this.quarantined += 1;
    } else {
      this.free(slot, generation);
    }
  }

  unquarantine(slot: number, generation: number): void {
    this.quarantined -= 1;
    this.free(slot, generation);
  }

  /** READY without pins -> FREE. False when it is not, or somebody pinned it meanwhile. */
  evict(slot: number): boolean {
    const state = this.table.state(slot);
    if (phaseOf(state) !== Phase.Ready || pinsOf(state) > 0) return false;
    const next = packState(Phase.Free, (generationOf(state) + 1) % GENERATION_COUNT, 0, 0);
    return Atomics.compareExchange(this.table.words, this.table.stateWord(slot), state, next) === state;
  }

  // ---- rebuild

  /** Counts from nothing: every slot is then kept, freed, pushed to the list, or left READY as it is. */
  clear(): void {
    this.stackedCount = 0;
    this.untouched = this.slotCount;
    this.writing = 0;
    this.quarantined = 0;
  }

  /** The slot stays in its phase, without pins and visited bits. */
  keep(slot: number, phase: Phase, generation: number): void {
    this.store(slot, phase, generation, 0);
    if (phase === Phase.Writing) this.writing += 1;
    else if (phase === Phase.Quarantined) this.quarantined += 1;
  }

  /** The slot becomes FREE and goes to the list. */
  free(slot: number, generation: number): void {
    this.store(slot, Phase.Free, (generation + 1) % GENERATION_COUNT, 0);
    this.pushFree(slot);
  }

  private store(slot: number, phase: Phase, generation: number, pins: number): void {
    Atomics.store(this.table.words, this.table.stateWord(slot), packState(phase, generation, 0, pins));
  }
}
