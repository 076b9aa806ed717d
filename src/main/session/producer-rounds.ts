// What the producer half knows about the rounds of one peer, and for how long.
//
//                    lookup                       last answer + leaseMs             rememberedMs
//     (unknown) --------------> open: lookups, lease, fetch ---------> remembered --------------> (unknown)
//                                  |   nothing is left, one was answered  ^
//                                  +--------------------------------------+
//                                  |   nothing is left, none was answered, or the request is finished
//                                  +----------------------------------------------------------------> (unknown)
//
// A round is open while something hangs on it. A remembered one knows only that a lookup of it was answered: a fetch
// that comes for it can but fail, where a fetch for an unknown round waits for blocks (prefill/decode).

import type { FetchMessage, LookupMessage } from '../protocol/messages.js';
import type { TransferExtension } from '../protocol/write.js';
import type { DataPeer, Failure, ServeHandle, ServeResult, SlotSet } from '../shards/shard-client.js';
import { Deadlines } from './deadlines.js';
import type { MessageHolder } from './held-messages.js';

/** One `lookup` that has no answer yet. */
export interface Lookup extends MessageHolder {
  readonly round: Round;
  readonly message: LookupMessage;
  readonly receivedMs: number;
  /** Answered, or not wanted any more: what is still under way for it is released when it comes. */
  isClosed: boolean;
  isMatching: boolean;
  /** The hold time is over: what the next match finds pending is a miss. */
  isLast: boolean;
  /** What was pending at the last match; undefined before the first one and when nothing was. */
  wait: LookupWait | undefined;
}

export interface LookupWait {
  /** The answer so far, HIT or MISS per key of the message. */
  readonly hits: Uint8Array;
  /** Positions in the message whose slot was being written. */
  readonly positions: Int32Array;
  /** Their slots and generations. */
  readonly slots: Int32Array;
  readonly generations: Uint16Array;
}

/** One `fetch` that named keys. Known by its identity, not by (id, round): see {@link Round.fetch}. */
export interface Fetch extends MessageHolder {
  readonly round: Round;
  readonly message: FetchMessage;
  readonly peer: DataPeer;
  readonly receivedMs: number;
  /** Ended, aborted or replaced: nothing more is started for it. */
  isClosed: boolean;
  /** Writes that have not ended. */
  readonly writes: Set<Write>;
  /** Undefined for a fetch of leased blocks. */
  readonly demand: Demand | undefined;
}

/** A fetch without a lookup before it: its blocks may still have to be made (prefill/decode). */
export interface Demand {
  /** Positions in the message that no write has been started for; undefined: all. */
  positions: Int32Array | undefined;
  /** Blocks that have not been written. */
  unwrittenCount: number;
  isMatching: boolean;
  /** Something was stored while a match was under way. */
  isDirty: boolean;
  /** No more blocks will come: what the next match does not find fails the fetch. */
  isLast: boolean;
  /** The last match stopped at its pin limit: look again when these pins are gone. */
  isLimited: boolean;
  /** What has been written, for a peer that takes a part of it; undefined for another. */
  readonly written: Uint8Array | undefined;
  /** Nothing more is started: the result comes with the end of what is being written. */
  isOver: boolean;
  lastLookMs: number;
}

/** Blocks on their way to the peer. Their source slots stay pinned until it has ended or was stopped. */
export interface Write {
  readonly fetch: Fetch;
  readonly blockCount: number;
  readonly startedMs: number;
  /** Gives the source pins back and decides what becomes of the fetch. Called once. */
  readonly onEnded: (failure: Failure | undefined, result: ServeResult) => void;
  handle: ServeHandle | undefined;
}

/** What became of a fetch: a bitmap when some of its blocks were written and the others will not be. */
export type Written = 'all' | 'failed' | Uint8Array;

/** What the peer is waiting for, sent when nothing of the pair (id, round) can land any more. */
export type OwedAnswer =
  | ({ readonly type: 'transfer_done'; readonly success: boolean } & TransferExtension)
  | { readonly type: 'abort_ack' };

