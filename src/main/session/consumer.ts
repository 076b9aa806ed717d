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

import type {
  AbortAckMessage,
  KeyList,
  LookupRespMessage,
  TransferDoneMessage,
} from '../protocol/messages.js';
import { HIT, MISS } from '../protocol/messages.js';
import { writeAbortFetch, writeFetch, writeLookup } from '../protocol/write.js';
import type { KeySpan } from '../shards/shard-client.js';
import type { LoadHost, LoadOutcome } from './load.js';
import { Load } from './load.js';
import { applyAnswer, askedKeys, packKeys } from './lookup-match.js';
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
import { RoundMemory } from './rounds.js';

/** Bytes of keys in one `lookup` or `fetch`: half of the message limit, so that headers and indexes fit beside them. */
const MAX_LIST_BYTES = 4 * 1024 * 1024;

interface OpenLookup {
  readonly state: IdState;
  readonly round: number;
  readonly asked: KeyList;
  /** 0: not answered yet. */
  readonly statuses: Uint8Array;
  openCount: number;
  readonly startedMs: number;
  readonly deadlineMs: number;
  /** Undefined once the caller has its result: the answer may still come and must not be taken for a newer one's. */
  done: ((result: LookupResult) => void) | undefined;
}

interface IdState {
  readonly id: string;
  round: number;
  /** A `lookup` was sent in the current round: the peer may hold pins for it. */
  isProbed: boolean;
  isFinished: boolean;
  readonly lookups: OpenLookup[];
  /** By round; a load keeps its place while it drains. */
  readonly loads: Map<number, Load>;
  /** Loads that have not got a round yet. */
  readonly starting: Set<Load>;
}

export class Consumer implements ConsumerRole {
  readonly #context: RoleContext;
  readonly #quarantine: Quarantine;
  readonly #rounds: RoundMemory;
  readonly #ids = new Map<string, IdState>();
  /** Lookups in the order of their deadlines (which are all equally far). */
  readonly #deadlines = new Set<OpenLookup>();
  readonly #loads = new Set<Load>();
  readonly #loadHost: LoadHost;
  #isOver = false;

