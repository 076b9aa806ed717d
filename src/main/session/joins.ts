// Waiting for blocks that another load or store of this node is writing.

import { PositionStatus } from '../../shared/operations.js';
import type { ShardClient, SlotSet } from '../shards/shard-client.js';
import type { Joins } from './roles.js';

interface Waiter {
  readonly slots: readonly number[];
  readonly generations: readonly number[];
  readonly deadlineMs: number;
  readonly done: () => void;
}

/**
 * One list of waiters for the node, looked at when anything settles: joins are rare and short. The state word is asked
 * for each slot, so it does not matter in which order the completions of different workers arrive.
 */
export class SettleWaiters implements Joins {
  readonly #shards: Pick<ShardClient, 'isStillWriting'>;
  readonly #wakeAt: (timeMs: number) => void;
  #waiters: Waiter[] = [];

  constructor(shards: Pick<ShardClient, 'isStillWriting'>, wakeAt: (timeMs: number) => void) {
    this.#shards = shards;
    this.#wakeAt = wakeAt;
  }

  get waitingCount(): number {
    return this.#waiters.length;
  }

  waitSettled(set: SlotSet, deadlineMs: number, done: () => void): void {
    const slots: number[] = [];
    const generations: number[] = [];
    const { statuses } = set;
    for (let i = 0; i < set.count; i++) {
      if (statuses[i] !== PositionStatus.Pending) continue;
      slots.push(set.slots[i]);
      generations.push(set.generations[i]);
    }
    const waiter = { slots, generations, deadlineMs, done };
    if (this.#isSettled(waiter)) {
      done();
      return;
    }
    this.#waiters.push(waiter);
    this.#wakeAt(deadlineMs);
  }

  /** Something was published or abandoned. */
  onSettled(): void {
    this.#finish((waiter) => this.#isSettled(waiter));
  }

  tick(nowMs: number): void {
    this.#finish((waiter) => nowMs >= waiter.deadlineMs);
  }

  #finish(isOver: (waiter: Waiter) => boolean): void {
    if (this.#waiters.length === 0) return;
    const over = this.#waiters.filter(isOver);
    if (over.length === 0) return;
    this.#waiters = this.#waiters.filter((waiter) => !over.includes(waiter));
    for (const waiter of over) waiter.done();
  }

  #isSettled(waiter: Waiter): boolean {
    return waiter.slots.every((slot, i) => !this.#shards.isStillWriting(slot, waiter.generations[i]));
  }
}