/** Everything about a pair (kv_request_id, round_seq). */
export interface Round {
  readonly kvRequestId: string;
  readonly roundSeq: number;
  /** Counts against the peer's limit of rounds; otherwise it is only remembered. */
  isOpen: boolean;
  /** A lookup was answered: a fetch names what the lease pins, or fails. */
  isAnswered: boolean;
  readonly lookups: Lookup[];
  /** The lease: pins of lookups, answered or not, that no fetch has taken over. */
  sets: SlotSet[];
  /** The fetch that will be answered. Earlier ones for the same pair drain without an answer. */
  fetch: Fetch | undefined;
  /** Writes for the pair that may still land, those of earlier fetches included. */
  landingCount: number;
  owed: OwedAnswer | undefined;
}

export interface RoundsOptions {
  readonly maxRounds: number;
  readonly rememberedMs: number;
  readonly wakeAt: (timeMs: number) => void;
}

/** Remembered rounds for each open one that is allowed: four full loads of the peer's rounds. */
const REMEMBERED_PER_ROUND = 4;

export class ProducerRounds {
  readonly #ids = new Map<string, Map<number, Round>>();
  readonly #remembered: Deadlines<Round>;
  readonly #options: RoundsOptions;
  #openCount = 0;

  constructor(options: RoundsOptions) {
    this.#options = options;
    this.#remembered = new Deadlines(options.wakeAt);
  }

  get openCount(): number {
    return this.#openCount;
  }

  get rememberedCount(): number {
    return this.#remembered.size;
  }

  get nextMs(): number {
    return this.#remembered.nextMs;
  }

  find(kvRequestId: string, roundSeq: number): Round | undefined {
    return this.#ids.get(kvRequestId)?.get(roundSeq);
  }

  /** The round, opened if it is not; undefined when the peer has as many as it may. */
  open(kvRequestId: string, roundSeq: number): Round | undefined {
    let rounds = this.#ids.get(kvRequestId);
    let round = rounds?.get(roundSeq);
    if (round?.isOpen) return round;
    if (this.#openCount >= this.#options.maxRounds) return undefined;
    if (round === undefined) {
      round = {
        kvRequestId,
        roundSeq,
        isOpen: true,
        isAnswered: false,
        lookups: [],
        sets: [],
        fetch: undefined,
        landingCount: 0,
        owed: undefined,
      };
      rounds ??= this.#addId(kvRequestId);
      rounds.set(roundSeq, round);
    } else {
      this.#remembered.delete(round);
      round.isOpen = true;
    }
    this.#openCount += 1;
    return round;
  }

  /** Open and remembered rounds of an id; a copy. */
  ofId(kvRequestId: string): readonly Round[] {
    const rounds = this.#ids.get(kvRequestId);
    return rounds === undefined ? [] : [...rounds.values()];
  }

  all(): readonly Round[] {
    return [...this.#ids.values()].flatMap((rounds) => [...rounds.values()]);
  }

  /** To be called when something of the round has ended: closes it if that was the last. */
  settle(round: Round, nowMs: number): void {
    if (
      round.lookups.length > 0 ||
      round.sets.length > 0 ||
      round.fetch !== undefined ||
      round.landingCount > 0 ||
      round.owed !== undefined
    ) {
      return;
    }
    if (round.isOpen) {
      round.isOpen = false;
      this.#openCount -= 1;
      if (round.isAnswered) this.#remember(round, nowMs);
    }
    if (!round.isAnswered) this.#forget(round);
  }

  tick(nowMs: number): void {
    this.#remembered.expire(nowMs, (round) => {
      this.#forget(round);
    });
  }

  #addId(kvRequestId: string): Map<number, Round> {
    const rounds = new Map<number, Round>();
    this.#ids.set(kvRequestId, rounds);
    return rounds;
  }

  #remember(round: Round, nowMs: number): void {
    this.#remembered.set(round, nowMs + this.#options.rememberedMs);
    if (this.#remembered.size > this.#options.maxRounds * REMEMBERED_PER_ROUND) {
      const oldest = this.#remembered.shift();
      if (oldest !== undefined) this.#forget(oldest);
    }
  }

  #forget(round: Round): void {
    this.#remembered.delete(round);
    const rounds = this.#ids.get(round.kvRequestId);
    rounds?.delete(round.roundSeq);
    if (rounds?.size === 0) this.#ids.delete(round.kvRequestId);
  }
}