  constructor(context: RoleContext, quarantine: Quarantine, joins: Joins) {
    this.#context = context;
    this.#quarantine = quarantine;
    this.#rounds = new RoundMemory(context.times.rememberedMs);
    this.#loadHost = { context, joins, quarantine };
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
    const chunkCount = Math.min(this.#context.limits.maxKeys, Math.floor(MAX_LIST_BYTES / (keyBytes + 3)));
    let chunksLeft = Math.ceil(keys.count / chunkCount);
    let hitCount = 0;
    let reason: MissReason | undefined;
    for (let from = 0; from < keys.count; from += chunkCount) {
      const to = Math.min(from + chunkCount, keys.count);
      const part = packed.subarray(from * keyBytes, to * keyBytes);
      this.#ask(state, part, to - from, (result) => {
        statuses.set(result.statuses, from);
        hitCount += result.hitCount;
        reason ??= result.reason;
        if (--chunksLeft === 0) done({ statuses, hitCount, ...(reason === undefined ? {} : { reason }) });
      });
    }
  }

  #ask(state: IdState, packed: Uint8Array, count: number, done: (result: LookupResult) => void): void {
    const { times, shards } = this.#context;
    const now = this.#context.now();
    const ttl = this.#context.remote()?.isKvpeer === true ? { ttlMs: times.lookupMs } : {};
    const frame = writeLookup(state.id, packed, shards.keyBytes, state.round, ttl);
    const lookup: OpenLookup = {
      state,
      round: state.round,
      asked: askedKeys(frame, shards.keyBytes),
      statuses: new Uint8Array(count),
      openCount: count,
      startedMs: now,
      deadlineMs: now + times.lookupMs,
      done,
    };
    state.lookups.push(lookup);
    state.isProbed = true;
    this.#deadlines.add(lookup);
    this.#context.wakeAt(lookup.deadlineMs);
    this.#context.send(frame);
  }

  load(kvRequestId: string, keys: KeySpan, options: LoadOptions, done: (result: LoadResult) => void): void {
    if (keys.count === 0 || this.#isOver) {
      const slots = new Int32Array(keys.count).fill(-1);
      if (keys.count > 0) this.#context.counters.miss('peer-down', keys.count);
      done({
        slots,
        pins: [],
        loadedCount: 0,
        pulledCount: 0,
        ...(keys.count > 0 ? { reason: 'peer-down' } : {}),
      });
      return;
    }
    const state = this.#stateOf(kvRequestId);
    const load: Load = new Load(this.#loadHost, kvRequestId, keys, options, {
      fetch: (fetchKeys, indexes) => this.#fetch(state, load, fetchKeys, indexes),
      nothingToFetch: () => {
        state.starting.delete(load);
        this.#giveUp(state);
      },
      abort: (round) => {
        this.#context.send(writeAbortFetch(state.id, round));
      },
      ended: (outcome) => {
        this.#onLoadEnded(state, load, outcome);
      },
      result: done,
    });
    state.starting.add(load);
    this.#loads.add(load);
    load.start();
  }

  /** Closes the current round with a fetch for this load. */
  #fetch(state: IdState, load: Load, keys: Uint8Array, indexes: Int32Array): number {
    state.starting.delete(load);
    const round = state.round++;
    state.isProbed = false;
    state.loads.set(round, load);
    const ttl = this.#context.remote()?.isKvpeer === true ? { ttlMs: Math.ceil(load.budgetMs) } : {};
    this.#context.send(writeFetch(state.id, keys, this.#context.shards.keyBytes, indexes, round, ttl));
    return round;
  }

  #onLoadEnded(state: IdState, load: Load, outcome: LoadOutcome): void {
    state.starting.delete(load);
    this.#loads.delete(load);
    if (outcome.round !== undefined) state.loads.delete(outcome.round);
    this.#forgetIfIdle(state);
  }

  giveUpRound(kvRequestId: string): void {
    const state = this.#ids.get(kvRequestId);
    if (!state) return;
    this.#endLookups(state, state.round, 'lookup-deadline');
    this.#giveUp(state);
    this.#forgetIfIdle(state);
  }

  /** The current round is not wanted: its pins at the peer go, the id continues with the next round. */
  #giveUp(state: IdState): void {
    if (!state.isProbed) return;
    this.#context.send(writeAbortFetch(state.id, state.round));
    state.round++;
    state.isProbed = false;
  }

  finish(kvRequestId: string): void {
    const state = this.#ids.get(kvRequestId);
    if (!state || state.isFinished) return;
    state.isFinished = true;
    for (const load of [...state.starting, ...state.loads.values()]) load.cancel();
    this.#endLookups(state, undefined, undefined);
    if (state.isProbed) {
      const none = new Uint8Array(0);
      this.#context.send(
        writeFetch(state.id, none, this.#context.shards.keyBytes, new Int32Array(0), state.round),
      );
      state.isProbed = false;
      state.round++;
    }
    this.#forgetIfIdle(state);
  }

  onLookupResp(message: LookupRespMessage): void {
    const state = this.#ids.get(message.kvRequestId);
    if (!state) {
      this.#context.counters.ignored(message.type);
      return;
    }
    let isUsed = false;
    // Oldest first: a plain peer's answer has no round, and it answers in order.
    for (const lookup of [...state.lookups]) {
      if (message.roundSeq !== undefined && message.roundSeq !== lookup.round) continue;
      const answeredCount = applyAnswer(lookup.asked, lookup.statuses, message.keys, message.hits);
      if (answeredCount === 0) continue;
      isUsed = true;
      lookup.openCount -= answeredCount;
      if (lookup.openCount === 0) this.#answered(lookup);
      break;
    }
    if (!isUsed) this.#context.counters.ignored(message.type);
  }

  #answered(lookup: OpenLookup): void {
    const { state } = lookup;
    remove(state.lookups, lookup);
    this.#deadlines.delete(lookup);
    const { done } = lookup;
    if (done) {
      lookup.done = undefined;
      this.#context.counters.lookupSeconds((this.#context.now() - lookup.startedMs) / 1000);
      done({ statuses: lookup.statuses, hitCount: countHits(lookup.statuses) });
    }
    this.#forgetIfIdle(state);
  }

  onTransferDone(message: TransferDoneMessage): void {
    const load = this.#ids.get(message.kvRequestId)?.loads.get(message.roundSeq);
    if (load) load.onTransferDone(message.success);
    else this.#onRoundEnded(message);
  }

  onAbortAck(message: AbortAckMessage): void {
    const load = this.#ids.get(message.kvRequestId)?.loads.get(message.roundSeq);
    if (load) load.onAbortAck();
    else this.#onRoundEnded(message);
  }

  /** Late, or for a round that was given up: slots in quarantine may be waiting for it. */
  #onRoundEnded(message: TransferDoneMessage | AbortAckMessage): void {
    const writer = this.#context.writer();
    if (writer) this.#quarantine.onRoundEnded(writer, message.kvRequestId, message.roundSeq);
    this.#context.counters.ignored(message.type);
  }

  tick(nowMs: number): void {
    this.#rounds.tick(nowMs);
    for (const lookup of this.#deadlines) {
      if (nowMs < lookup.deadlineMs) {
        this.#context.wakeAt(lookup.deadlineMs);
        break;
      }
      this.#deadlines.delete(lookup);
      this.#expire(lookup);
    }
    for (const load of [...this.#loads]) load.tick(nowMs);
  }

  /** A lookup that got no answer in time; its round is released unless another lookup of it can still be used. */
  #expire(lookup: OpenLookup): void {
    const { state } = lookup;
    const wasWanted = lookup.done !== undefined;
    remove(state.lookups, lookup);
    this.#endLookup(lookup, 'lookup-deadline');
    const isRoundWanted =
      state.starting.size > 0 || state.lookups.some((other) => other.round === state.round);
    if (wasWanted && lookup.round === state.round && !isRoundWanted) this.#giveUp(state);
    this.#forgetIfIdle(state);
  }

  end(): void {
    this.#isOver = true;
    for (const state of [...this.#ids.values()]) {
      this.#endLookups(state, undefined, 'peer-down');
      for (const load of [...state.starting, ...state.loads.values()]) load.onSessionEnd();
    }
    this.#ids.clear();
    this.#deadlines.clear();
  }

  stats(): { readonly idCount: number; readonly openLookupCount: number; readonly openLoadCount: number } {
    let openLookupCount = 0;
    let openLoadCount = 0;
    for (const state of this.#ids.values()) {
      openLookupCount += state.lookups.length;
      openLoadCount += state.loads.size + state.starting.size;
    }
    return { idCount: this.#ids.size, openLookupCount, openLoadCount };
  }

  #stateOf(id: string): IdState {
    const known = this.#ids.get(id);
    if (known) {
      known.isFinished = false;
      return known;
    }
    const state: IdState = {
      id,
      round: this.#rounds.recall(id),
      isProbed: false,
      isFinished: false,
      lookups: [],
      loads: new Map(),
      starting: new Set(),
    };
    this.#ids.set(id, state);
    return state;
  }

  /** An id is kept while something of it is open, or its round at the peer is; its number is remembered longer. */
  #forgetIfIdle(state: IdState): void {
    const isIdle =
      !state.isProbed && state.loads.size === 0 && state.starting.size === 0 && state.lookups.length === 0;
    if (!isIdle || this.#ids.get(state.id) !== state) return;
    this.#ids.delete(state.id);
    if (state.round > 0) this.#rounds.remember(state.id, state.round, this.#context.now());
  }

  /** Ends the callers' waits; the records stay until their answers or deadlines, so that late answers find them. */
  #endLookups(state: IdState, round: number | undefined, reason: MissReason | undefined): void {
    for (const lookup of state.lookups) {
      if (round === undefined || lookup.round === round) this.#endLookup(lookup, reason);
    }
  }

  #endLookup(lookup: OpenLookup, reason: MissReason | undefined): void {
    const { done, statuses } = lookup;
    if (!done) return;
    lookup.done = undefined;
    if (reason) this.#context.counters.miss(reason, lookup.openCount);
    // The caller gets a copy: the record goes on waiting for its answer.
    const result = statuses.slice();
    for (let i = 0; i < result.length; i++) if (result[i] === 0) result[i] = MISS;
    done({ statuses: result, hitCount: countHits(result), reason: reason ?? 'peer-down' });
  }
}

function countHits(statuses: Uint8Array): number {
  let count = 0;
  for (const status of statuses) if (status === HIT) count++;
  return count;
}

function remove<T>(list: T[], item: T): void {
  const at = list.indexOf(item);
  if (at >= 0) list.splice(at, 1);
}
