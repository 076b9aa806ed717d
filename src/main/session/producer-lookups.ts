// The producer's answers: match, park what is being written, answer once.
//
//     lookup --> [queue: the pin limits need an exact count] --> match --> nothing pending ---------------> answer
//                                                                 ^  |
//                       a slot settled, or the hold time is over  |  +--> parked --- hold time over ------> answer,
//                                                                 +---------+        still pending: misses

import { HIT, MISS } from '../protocol/messages.js';
import type { LookupMessage } from '../protocol/messages.js';
import { freeMessageOf } from '../protocol/message-memory.js';
import { writeLookupResp } from '../protocol/write.js';
import type { Failure, KeySpan, SlotSet } from '../shards/shard-client.js';
import { PositionStatus } from '../../shared/operations.js';
import { Deadlines } from './deadlines.js';
import type { HeldMessages } from './held-messages.js';
import { pickKeys } from './key-subset.js';
import type { Leases } from './leases.js';
import type { MatchUser, PinnedMatches } from './pinned-matches.js';
import type { Lookup, LookupWait, ProducerRounds, Round } from './producer-rounds.js';
import type { MissReason, RoleContext } from './roles.js';

export interface ProducerLookupsOptions {
  readonly context: RoleContext;
  readonly rounds: ProducerRounds;
  readonly leases: Leases;
  readonly matches: PinnedMatches;
  readonly held: HeldMessages;
}

/**
 * Part of a peer's stated patience (`ttl_ms`) after which it gets what is known. Numerator and denominator of the
 * default hold and lookup times, 5 s of 8 s: a peer that waits less than we would hold still gets its hits.
 */
const HOLD_OF_TTL = 5 / 8;

/** Hold times are holdMs, half of it, a quarter ... so that each has a queue of its own. */
const HOLD_CLASSES = 8;

export class ProducerLookups {
  readonly #context: RoleContext;
  readonly #rounds: ProducerRounds;
  readonly #leases: Leases;
  readonly #matches: PinnedMatches;
  readonly #asMatches: MatchUser<Lookup>;
  readonly #held: HeldMessages;
  readonly #holds: readonly Deadlines<Lookup>[];
  /** Slot -> parked lookups that wait for it. */
  readonly #waiters = new Map<number, Set<Lookup>>();
  #openCount = 0;
  #parkedKeyCount = 0;
  #parkedCount = 0;

