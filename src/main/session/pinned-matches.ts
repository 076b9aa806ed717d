// Matches that pin blocks for one peer, within what it and all peers may pin.
//
//     submit --> fits by count ----------------------------------------------------> match --> result
//            --> does not: queue, one at a time when no other match is under way --> match, each slot counted once
//
// By count a list asks for a pin per key, though most of its keys may not be here, or be pinned by this peer already. So
// what does not fit by count waits for the peer's other matches, which end within milliseconds, and is then matched
// against the slots that the peer pins, each counted once: no key is a miss because of another list's reservation.

import type { Failure, KeySpan, MatchOptions, SlotSet } from '../shards/shard-client.js';
import type { Leases } from './leases.js';
import type { PinAccount, RoleContext } from './roles.js';

/** A lookup or a fetch, as far as its turn is concerned. */
export interface PinningItem {
  readonly receivedMs: number;
  /** Nobody wants the result any more. */
  readonly isClosed: boolean;
}

/** Whose items they are. */
export interface MatchUser<T extends PinningItem> {
  keyCount(item: T): number;
  span(item: T): KeySpan;
  destinations(item: T): MatchOptions['destinations'];
  /** It was closed before its turn came. */
  onDropped(item: T): void;
  /** Nothing may be pinned for it. */
  onRefused(item: T, reason: 'pin-cap' | 'busy'): void;
  /** `isLimited`: keys that are here may have stayed unpinned, see {@link PinnedMatches.countCut}. */
  onMatched(item: T, failure: Failure | undefined, set: SlotSet | undefined, isLimited: boolean): void;
}

/** An item in the queue. */
interface Waiting extends PinningItem {
  readonly keyCount: () => number;
  readonly ask: (slotLimit: number | undefined) => void;
  readonly drop: () => void;
  readonly refuse: () => void;
}

export interface PinnedMatchesOptions {
  readonly context: RoleContext;
  readonly leases: Leases;
  readonly account: PinAccount;
}

/** A list waits no longer than this for the matches of other peers: they come without end. */
const OTHERS_MS = 50;

export class PinnedMatches {
  readonly #context: RoleContext;
  readonly #leases: Leases;
  readonly #account: PinAccount;
  /** They go one by one, with an exact count. */
  readonly #waiting: Waiting[] = [];
  #matchCount = 0;

  constructor({ context, leases, account }: PinnedMatchesOptions) {
    this.#context = context;
    this.#leases = leases;
    this.#account = account;
  }

  /** Ends with exactly one call of the user, now or later. */
  submit<T extends PinningItem>(item: T, user: MatchUser<T>): void {
    if (this.#waiting.length === 0 && this.#account.fits(user.keyCount(item))) {
      this.#ask(item, user, undefined);
      return;
    }
    this.#waiting.push({
      receivedMs: item.receivedMs,
      get isClosed() {
        return item.isClosed;
      },
      keyCount: () => user.keyCount(item),
      ask: (slotLimit) => {
        this.#ask(item, user, slotLimit);
      },
      drop: () => {
        user.onDropped(item);
      },
      refuse: () => {
        user.onRefused(item, 'pin-cap');
      },
    });
    this.#pump();
  }

  #pump(): void {
    while (this.#waiting.length > 0) {
      const [next] = this.#waiting;
      if (next.isClosed) {
        this.#waiting.shift();
        next.drop();
        continue;
      }
      const isFitting = this.#account.fits(next.keyCount());
      if (!isFitting && (this.#matchCount > 0 || this.#waitForOthers(next))) return;
      this.#waiting.shift();
      const { slotLimit, useCount } = this.#account;
      if (isFitting) next.ask(undefined);
      else if (slotLimit <= 0 && useCount === 0) next.refuse();
      else next.ask(slotLimit);
    }
  }

  /** Other peers' matches have reserved what they will hardly all pin: a miss for that would be a false one. */
  #waitForOthers({ receivedMs }: PinningItem): boolean {
    if (this.#context.now() - receivedMs > OTHERS_MS) return false;
    return this.#account.waitForOthers(() => {
      this.#pump();
    });
  }

  /** `slotLimit`: most different slots of the peer, when its keys do not fit by count. */
  #ask<T extends PinningItem>(item: T, user: MatchUser<T>, slotLimit: number | undefined): void {
    const keyCount = user.keyCount(item);
    if (!this.#account.mayHold(keyCount)) {
      this.#context.counters.rejection('max_held_keys');
      user.onRefused(item, 'busy');
      return;
    }
    const reservation = this.#account.reserve(keyCount, slotLimit);
    this.#matchCount += 1;
    const isLimited = slotLimit !== undefined;
    const destinations = user.destinations(item);
    const options: MatchOptions = {
      ...(destinations === undefined ? {} : { destinations }),
      ...(isLimited ? { pinLimit: slotLimit, within: this.#leases.beginRead() } : {}),
    };
    this.#context.shards.match(user.span(item), options, (failure, set) => {
      this.#matchCount -= 1;
      const isAwaited = this.#account.settle(reservation, set?.pinnedCount ?? 0);
      user.onMatched(item, failure, set, isLimited);
      if (isLimited) this.#leases.endRead();
      if (this.#waiting.length === 0) return;
      // Other peers that wait come first, in a microtask that is queued already: a peer with a long queue would take
      // what it has just given back, every time.
      if (isAwaited)
        queueMicrotask(() => {
          this.#pump();
        });
      else this.#pump();
    });
  }

  /** Under a limit a key that is there may have stayed unpinned; which of the misses they are the match does not tell. */
  countCut(set: SlotSet, foreignCount: number): void {
    const missCount = set.count - set.pinnedCount - set.pendingCount - foreignCount;
    if (missCount === 0) return;
    this.#context.counters.miss('pin-cap', missCount);
    this.#context.counters.rejection('pin_cap');
  }

  /** The result is not wanted any more: its pins go at once. */
  discard(set: SlotSet): void {
    const { pinnedCount, count } = set;
    this.#context.shards.release(set);
    if (pinnedCount > 0) this.#account.give(pinnedCount, count);
  }
}
