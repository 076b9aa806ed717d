// Which block of a shard goes when room is needed: the first of one of two queues, whichever is less likely to be used.

import { RECORD_EVICTION, RECORD_LINK_B, recordOffset } from '../shared/layout.js';
import {
  Phase,
  type SlotTable,
  generationOf,
  packState,
  phaseOf,
  pinsOf,
  visitedOf,
} from '../shared/slot-state.js';
import { type EvictionHistory, Queue, QUEUE_COUNT } from './eviction-history.js';

/** Slots that may still be looked at in one operation: eviction never turns into an unbounded scan. */
export interface ScanBudget {
  left: number;
}

/** A replacement policy of one shard. It proposes; the owner of the slots evicts, and asks again if it could not. */
export interface EvictionPolicy {
  /**
   * A block was given this slot. Blocks of a list come from its end to its start.
   *
   * @param isKnown the block was here before, as far as anybody remembers
   * @param isTail  it is the last block of its list
   */
  admit(slot: number, tag: number, isKnown: boolean, isTail: boolean): void;
  /** A READY slot without pins, as far as could be seen, or -1 when the budget ended before one was found. */
  propose(budget: ScanBudget): number;
  /** The block in this slot was evicted. @param tag of its key; undefined when nobody can tell any more */
  left(slot: number, tag: number | undefined): void;
  /** The queues are made anew: all slots of the shard follow, each with adopt() or forget(). */
  clear(): void;
  adopt(slot: number): void;
  forget(slot: number): void;
}

/** A slot's half word in its record: when it was put in its queue, in ticks modulo 2^11, and these. */
const TICK_MASK = 0x7ff;
const TRACED = 1 << 11;
const TAIL = 1 << 12;
const REGULAR = 1 << 13;
/** It is in a queue: the list that hangs on the first slot, by link B. */
const QUEUED = 1 << 14;
/** It was given to another block while it was in a queue; where it is says nothing of that block. */
const MOVED = 1 << 15;

/**
 * Two queues, of blocks that were used once (newcomers) and of blocks that were used again (regulars). A use sets the
 * visited bit and nothing else, so readers need no lock; a visited block that comes to the front goes to the end of the
 * regulars. Of the two blocks in front the one goes that the history gives the smaller chance. A block that comes back
 * after it was evicted is a regular at once, with all that are before it in its list.
 *
 * A list goes into a queue with its end first: of blocks of one age the head, without which the rest is worthless, goes
 * last. ARCHITECTURE.md has the figures, and what was tried instead.
 */
export class ReusePolicy implements EvictionPolicy {
  readonly #table: SlotTable;
  readonly #history: EvictionHistory;
  readonly #firstSlot: number;
  readonly #slotCount: number;
  readonly #halves: Uint16Array;
  /** Slots at the front and at the end of each queue, or -1. */
  readonly #fronts = new Int32Array(QUEUE_COUNT).fill(-1);
  readonly #ends = new Int32Array(QUEUE_COUNT).fill(-1);
  /** A block that was visited may go all the same when nothing else was found. */
  #fallback = -1;

  constructor(table: SlotTable, history: EvictionHistory, firstSlot: number, slotCount: number) {
    this.#table = table;
    this.#history = history;
    this.#firstSlot = firstSlot;
    this.#slotCount = slotCount;
    this.#halves = new Uint16Array(table.words.buffer, 0, table.layout.controlBytes / 2);
  }