  constructor({ context, rounds, leases, matches, held }: ProducerLookupsOptions) {
    this.#context = context;
    this.#rounds = rounds;
    this.#leases = leases;
    this.#matches = matches;
    this.#asMatches = {
      keyCount,
      span: (lookup) => this.#span(lookup),
      destinations: () => undefined,
      onDropped: (lookup) => {
        freeMessageOf(lookup.message.keys);
      },
      onRefused: (lookup, reason) => {
        this.#finish(lookup, this.#hitsOf(lookup), reason, keyCount(lookup));
      },
      onMatched: (lookup, failure, set, isLimited) => {
        this.#onMatched(lookup, failure, set, isLimited);
      },
    };
    this.#held = held;
    this.#holds = Array.from(
      { length: HOLD_CLASSES },
      () =>
        new Deadlines<Lookup>((timeMs) => {
          context.wakeAt(timeMs);
        }),
    );
  }

  get parkedCount(): number {
    return this.#parkedCount;
  }

  get openCount(): number {
    return this.#openCount;
  }

  get nextMs(): number {
    return this.#holds.reduce((nextMs, holds) => Math.min(nextMs, holds.nextMs), Infinity);
  }

  onLookup(message: LookupMessage): void {
    const { keys, kvRequestId, roundSeq } = message;
    if (keys.count === 0) return;
    const { counters, limits } = this.#context;
    const round = this.#rounds.open(kvRequestId, roundSeq);
    const hasRoom = this.#held.hasRoomFor(keys);
    if (round === undefined || this.#openCount >= limits.maxRounds || !hasRoom) {
      counters.rejection(hasRoom ? 'max_rounds' : 'max_held_bytes');
      counters.miss('busy', keys.count);
      this.#sendAnswer(message, allMisses(keys.count));
      freeMessageOf(keys);
      if (round !== undefined) this.#noteAnswered(round, this.#context.now());
      return;
    }
    const lookup: Lookup = {
      round,
      message,
      receivedMs: this.#context.now(),
      heldBytes: 0,
      isClosed: false,
      isMatching: false,
      isLast: false,
      wait: undefined,
    };
    round.lookups.push(lookup);
    this.#held.add(lookup, keys);
    this.#openCount += 1;
    this.#leases.onLookup(round);
    if (keys.foreignCount > 0) counters.miss('foreign-key', keys.foreignCount);
    this.#match(lookup);
  }

  /** The round is closed by its fetch, its abort or the end of the request: nobody waits for these answers. */
  close(round: Round): void {
    for (const lookup of round.lookups) {
      lookup.isClosed = true;
      this.#held.drop(lookup);
      // What matches them now still reads the keys.
      if (!lookup.isMatching) freeMessageOf(lookup.message.keys);
      this.#openCount -= 1;
      this.#unpark(lookup);
      this.#endHold(lookup);
    }
    round.lookups.length = 0;
  }

  /** Slots have settled: parked lookups that wait for one of them look again. */
  onSettled(set: SlotSet): void {
    if (this.#waiters.size === 0) return;
    const woken = new Set<Lookup>();
    for (let i = 0; i < set.count; i++) {
      const waiting = this.#waiters.get(set.slots[i]);
      if (waiting !== undefined) for (const lookup of waiting) woken.add(lookup);
    }
    for (const lookup of woken) {
      this.#unpark(lookup);
      this.#match(lookup);
    }
  }

  tick(nowMs: number): void {
    for (const holds of this.#holds) {
      holds.expire(nowMs, (lookup) => {
        lookup.isLast = true;
        // A match that is under way decides; it was asked for a moment ago.
        if (lookup.isMatching) return;
        this.#unpark(lookup);
        this.#match(lookup);
      });
    }
  }

  /** Asks for the pending keys, or all keys the first time. */
  #match(lookup: Lookup): void {
    lookup.isMatching = true;
    if (this.#isGivenUp(lookup)) {
      this.#finish(lookup, this.#hitsOf(lookup), 'hold-expired', lookup.wait?.positions.length ?? 0);
      return;
    }
    this.#matches.submit(lookup, this.#asMatches);
  }

  #onMatched(
    lookup: Lookup,
    failure: Failure | undefined,
    set: SlotSet | undefined,
    isLimited: boolean,
  ): void {
    if (lookup.isClosed) {
      freeMessageOf(lookup.message.keys);
      if (set !== undefined) this.#matches.discard(set);
      return;
    }
    if (set === undefined) {
      const reason = failure?.code === 'KVPEER_BUSY' ? 'busy' : 'worker-lost';
      this.#finish(lookup, this.#hitsOf(lookup), reason, keyCount(lookup));
      return;
    }
    if (set.pinnedCount > 0) this.#leases.add(lookup.round, set);
    if (isLimited) {
      this.#matches.countCut(set, lookup.wait === undefined ? lookup.message.keys.foreignCount : 0);
    }
    if (set.pendingCount === 0 && lookup.wait === undefined && lookup.message.keys.foreignCount === 0) {
      // The usual case: the statuses are the answer.
      this.#answer(lookup, set.statuses);
    } else {
      this.#merge(lookup, set);
    }
    if (set.pinnedCount === 0) this.#context.shards.release(set);
  }

  /** Takes the result of a match into the answer, and parks what is pending. */
  #merge(lookup: Lookup, set: SlotSet): void {
    const before = lookup.wait;
    const hits = this.#hitsOf(lookup);
    const { pendingCount, statuses } = set;
    const positions = new Int32Array(pendingCount);
    const slots = new Int32Array(pendingCount);
    const generations = new Uint16Array(pendingCount);
    let pending = 0;
    for (let i = 0; i < set.count; i++) {
      const position = before === undefined ? i : before.positions[i];
      if (statuses[i] === PositionStatus.Pinned) {
        hits[position] = HIT;
      } else if (statuses[i] === PositionStatus.Pending) {
        positions[pending] = position;
        slots[pending] = set.slots[i];
        generations[pending] = set.generations[i];
        pending += 1;
      }
    }
    lookup.wait = { hits, positions, slots, generations };
    if (pending === 0) this.#answer(lookup, hits);
    else if (lookup.isLast) this.#finish(lookup, hits, 'hold-expired', pending);
    else this.#park(lookup, lookup.wait);
  }

  #park(lookup: Lookup, wait: LookupWait): void {
    lookup.isMatching = false;
    const { limits, shards } = this.#context;
    const holdClass = this.#holdClass(lookup.message.ttlMs);
    if (holdClass === undefined) {
      this.#finish(lookup, wait.hits, 'hold-expired', wait.positions.length);
      return;
    }
    if (this.#parkedKeyCount + wait.positions.length > limits.maxKeys) {
      this.#context.counters.rejection('max_parked_keys');
      this.#finish(lookup, wait.hits, 'busy', wait.positions.length);
      return;
    }
    const holds = this.#holds[holdClass];
    if (!holds.has(lookup)) {
      holds.set(lookup, lookup.receivedMs + this.#context.times.holdMs / 2 ** holdClass);
    }
    // The rings of the workers are not in step: the slot may have been published, and told so, before this answer came.
    for (let i = 0; i < wait.slots.length; i++) {
      if (!shards.isStillWriting(wait.slots[i], wait.generations[i])) {
        this.#match(lookup);
        return;
      }
    }
    this.#parkedCount += 1;
    this.#parkedKeyCount += wait.positions.length;
    for (const slot of wait.slots) {
      const waiting = this.#waiters.get(slot);
      if (waiting === undefined) this.#waiters.set(slot, new Set([lookup]));
      else waiting.add(lookup);
    }
  }

  /** Off the slots it waits for; a lookup that is not parked is left as it is. The hold time goes on. */
  #unpark(lookup: Lookup): void {
    const { wait } = lookup;
    if (lookup.isMatching || wait === undefined) return;
    this.#parkedCount -= 1;
    this.#parkedKeyCount -= wait.positions.length;
    for (const slot of wait.slots) {
      const waiting = this.#waiters.get(slot);
      waiting?.delete(lookup);
      if (waiting?.size === 0) this.#waiters.delete(slot);
    }
  }

  #endHold(lookup: Lookup): void {
    if (lookup.wait !== undefined) for (const holds of this.#holds) holds.delete(lookup);
  }

  /** Which queue of hold times; undefined when the peer will not wait at all. */
  #holdClass(ttlMs: number | undefined): number | undefined {
    if (ttlMs === undefined) return 0;
    const wantedMs = ttlMs * HOLD_OF_TTL;
    let holdMs = this.#context.times.holdMs;
    for (let holdClass = 0; holdClass < HOLD_CLASSES; holdClass++) {
      if (holdMs <= wantedMs) return holdClass;
      holdMs /= 2;
    }
    return undefined;
  }

  #isGivenUp({ message, receivedMs }: Lookup): boolean {
    return message.ttlMs !== undefined && this.#context.now() > receivedMs + message.ttlMs;
  }

  #finish(lookup: Lookup, hits: Uint8Array, reason: MissReason, missCount: number): void {
    if (missCount > 0) this.#context.counters.miss(reason, missCount);
    this.#answer(lookup, hits);
  }

  #answer(lookup: Lookup, hits: Uint8Array): void {
    const { round } = lookup;
    lookup.isClosed = true;
    this.#held.drop(lookup);
    this.#openCount -= 1;
    round.lookups.splice(round.lookups.indexOf(lookup), 1);
    this.#endHold(lookup);
    this.#sendAnswer(lookup.message, hits);
    // The match is over and has copied the keys: nothing reads the message any more.
    freeMessageOf(lookup.message.keys);
    this.#noteAnswered(round, this.#context.now());
  }

  #noteAnswered(round: Round, nowMs: number): void {
    round.isAnswered = true;
    this.#leases.onAnswered(round, nowMs);
    this.#rounds.settle(round, nowMs);
  }

  #sendAnswer({ kvRequestId, keys, roundSeq, lookupSeq }: LookupMessage, hits: Uint8Array): void {
    const isKvpeer = this.#context.remote()?.isKvpeer === true;
    if (isKvpeer && lookupSeq !== undefined) {
      this.#context.sendAnswer({ kvRequestId, hits, roundSeq, lookupSeq });
    } else {
      this.#context.send(writeLookupResp(kvRequestId, keys, hits, isKvpeer ? { roundSeq } : {}));
    }
  }

  #hitsOf(lookup: Lookup): Uint8Array {
    return lookup.wait?.hits ?? allMisses(lookup.message.keys.count);
  }

  #span({ message, wait }: Lookup): KeySpan {
    return wait === undefined
      ? message.keys
      : pickKeys(message.keys, wait.positions, this.#context.shards.keyBytes);
  }
}

function keyCount({ message, wait }: Lookup): number {
  return wait?.positions.length ?? message.keys.count;
}

function allMisses(count: number): Uint8Array {
  return new Uint8Array(count).fill(MISS);
}
