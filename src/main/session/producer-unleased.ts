// Fetches that rest on no lease and wait for nothing: what is READY now is pinned, within the limits of lookups, and
// written.
//
//     fetch with if_held, or one whose lease has lapsed ---> match, pin ---> written ---> result, pins go
//                                                                 |
//                                     misses, pending, over a limit: not written

import type { FetchMessage } from '../protocol/messages.js';
import { packBits } from '../../shared/bitmap.js';
import { Outcome, PositionStatus } from '../../shared/operations.js';
import type { DataPeer, Failure, SlotSet } from '../shards/shard-client.js';
import type { Leases } from './leases.js';
import type { Fetch, Round, Written } from './producer-rounds.js';
import type { ProducerWrites } from './producer-writes.js';
import type { PinAccount, RoleContext } from './roles.js';

export interface ProducerUnleasedOptions {
  readonly context: RoleContext;
  readonly leases: Leases;
  readonly account: PinAccount;
  readonly writes: ProducerWrites;
  /** The fetch has its result, once. */
  readonly onResult: (fetch: Fetch, written: Written) => void;
}

export class ProducerUnleased {
  readonly #context: RoleContext;
  readonly #leases: Leases;
  readonly #account: PinAccount;
  readonly #writes: ProducerWrites;
  readonly #onResult: ProducerUnleasedOptions['onResult'];

  constructor({ context, leases, account, writes, onResult }: ProducerUnleasedOptions) {
    this.#context = context;
    this.#leases = leases;
    this.#account = account;
    this.#writes = writes;
    this.#onResult = onResult;
  }

  start(round: Round, message: FetchMessage, peer: DataPeer): void {
    const { keys, blockIndexes: indexes } = message;
    const { counters, shards } = this.#context;
    const fetch = this.#writes.begin(round, message, peer, undefined);
    const pinLimit = Math.min(keys.count, this.#account.room);
    if (pinLimit <= 0 || !this.#account.mayHold(keys.count)) {
      counters.rejection(pinLimit <= 0 ? 'pin_cap' : 'max_held_keys');
      counters.miss(pinLimit <= 0 ? 'pin-cap' : 'busy', keys.count);
      this.#onResult(
        fetch,
        packBits(keys.count, () => false),
      );
      return;
    }
    if (keys.foreignCount > 0) counters.miss('foreign-key', keys.foreignCount);
    const reservation = this.#account.reserve(keys.count, this.#account.slotLimit);
    const destinations = { indexes, numBlocks: peer.numBlocks };
    const isCut = pinLimit < keys.count;
    shards.match(keys, isCut ? { destinations, pinLimit } : { destinations }, (failure, set) => {
      this.#account.settle(reservation, set?.pinnedCount ?? 0);
      if (isCut && set?.pinnedCount === pinLimit) counters.rejection('pin_cap');
      this.#onMatched(fetch, failure, set);
    });
  }

  #onMatched(fetch: Fetch, failure: Failure | undefined, set: SlotSet | undefined): void {
    if (set === undefined) {
      if (!fetch.isClosed) this.#onMatchFailed(fetch, failure);
      return;
    }
    const { count, pinnedCount, statuses } = set;
    const isPinned = (position: number): boolean => statuses[position] === PositionStatus.Pinned;
    const isWanted = !fetch.isClosed && !this.#isGivenUp(fetch);
    const written = pinnedCount === count ? 'all' : packBits(count, isPinned);
    if (isWanted && pinnedCount > 0) {
      this.#write(fetch, set, written);
      return;
    }
    this.#context.shards.release(set);
    if (pinnedCount > 0) this.#account.give(pinnedCount, count);
    if (!fetch.isClosed) this.#onResult(fetch, isWanted ? written : 'failed');
  }

  #onMatchFailed(fetch: Fetch, failure: Failure | undefined): void {
    const { counters } = this.#context;
    if (failure?.code === 'outcome' && failure.outcome === Outcome.BadDestination) {
      counters.rejection('bad_destination');
    } else {
      counters.miss(failure?.code === 'KVPEER_BUSY' ? 'busy' : 'worker-lost', fetch.message.keys.count);
    }
    this.#onResult(fetch, 'failed');
  }

  #write(fetch: Fetch, set: SlotSet, written: Written): void {
    const { round, peer, message } = fetch;
    this.#leases.add(round, set);
    // Pins of lookups of the round go with it.
    const sets = this.#leases.take(round);
    const request = { peer, indexes: message.blockIndexes, resolved: set };
    this.#writes.write(fetch, request, set.pinnedCount, (failure) => {
      this.#leases.giveBack(sets);
      if (!fetch.isClosed) this.#onResult(fetch, failure === undefined ? written : 'failed');
    });
  }

  #isGivenUp({ message, receivedMs }: Fetch): boolean {
    return message.ttlMs !== undefined && this.#context.now() > receivedMs + message.ttlMs;
  }
}
