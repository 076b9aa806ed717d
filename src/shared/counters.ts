// Counters in the control mapping: each worker writes its own block, main reads and sums them.

import type { Layout } from './layout.js';
import { COUNTERS_PER_WORKER } from './layout.js';

/** Counters of one worker. Append only; at most COUNTERS_PER_WORKER. */
export const Counter = {
  MatchedKeys: 0,
  HitKeys: 1,
  PendingKeys: 2,
  Reservations: 3,
  Publications: 4,
  Evictions: 5,
  /** A key found both its buckets full and one of their sixteen blocks made room. */
  BucketEvictions: 6,
  PoolFull: 7,
  BlocksServed: 8,
  BytesServed: 9,
  WritePosts: 10,
  WritesFailed: 11,
  /** Writes that were cut by a hard stop. */
  WritesCut: 12,
  WritesReposted: 13,
  HardStops: 14,
  AgentsRetired: 15,
  PeersLoaded: 16,
  BytesCopied: 17,
  ChecksumMismatches: 18,
  Faults: 19,
  Wakes: 20,
  Sleeps: 21,
  /** Gauges: what the worker has now. */
  FreeSlots: 22,
  WritingSlots: 23,
  QuarantinedSlots: 24,
  OpenWrites: 25,
  /** Of serves, from their first post to their last end; not a gauge. */
  WritingMs: 26,
} as const;
export type Counter = (typeof Counter)[keyof typeof Counter];

/**
 * The block of one worker. A counter is a float64: exact to 2^53, one aligned 8-byte store on every platform Node runs
 * on, and without the BigInt that a 64-bit Atomics call would allocate. Only one thread writes it.
 */
export class WorkerCounters {
  readonly #values: Float64Array;

  constructor(control: SharedArrayBuffer, layout: Layout, worker: number) {
    const offset = layout.countersOffset + worker * COUNTERS_PER_WORKER * 8;
    this.#values = new Float64Array(control, offset, COUNTERS_PER_WORKER);
  }

  add(counter: Counter, count: number): void {
    this.#values[counter] += count;
  }

  set(counter: Counter, value: number): void {
    this.#values[counter] = value;
  }

  get(counter: Counter): number {
    return this.#values[counter];
  }
}

/** Main's view: sums over all workers. */
export class CounterReader {
  readonly #blocks: readonly WorkerCounters[];

  constructor(control: SharedArrayBuffer, layout: Layout) {
    this.#blocks = Array.from(
      { length: layout.shardCount },
      (_, worker) => new WorkerCounters(control, layout, worker),
    );
  }

  total(counter: Counter): number {
    let sum = 0;
    for (const block of this.#blocks) sum += block.get(counter);
    return sum;
  }

  of(worker: number, counter: Counter): number {
    return this.#blocks[worker].get(counter);
  }
}
