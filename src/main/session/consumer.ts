// The consumer half of a session: lookups and loads of this node at one peer.
//
//   lookup --> open ---- answered ----> result            load --> reserving --> fetching ---- transfer_done(true) --> publishing --> result
//               |                                                      |            |--------- transfer_done(false) -> abandoned --> misses
//               +------ deadline, end -> misses                        |            +--------- deadline, finish ----> misses now; draining
//                                                                      +-- nothing to fetch --> joined, present --> result
//
//   draining (abort_fetch sent, the write may still land): transfer_done(true) -> published after all
//                                                          transfer_done(false), abort_ack -> FREE
//                                                          no word for abortAckMs, session over -> QUARANTINED
//
// Rounds of an id: lookups name the current round; a fetch, an abort_fetch or the empty fetch closes it, and the next
// lookup or fetch uses the next one. What arrives for a closed round finds the load that fetched it, or nobody.

import { freeMessageOf } from '../protocol/message-memory.js';
import type { AbortAckMessage, LookupRespMessage, TransferDoneMessage } from '../protocol/messages.js';
import { HIT, MISS } from '../protocol/messages.js';
import { writeAbortFetch, writeFetch, writeLookup } from '../protocol/write.js';
import type { KeySpan } from '../shards/shard-client.js';
import { Deadlines } from './deadlines.js';
import type { LoadHost } from './load.js';
import { Load } from './load.js';
import { applyByTable, applyVerbatim, countHits, isVerbatim, packKeys, SentKeys } from './lookup-match.js';
import type {
  ConsumerRole,
  Joins,
  LoadOptions,
  LoadResult,
  LookupResult,
  MissReason,
  Quarantine,
  RoleContext,
} from './roles.js';
import type { RoundMemory } from './rounds.js';

/** Bytes of keys in one `lookup` or `fetch`: half of the message limit, so that headers and indexes fit beside them. */
const MAX_LIST_BYTES = 4 * 1024 * 1024;

interface OpenLookup {
  readonly state: IdState;
  round: number;
  /** By which its answer may name it. */
  seq: number;
  asked: SentKeys;
  /** 0: not answered yet. */
  statuses: Uint8Array;
  openCount: number;
  readonly startedMs: number;
  /** Undefined once the caller has its result: the answer may still come and must not be taken for a newer one's. */
  done: ((result: LookupResult) => void) | undefined;
}

interface IdState {
  readonly id: string;
  round: number;
  /** A `lookup` was sent in the current round: the peer may hold pins for it. */
  isProbed: boolean;
  /** Something was found in the current round: a load may come for it. */
  hasHits: boolean;
  /** Oldest first. Open ones are of the current round. */
  readonly lookups: OpenLookup[];
  /** All that have not ended. */
  readonly loads: Set<Load>;
  /** Those of them that may still fetch in the current round. */
  readonly starting: Set<Load>;
  /** Those that fetched, by round; a load keeps its place while it drains. */
  readonly fetched: Map<number, Load>;
}

export class Consumer implements ConsumerRole {
  readonly #context: RoleContext;
  readonly #quarantine: Quarantine;
  readonly #rounds: RoundMemory;
  readonly #ids = new Map<string, IdState>();
  readonly #deadlines: Deadlines<OpenLookup>;
  readonly #loads = new Set<Load>();
  /** No load has anything to do before. */
  #nextLoadMs = Infinity;
  readonly #loadHost: LoadHost;
  /** Most keys in one message. */
  readonly #listCount: number;
  #lookupSeq = 0;
  #isOver = false;