  admit(slot: number, tag: number, isKnown: boolean, isTail: boolean): void {
    this.#history.advance();
    const at = this.#halfOf(slot);
    const flags =
      (this.#history.isTraced(tag) ? TRACED : 0) | (isTail ? TAIL : 0) | (isKnown ? REGULAR : 0) | this.#tick;
    if ((this.#halves[at] & QUEUED) !== 0) {
      this.#halves[at] = flags | QUEUED | MOVED;
      return;
    }
    this.#halves[at] = flags;
    this.#append(slot);
  }

  propose(budget: ScanBudget): number {
    this.#fallback = -1;
    // Every block comes by once with its bit taken away, and once more; further rounds would find nothing new.
    const bounded: ScanBudget = { left: Math.min(budget.left, 2 * this.#slotCount) };
    const before = bounded.left;
    const newcomer = this.#candidate(Queue.Newcomers, bounded);
    const regular = this.#candidate(Queue.Regulars, bounded);
    budget.left -= before - bounded.left;
    if (newcomer < 0 || regular < 0) {
      const only = Math.max(newcomer, regular);
      return only < 0 ? this.#fallback : only;
    }
    return this.#rateOf(newcomer) <= this.#rateOf(regular) ? newcomer : regular;
  }

  left(slot: number, tag: number | undefined): void {
    const half = this.#halves[this.#halfOf(slot)];
    if (tag !== undefined && (half & (TRACED | TAIL)) !== 0) {
      this.#history.remember(tag, queueOf(half), (half & TAIL) !== 0, this.#tickOf(half));
    }
    for (let queue = 0; queue < QUEUE_COUNT; queue += 1) {
      if (this.#fronts[queue] === slot) this.#takeFront(queue);
    }
  }

  clear(): void {
    this.#fronts.fill(-1);
    this.#ends.fill(-1);
  }

  adopt(slot: number): void {
    this.#halves[this.#halfOf(slot)] &= ~(QUEUED | MOVED);
    this.#append(slot);
  }

  forget(slot: number): void {
    this.#halves[this.#halfOf(slot)] = 0;
  }

  #rateOf(slot: number): number {
    const half = this.#halves[this.#halfOf(slot)];
    return this.#history.rateOf(queueOf(half), this.#ageOf(half));
  }

  /** The first block of a queue that could go; what is in use before it goes to the end of its queue. */
  #candidate(queue: number, budget: ScanBudget): number {
    for (;;) {
      const slot = this.#fronts[queue];
      if (slot < 0 || budget.left <= 0) return -1;
      budget.left -= 1;
      const at = this.#halfOf(slot);
      const half = this.#halves[at];
      const state = this.#table.state(slot);
      const phase = phaseOf(state);
      if (phase === Phase.Ready && pinsOf(state) === 0 && visitedOf(state) === 0 && (half & MOVED) === 0) {
        return slot;
      }
      this.#takeFront(queue);
      if (phase === Phase.Free) continue;
      if (phase === Phase.Ready && visitedOf(state) !== 0) {
        if ((half & (TRACED | TAIL)) !== 0) this.#history.noteUse(queueOf(half), this.#ageOf(half));
        this.#halves[at] = (half & (TRACED | TAIL)) | REGULAR | this.#tick;
        if (pinsOf(state) === 0) {
          this.#fallback = slot;
          const cleared = packState(Phase.Ready, generationOf(state), 0, 0);
          // Lost to a pin: the block is in use, and the bit is set again anyway.
          Atomics.compareExchange(this.#table.words, this.#table.stateWord(slot), state, cleared);
        }
      }
      this.#append(slot);
    }
  }

  /** Puts a slot at the end of the queue that its half word names. */
  #append(slot: number): void {
    const at = this.#halfOf(slot);
    this.#halves[at] = (this.#halves[at] & ~MOVED) | QUEUED;
    const queue = queueOf(this.#halves[at]);
    this.#table.words[this.#linkOf(slot)] = 0;
    const end = this.#ends[queue];
    if (end < 0) this.#fronts[queue] = slot;
    else this.#table.words[this.#linkOf(end)] = slot - this.#firstSlot + 1;
    this.#ends[queue] = slot;
  }

  #takeFront(queue: number): void {
    const slot = this.#fronts[queue];
    const link = this.#table.words[this.#linkOf(slot)];
    this.#fronts[queue] = link === 0 ? -1 : this.#firstSlot + link - 1;
    if (link === 0) this.#ends[queue] = -1;
    this.#halves[this.#halfOf(slot)] &= ~(QUEUED | MOVED);
  }

  get #tick(): number {
    return this.#history.tick & TICK_MASK;
  }

  /** Ticks since the block was put in its queue. */
  #ageOf(half: number): number {
    return (this.#tick - half) & TICK_MASK;
  }

  /** The same as a tick of the history. */
  #tickOf(half: number): number {
    return this.#history.tick - this.#ageOf(half);
  }

  #halfOf(slot: number): number {
    return (recordOffset(this.#table.layout, slot) + RECORD_EVICTION) / 2;
  }

  #linkOf(slot: number): number {
    return (recordOffset(this.#table.layout, slot) + RECORD_LINK_B) / 4;
  }
}

function queueOf(half: number): Queue {
  return (half & REGULAR) === 0 ? Queue.Newcomers : Queue.Regulars;
}
