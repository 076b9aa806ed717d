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
import type { MatchUser, PinnedMatches } from './pinned-matches.js';
import type { Fetch, Round, Written } from './producer-rounds.js';
import type { ProducerWrites } from './producer-writes.js';
import type { RoleContext } from './roles.js';

export interface ProducerUnleasedOptions {
  readonly context: RoleContext;
  readonly leases: Leases;
  readonly matches: PinnedMatches;
  readonly writes: ProducerWrites;
  /** The fetch has its result, once. */
  readonly onResult: (fetch: Fetch, written: Written) => void;
}

export class ProducerUnleased {
  readonly #context: RoleContext;
  readonly #leases: Leases;
  readonly #matches: PinnedMatches;
  readonly #asMatches: MatchUser<Fetch>;
  readonly #writes: ProducerWrites;
  readonly #onResult: ProducerUnleasedOptions['onResult'];

  constructor({ context, leases, matches, writes, onResult }: ProducerUnleasedOptions) {
    this.#context = context;
    this.#leases = leases;
    this.#matches = matches;
    this.#writes = writes;
    this.#onResult = onResult;
    this.#asMatches = {
      keyCount: ({ message }) => message.keys.count,
      span: ({ message }) => message.keys,
      destinations: ({ message, peer }) => ({ indexes: message.blockIndexes, numBlocks: peer.numBlocks }),
      onDropped: () => undefined,
      onRefused: (fetch, reason) => {
        const { count } = fetch.message.keys;
        if (reason === 'pin-cap') context.counters.rejection('pin_cap');
        context.counters.miss(reason, count);
        this.#end(
          fetch,
          packBits(count, () => false),
        );
      },
      onMatched: (fetch, failure, set, isLimited) => {
        this.#onMatched(fetch, failure, set, isLimited);
      },
    };
  }

  start(round: Round, message: FetchMessage, peer: DataPeer): void {
    const { keys } = message;
    const fetch = this.#writes.begin(round, message, peer, undefined);
    if (keys.foreignCount > 0) this.#context.counters.miss('foreign-key', keys.foreignCount);
    this.#matches.submit(fetch, this.#asMatches);
  }

  #onMatched(fetch: Fetch, failure: Failure | undefined, set: SlotSet | undefined, isLimited: boolean): void {
    if (set === undefined) {
      if (!fetch.isClosed) this.#onMatchFailed(fetch, failure);
      return;
    }
    if (fetch.isClosed || this.#isGivenUp(fetch)) {
      this.#matches.discard(set);
      if (!fetch.isClosed) this.#end(fetch, 'failed');
      return;
    }
    if (isLimited) this.#matches.countCut(set, fetch.message.keys.foreignCount);
    const { count, pinnedCount, statuses } = set;
    const isPinned = (position: number): boolean => statuses[position] === PositionStatus.Pinned;
    const written = pinnedCount === count ? 'all' : packBits(count, isPinned);
    if (pinnedCount > 0) {
      this.#write(fetch, set, written);
    } else {
      this.#matches.discard(set);
      this.#end(fetch, written);
    }
  }

  #onMatchFailed(fetch: Fetch, failure: Failure | undefined): void {
    const { counters } = this.#context;
    if (failure?.code === 'outcome' && failure.outcome === Outcome.BadDestination) {
      counters.rejection('bad_destination');
    } else {
      counters.miss(failure?.code === 'KVPEER_BUSY' ? 'busy' : 'worker-lost', fetch.message.keys.count);
    }
    this.#end(fetch, 'failed');
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

  /** Without a write. The pins of lookups of the round go here, too. */
  #end(fetch: Fetch, written: Written): void {
    this.#leases.drop(fetch.round);
    this.#onResult(fetch, written);
  }

  #isGivenUp({ message, receivedMs }: Fetch): boolean {
    return message.ttlMs !== undefined && this.#context.now() > receivedMs + message.ttlMs;
  }
}