  /** `rounds` is one for the node: a later session with the peer goes on where this one stops. */
  constructor(context: RoleContext, quarantine: Quarantine, joins: Joins, rounds: RoundMemory) {
    this.#context = context;
    this.#quarantine = quarantine;
    this.#rounds = rounds;
    this.#deadlines = new Deadlines((timeMs) => {
      context.wakeAt(timeMs);
    });
    this.#loadHost = {
      context,
      joins,
      quarantine,
      wakeAt: (timeMs) => {
        this.#nextLoadMs = Math.min(this.#nextLoadMs, timeMs);
        context.wakeAt(timeMs);
      },
    };
    this.#listCount = Math.min(
      context.limits.maxKeys,
      Math.floor(MAX_LIST_BYTES / (context.shards.keyBytes + 3)),
    );
  }

  lookup(kvRequestId: string, keys: KeySpan, done: (result: LookupResult) => void): void {
    const statuses = new Uint8Array(keys.count).fill(MISS);
    if (keys.count === 0) {
      done({ statuses, hitCount: 0 });
      return;
    }
    if (this.#isOver) {
      this.#context.counters.miss('peer-down', keys.count);
      done({ statuses, hitCount: 0, reason: 'peer-down' });
      return;
    }
    const state = this.#stateOf(kvRequestId);
    const { keyBytes } = this.#context.shards;
    const packed = packKeys(keys, keyBytes);
    let partsLeft = Math.ceil(keys.count / this.#listCount);
    let hitCount = 0;
    let reason: MissReason | undefined;
    for (let from = 0; from < keys.count; from += this.#listCount) {
      const to = Math.min(from + this.#listCount, keys.count);
      this.#ask(state, packed.subarray(from * keyBytes, to * keyBytes), to - from, (result) => {
        statuses.set(result.statuses, from);
        hitCount += result.hitCount;
        reason ??= result.reason;
        if (--partsLeft === 0) done({ statuses, hitCount, ...(reason === undefined ? {} : { reason }) });
      });
    }
  }

  #ask(state: IdState, packed: Uint8Array, count: number, done: (result: LookupResult) => void): void {
    const now = this.#context.now();
    const lookup: OpenLookup = {
      state,
      round: state.round,
      seq: ++this.#lookupSeq,
      asked: this.#sendLookup(state, packed, this.#lookupSeq),
      statuses: new Uint8Array(count),
      openCount: count,
      startedMs: now,
      done,
    };
    state.lookups.push(lookup);
    this.#deadlines.set(lookup, now + this.#context.times.lookupMs);
  }

  #sendLookup(state: IdState, packed: Uint8Array, seq: number): SentKeys {
    const { times, shards } = this.#context;
    const remote = this.#context.remote();
    const frame = writeLookup(state.id, packed, shards.keyBytes, state.round, {
      ttlMs: remote?.isKvpeer === true ? times.lookupMs : undefined,
      lookupSeq: remote?.features.has('lookup_seq') === true ? seq : undefined,
      isPacked: remote?.features.has('packed_keys') === true,
    });
    state.isProbed = true;
    this.#context.send(frame);
    return new SentKeys(frame, shards.keyBytes, this.#listCount);
  }

  load(kvRequestId: string, keys: KeySpan, options: LoadOptions, done: (result: LoadResult) => void): void {
    const slots = new Int32Array(keys.count).fill(-1);
    if (keys.count === 0) {
      done({ slots, pins: [], loadedCount: 0, pulledCount: 0 });
      return;
    }
    if (this.#isOver) {
      this.#context.counters.miss('peer-down', keys.count);
      done({ slots, pins: [], loadedCount: 0, pulledCount: 0, reason: 'peer-down' });
      return;
    }
    if (keys.count <= this.#listCount) {
      this.#startLoad(kvRequestId, keys, options, done);
      return;
    }
    // One message names all blocks of a round. The first keys of a chain are worth most.
    this.#context.counters.miss('over-limit', keys.count - this.#listCount);
    this.#startLoad(kvRequestId, { ...keys, count: this.#listCount }, options, (result) => {
      slots.set(result.slots);
      done({ reason: 'over-limit', ...result, slots });
    });
  }

  #startLoad(id: string, keys: KeySpan, options: LoadOptions, done: (result: LoadResult) => void): void {
    const state = this.#stateOf(id);
    const { round } = state;
    let frame: Buffer | undefined;
    const load: Load = new Load(this.#loadHost, id, keys, options, {
      fetch: (fetchKeys, indexes) => {
        const fetch = this.#fetch(state, load, fetchKeys, indexes);
        frame = fetch.frame;
        return fetch.round;
      },
      takeBack: () => frame !== undefined && this.#context.recall(frame),
      fetchesNothing: () => {
        state.starting.delete(load);
        if (state.round === round) this.#giveUp(state);
      },
      abort: (abortRound) => {
        this.#context.send(writeAbortFetch(id, abortRound));
      },
      ended: (fetchedRound) => {
        this.#onLoadEnded(state, load, fetchedRound);
      },
      result: done,
    });
    state.loads.add(load);
    state.starting.add(load);
    this.#loads.add(load);
    load.start();
  }

  /** Closes the current round with a fetch for this load. */
  #fetch(
    state: IdState,
    load: Load,
    keys: Uint8Array,
    indexes: Int32Array,
  ): { readonly frame: Buffer; readonly round: number } {
    const { round } = state;
    state.starting.delete(load);
    state.fetched.set(round, load);
    const remote = this.#context.remote();
    const frame = writeFetch(state.id, keys, this.#context.shards.keyBytes, indexes, round, {
      ttlMs: remote?.isKvpeer === true ? Math.ceil(load.budgetMs) : undefined,
      ifHeld: load.isIfHeld,
      isPacked: remote?.features.has('packed_keys') === true,
    });
    this.#context.send(frame);
    this.#nextRound(state);
    this.#askAgain(state);
    return { frame, round };
  }

  #nextRound(state: IdState): void {
    state.round++;
    state.isProbed = false;
    state.hasHits = false;
  }

  /**
   * Lookups that had no answer when their round was closed: a kvpeer answers them no more, and what another producer
   * still pins for them cannot be fetched under the next round.
   */
  #askAgain(state: IdState): void {
    const { keyBytes } = this.#context.shards;
    for (const lookup of [...state.lookups]) {
      if (!lookup.done) continue;
      const former: OpenLookup = { ...lookup, done: undefined };
      state.lookups.splice(state.lookups.indexOf(lookup), 0, former);
      this.#deadlines.set(former, this.#context.now() + this.#context.times.lookupMs);
      // The lookup itself keeps its deadline and moves on.
      lookup.round = state.round;
      lookup.seq = ++this.#lookupSeq;
      lookup.asked = this.#sendLookup(state, packKeys(lookup.asked.list, keyBytes), lookup.seq);
      lookup.openCount = lookup.statuses.length;
      lookup.statuses = new Uint8Array(lookup.openCount);
    }
  }

  #onLoadEnded(state: IdState, load: Load, fetchedRound: number | undefined): void {
    this.#loads.delete(load);
    state.loads.delete(load);
    if (fetchedRound !== undefined) state.fetched.delete(fetchedRound);
    this.#forgetIfIdle(state);
  }

  giveUpRound(kvRequestId: string): void {
    const state = this.#ids.get(kvRequestId);
    if (!state) return;
    const open = state.lookups.filter((lookup) => lookup.done);
    this.#giveUp(state);
    for (const lookup of open) this.#endLookup(lookup, 'cancelled');
    this.#forgetIfIdle(state);
  }

  /** The current round is not wanted: its pins at the peer go. A load that is about to fetch still wants it. */
  #giveUp(state: IdState): void {
    if (!state.isProbed || state.starting.size > 0) return;
    this.#context.send(writeAbortFetch(state.id, state.round));
    this.#nextRound(state);
  }

  finish(kvRequestId: string): void {
    const state = this.#ids.get(kvRequestId);
    if (!state) return;
    for (const load of [...state.loads]) load.cancel('cancelled');
    if (state.isProbed) this.#finishRound(state);
    this.#forgetIfIdle(state);
  }

  #finishRound(state: IdState): void {
    const { keyBytes } = this.#context.shards;
    this.#context.send(writeFetch(state.id, new Uint8Array(0), keyBytes, new Int32Array(0), state.round));
    this.#nextRound(state);
    // The peer drops every lookup of the id that it has not answered: nothing is waited for any more.
    const lookups = state.lookups.splice(0);
    for (const lookup of lookups) this.#deadlines.delete(lookup);
    for (const lookup of lookups) this.#endLookup(lookup, 'cancelled');
  }

  onLookupResp(message: LookupRespMessage): void {
    const state = this.#ids.get(message.kvRequestId);
    if (!state || !this.#applyAnswer(state, message)) this.#context.counters.ignored(message.type);
    freeMessageOf(message.keys);
  }

  /**
   * Oldest lookup first: a plain peer's answer has no round, and it answers equal lookups in order. An answer is for one
   * round only.
   */
  #applyAnswer(state: IdState, { keys, hits, roundSeq, lookupSeq }: LookupRespMessage): boolean {
    if (lookupSeq !== undefined && keys.count === 0) {
      const named = state.lookups.find(({ seq }) => seq === lookupSeq);
      if (named?.statuses.length !== hits.length) return false;
      this.#answered(named, applyVerbatim(named.statuses, named.openCount, hits));
      return true;
    }
    const isOfRound = (lookup: OpenLookup): boolean => roundSeq === undefined || roundSeq === lookup.round;
    const exact = state.lookups.find((lookup) => isOfRound(lookup) && isVerbatim(lookup.asked.list, keys));
    if (exact) {
      this.#answered(exact, applyVerbatim(exact.statuses, exact.openCount, hits));
      return true;
    }
    let round = roundSeq;
    let isUsed = false;
    for (const lookup of [...state.lookups]) {
      if (round !== undefined && round !== lookup.round) continue;
      const answeredCount = applyByTable(lookup.asked.list, lookup.statuses, keys, hits);
      if (answeredCount === 0) continue;
      isUsed = true;
      round = lookup.round;
      this.#answered(lookup, answeredCount);
    }
    return isUsed;
  }

  #answered(lookup: OpenLookup, answeredCount: number): void {
    const { state, statuses, done } = lookup;
    lookup.openCount -= answeredCount;
    if (lookup.round === state.round && statuses.includes(HIT)) state.hasHits = true;
    if (lookup.openCount > 0) return;
    remove(state.lookups, lookup);
    this.#deadlines.delete(lookup);
    // An answer to every key: the question has left.
    lookup.asked.free();
    if (done) {
      lookup.done = undefined;
      this.#context.counters.lookupSeconds((this.#context.now() - lookup.startedMs) / 1000);
      done({ statuses, hitCount: countHits(statuses) });
    }
    this.#forgetIfIdle(state);
  }

  onTransferDone(message: TransferDoneMessage): void {
    const load = this.#loadOf(message);
    if (load) load.onTransferDone(message);
    else this.#onRoundEnded(message);
  }

  onAbortAck(message: AbortAckMessage): void {
    const load = this.#loadOf(message);
    if (load) load.onAbortAck();
    else this.#onRoundEnded(message);
  }

  /** Before the peer acknowledged us it cannot have seen a fetch. */
  #loadOf(message: TransferDoneMessage | AbortAckMessage): Load | undefined {
    const load = this.#ids.get(message.kvRequestId)?.fetched.get(message.roundSeq);
    return load?.isFetched === true && this.#context.hasSent() ? load : undefined;
  }

  /** Late, or for a round that was given up: slots in quarantine may be waiting for it. */
  #onRoundEnded({ type, kvRequestId, roundSeq }: TransferDoneMessage | AbortAckMessage): void {
    const round = { session: this.#context, kvRequestId, round: roundSeq };
    if (!this.#quarantine.onRoundEnded(round)) this.#context.counters.ignored(type);
  }

  tick(nowMs: number): void {
    this.#rounds.tick(nowMs);
    this.#deadlines.expire(nowMs, (lookup) => {
      this.#expire(lookup);
    });
    if (this.#deadlines.size > 0) this.#context.wakeAt(this.#deadlines.nextMs);
    if (nowMs < this.#nextLoadMs) return;
    // Deadlines depend on the size of a load: all are looked at when the first is due.
    this.#nextLoadMs = Infinity;
    for (const load of [...this.#loads]) load.tick(nowMs);
    for (const load of this.#loads) this.#nextLoadMs = Math.min(this.#nextLoadMs, load.deadlineMs);
    this.#context.wakeAt(this.#nextLoadMs);
  }

  /** A lookup without an answer. Its round is released unless something else of it can still be used. */
  #expire(lookup: OpenLookup): void {
    const { state } = lookup;
    remove(state.lookups, lookup);
    if (lookup.done && !state.hasHits && !state.lookups.some((other) => other.done)) this.#giveUp(state);
    this.#endLookup(lookup, 'lookup-deadline');
    this.#forgetIfIdle(state);
  }

  end(): void {
    this.#isOver = true;
    const states = [...this.#ids.values()];
    this.#ids.clear();
    for (const state of states) {
      if (state.round > 0 || state.isProbed) {
        this.#rounds.remember(this.#context.address, state.id, state.round + 1, this.#context.now());
      }
      for (const lookup of state.lookups) {
        this.#deadlines.delete(lookup);
        this.#endLookup(lookup, 'peer-down');
      }
      for (const load of [...state.loads]) load.onSessionEnd();
    }
  }

  stats(): { readonly idCount: number; readonly openLookupCount: number; readonly openLoadCount: number } {
    let openLookupCount = 0;
    for (const state of this.#ids.values()) {
      for (const lookup of state.lookups) if (lookup.done) openLookupCount++;
    }
    return { idCount: this.#ids.size, openLookupCount, openLoadCount: this.#loads.size };
  }

  #stateOf(id: string): IdState {
    const known = this.#ids.get(id);
    if (known) return known;
    const state: IdState = {
      id,
      round: this.#rounds.recall(this.#context.address, id),
      isProbed: false,
      hasHits: false,
      lookups: [],
      loads: new Set(),
      starting: new Set(),
      fetched: new Map(),
    };
    this.#ids.set(id, state);
    return state;
  }

  /** An id is kept while something of it is open, or its round at the peer is; its number is remembered longer. */
  #forgetIfIdle(state: IdState): void {
    if (state.isProbed || state.loads.size + state.lookups.length > 0) return;
    if (this.#ids.get(state.id) !== state) return;
    this.#ids.delete(state.id);
    if (state.round > 0) {
      this.#rounds.remember(this.#context.address, state.id, state.round, this.#context.now());
    }
  }

  /** Ends the caller's wait with what is known. */
  #endLookup(lookup: OpenLookup, reason: MissReason): void {
    const { done } = lookup;
    if (!done) return;
    lookup.done = undefined;
    this.#context.counters.miss(reason, lookup.openCount);
    // A copy: the record may go on waiting for its answer.
    const statuses = lookup.statuses.map((status) => (status === 0 ? MISS : status));
    done({ statuses, hitCount: countHits(statuses), reason });
  }
}

function remove<T>(list: T[], item: T): void {
  const at = list.indexOf(item);
  if (at >= 0) list.splice(at, 1);
}
