// Leases: the pins that lookups of one peer hold on slots. Each has an owner, a deadline and exactly one release.
//
//     match done ---> add(round) ---> lease of the round ---> take() by its fetch ---> giveBack() when the write ended
//                                          |
//                                          +--- drop(): aborted, finished, lapsed (leaseMs after the last answer), session end

import type { ShardClient, SlotSet } from '../shards/shard-client.js';
import { Deadlines } from './deadlines.js';
import type { Round } from './producer-rounds.js';
import type { PinAccount } from './roles.js';

export interface LeasesOptions {
  readonly shards: Pick<ShardClient, 'release'>;
  readonly account: PinAccount;
  readonly leaseMs: number;
  readonly wakeAt: (timeMs: number) => void;
  /** The lease's pins went because nobody fetched them in time. */
  readonly onLapsed: (round: Round, nowMs: number) => void;
}

export class Leases {
  readonly #options: LeasesOptions;
  readonly #deadlines: Deadlines<Round>;
  /** Every set whose pins are charged to the peer, taken over by writes or not. */
  readonly #sets = new Set<SlotSet>();
  /** Matches that read the sets (to count slots once); a set that is given back meanwhile waits for them. */
  #readerCount = 0;
  #waiting: SlotSet[] = [];
  #leaseCount = 0;
  #pinCount = 0;

  constructor(options: LeasesOptions) {
    this.#options = options;
    this.#deadlines = new Deadlines(options.wakeAt);
  }

  /** Rounds that hold pins and were not fetched. */
  get leaseCount(): number {
    return this.#leaseCount;
  }

  /** Pins charged to the peer, also those under a write. */
  get pinCount(): number {
    return this.#pinCount;
  }

  get nextMs(): number {
    return this.#deadlines.nextMs;
  }

  /** The pins of a match belong to the round from here on. */
  add(round: Round, set: SlotSet): void {
    this.#sets.add(set);
    this.#pinCount += set.pinnedCount;
    if (round.sets.length === 0) this.#leaseCount += 1;
    round.sets.push(set);
  }

  /** The deadline of a lease runs from the last answer, and not while another answer is to come. */
  onAnswered(round: Round, nowMs: number): void {
    if (round.sets.length > 0 && round.lookups.length === 0) {
      this.#deadlines.set(round, nowMs + this.#options.leaseMs);
    }
  }

  onLookup(round: Round): void {
    if (round.sets.length > 0) this.#deadlines.delete(round);
  }

  /** Hands the sets of a round over; the new owner gives them back. */
  take(round: Round): readonly SlotSet[] {
    const { sets } = round;
    if (sets.length === 0) return sets;
    round.sets = [];
    this.#leaseCount -= 1;
    this.#deadlines.delete(round);
    return sets;
  }

  giveBack(sets: readonly SlotSet[]): void {
    for (const set of sets) {
      if (this.#readerCount > 0) this.#waiting.push(set);
      else this.#release(set);
    }
  }

  drop(round: Round): void {
    this.giveBack(this.take(round));
  }

  /** All sets, for a match that counts each slot once; they stay until endRead(). */
  beginRead(): readonly SlotSet[] {
    this.#readerCount += 1;
    return [...this.#sets];
  }

  endRead(): void {
    this.#readerCount -= 1;
    if (this.#readerCount > 0) return;
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const set of waiting) this.#release(set);
  }

  tick(nowMs: number): void {
    this.#deadlines.expire(nowMs, (round) => {
      this.drop(round);
      this.#options.onLapsed(round, nowMs);
    });
  }

  #release(set: SlotSet): void {
    const { pinnedCount, count } = set;
    this.#sets.delete(set);
    this.#pinCount -= pinnedCount;
    this.#options.shards.release(set);
    this.#options.account.give(pinnedCount, count);
  }
}
