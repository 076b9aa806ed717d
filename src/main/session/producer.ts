// The producer half of a session: what each message does to leases, lookups and writes (design.md section 6).
//
//     lookup -------------> ProducerLookups ---pins---> Leases <---takes---+
//     fetch, was looked up ------------------------------------------------+---> ProducerWrites ---> transfer_done
//     fetch, never looked up ---> ProducerDemands -------------------------+          |
//     fetch of what is held ----> ProducerUnleased ------------------------+          |
//     abort_fetch, empty fetch, end: close all of these                            WriteStop (hard stop, sockets)

import type { AbortFetchMessage, FetchMessage, LookupMessage } from '../protocol/messages.js';
import { dropMessage } from '../protocol/message-memory.js';
import { writeAbortAck, writeTransferDone } from '../protocol/write.js';
import { positionsOf } from '../../shared/bitmap.js';
import type { DataPeer, KeySpan, SlotSet } from '../shards/shard-client.js';
import type { HeldBudget } from './held-messages.js';
import { HeldMessages } from './held-messages.js';
import { pickKeys } from './key-subset.js';
import { Leases } from './leases.js';
import { PinnedMatches } from './pinned-matches.js';
import { ProducerDemands } from './producer-demands.js';
import { ProducerLookups } from './producer-lookups.js';
import type { Fetch, Round, Written } from './producer-rounds.js';
import { ProducerRounds } from './producer-rounds.js';
import { ProducerUnleased } from './producer-unleased.js';
import { ProducerWrites } from './producer-writes.js';
import type { DecoderRequests, PinBudget, ProducerRole, RoleContext } from './roles.js';
import { WriteStop } from './write-stop.js';

export interface ProducerOptions {
  readonly context: RoleContext;
  readonly decoderRequests: DecoderRequests;
  readonly pinBudget: PinBudget;
  readonly heldBudget: HeldBudget;
  /** `done` once no socket of this host to the address has unsent data, at the latest after 2 s. */
  readonly socketsDrained: (address: string, done: () => void) => void;
  /** A hard stop was needed: the peer may be left alone for a while. */
  readonly onHardStop?: () => void;
}

interface Clock {
  /** When tick() has something to do; Infinity: never. */
  readonly nextMs: number;
  tick(nowMs: number): void;
}

/** See the contract in roles.ts. One for each session; everything in it goes with the session. */
export class Producer implements ProducerRole {
  onDrained: () => void = () => undefined;
  readonly #context: RoleContext;
  readonly #decoderRequests: DecoderRequests;
  readonly #rounds: ProducerRounds;
  readonly #leases: Leases;
  readonly #lookups: ProducerLookups;
  readonly #stop: WriteStop;
  readonly #writes: ProducerWrites;
  readonly #demands: ProducerDemands;
  readonly #unleased: ProducerUnleased;
  readonly #held: HeldMessages;
  /** Everything with deadlines, and what of it goes on when the session is over. */
  readonly #clocks: readonly Clock[];
  readonly #clocksAfterEnd: readonly Clock[];
  #isEnded = false;
  #isDrained = false;

  constructor(options: ProducerOptions) {
    const { context, decoderRequests, pinBudget, heldBudget, socketsDrained, onHardStop } = options;
    this.#context = context;
    this.#held = new HeldMessages(heldBudget);
    this.#decoderRequests = decoderRequests;
    const { address, counters, limits, shards, times } = context;
    const account = pinBudget.openAccount();
    const now = (): number => context.now();
    const wakeAt = (timeMs: number): void => {
      context.wakeAt(timeMs);
    };
    const onIdle = (): void => {
      this.#checkDrained();
    };
    this.#rounds = new ProducerRounds({
      maxRounds: limits.maxRounds,
      rememberedMs: times.rememberedMs,
      wakeAt,
    });
    this.#leases = new Leases({
      shards,
      account,
      leaseMs: times.leaseMs,
      wakeAt,
      onLapsed: (round, nowMs) => {
        this.#rounds.settle(round, nowMs);
      },
    });
    const matches = new PinnedMatches({ context, leases: this.#leases, account });
    this.#lookups = new ProducerLookups({
      context,
      rounds: this.#rounds,
      leases: this.#leases,
      matches,
      held: this.#held,
    });
    this.#stop = new WriteStop({
      address,
      shards,
      counters,
      socketsDrained,
      now,
      wakeAt,
      onHardStop: onHardStop ?? (() => undefined),
      onIdle,
    });
    this.#writes = new ProducerWrites({
      context,
      rounds: this.#rounds,
      stop: this.#stop,
      held: this.#held,
      onLanded: onIdle,
    });
    const onResult = (fetch: Fetch, written: Written): void => {
      this.#endFetch(fetch, written);
    };
    this.#demands = new ProducerDemands({
      context,
      writes: this.#writes,
      pinLimit: pinBudget.peerLimit,
      onResult,
    });
    this.#unleased = new ProducerUnleased({
      context,
      leases: this.#leases,
      matches,
      writes: this.#writes,
      onResult,
    });
    this.#clocksAfterEnd = [this.#writes, this.#stop];
    this.#clocks = [this.#lookups, this.#leases, this.#rounds, this.#demands, ...this.#clocksAfterEnd];
  }

  onLookup(message: LookupMessage): void {
    if (this.#isEnded) dropMessage(message);
    else this.#lookups.onLookup(message);
  }

  /**
   * A fetch that names keys closes the lookups of its round: those without an answer get none. One for a pair whose
   * earlier fetch has not ended takes its place: the earlier one gets no answer and posts nothing more, and no answer
   * for the pair leaves while one of its writes may still land. (vLLM ends the session for it. Here an id that comes
   * back with round 0, after an abort that took too long, is served.)
   */
  onFetch(message: FetchMessage): void {
    if (this.#isEnded) return;
    const { kvRequestId, roundSeq, keys } = message;
    if (keys.count === 0) {
      for (const round of this.#rounds.ofId(kvRequestId)) this.#finish(round);
      return;
    }
    const round = this.#rounds.open(kvRequestId, roundSeq);
    if (round === undefined) {
      this.#context.counters.rejection('max_rounds');
      this.#context.send(writeTransferDone(kvRequestId, false, roundSeq));
      return;
    }
    this.#lookups.close(round);
    if (round.fetch !== undefined) {
      this.#context.counters.rejection('fetch_replaced');
      this.#abandonFetch(round.fetch);
    }
    round.owed = undefined;
    const peer = this.#context.remote()?.dataPeer;
    const isIfHeld = message.ifHeld && this.#context.remote()?.features.has('speculative_fetch') === true;
    const refusal =
      refusalOf(message, peer, isIfHeld) ?? (this.#held.hasRoomFor(keys) ? undefined : 'max_held_bytes');
    if (peer === undefined || refusal !== undefined) {
      if (refusal !== undefined) this.#context.counters.rejection(refusal);
      this.#refuse(round);
    } else if (isIfHeld) {
      this.#unleased.start(round, message, peer);
    } else if (round.isAnswered) {
      this.#serveLease(round, message, peer);
    } else {
      this.#startDemand(round, message, peer);
    }
  }

  onAbortFetch({ kvRequestId, roundSeq }: AbortFetchMessage): void {
    if (this.#isEnded) return;
    const round = this.#rounds.find(kvRequestId, roundSeq);
    if (round === undefined) {
      this.#context.send(writeAbortAck(kvRequestId, roundSeq));
      return;
    }
    this.#lookups.close(round);
    this.#leases.drop(round);
    if (round.fetch !== undefined) this.#abandonFetch(round.fetch);
    this.#writes.owe(round, { type: 'abort_ack' });
  }

  onSettled(set: SlotSet): void {
    if (this.#isEnded) return;
    this.#lookups.onSettled(set);
    this.#demands.onSettled();
  }

  onDecoderStored(kvRequestId: string): void {
    this.#tellDemands(kvRequestId, false);
  }

  onDecoderFinished(kvRequestId: string): void {
    this.#tellDemands(kvRequestId, true);
  }

  tick(nowMs: number): void {
    const clocks = this.#isEnded ? this.#clocksAfterEnd : this.#clocks;
    for (const clock of clocks) clock.tick(nowMs);
    const nextMs = clocks.reduce((earliestMs, clock) => Math.min(earliestMs, clock.nextMs), Infinity);
    if (nextMs !== Infinity) this.#context.wakeAt(nextMs);
  }

  end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    for (const round of this.#rounds.all()) {
      round.owed = undefined;
      this.#finish(round);
    }
    this.#writes.end();
    this.#checkDrained();
  }

  isDrained(): boolean {
    return this.#isDrained;
  }

  stats(): ReturnType<ProducerRole['stats']> {
    return {
      leaseCount: this.#leases.leaseCount,
      leasePinCount: this.#leases.pinCount,
      parkedCount: this.#lookups.parkedCount + this.#demands.waitingCount,
      serveCount: this.#writes.writeCount,
    };
  }

  /** The request is finished: nothing of the round is answered but an abort that came before. */
  #finish(round: Round): void {
    this.#lookups.close(round);
    this.#leases.drop(round);
    if (round.fetch !== undefined) {
      this.#demands.forget(round.fetch);
      this.#writes.close(round.fetch);
    }
    if (round.owed?.type === 'transfer_done') round.owed = undefined;
    round.isAnswered = false;
    this.#rounds.settle(round, this.#context.now());
  }

  #abandonFetch(fetch: Fetch): void {
    this.#demands.forget(fetch);
    this.#writes.abort(fetch);
  }

  #refuse(round: Round): void {
    this.#leases.drop(round);
    this.#writes.owe(round, { type: 'transfer_done', success: false });
  }

  #serveLease(round: Round, message: FetchMessage, peer: DataPeer): void {
    const isPartial = this.#context.remote()?.features.has('partial_fetch') === true;
    const leases = this.#leases.take(round);
    if (leases.length === 0) {
      if (isPartial) this.#unleased.start(round, message, peer);
      else this.#refuse(round);
      return;
    }
    const { keys, blockIndexes: indexes } = message;
    const fetch = this.#writes.begin(round, message, peer, undefined);
    const request = { peer, indexes, byLease: { keys, leases, isPartial } };
    this.#writes.write(fetch, request, keys.count, (failure, { written }) => {
      this.#leases.giveBack(leases);
      if (!fetch.isClosed) this.#endFetch(fetch, failure === undefined ? (written ?? 'all') : 'failed');
    });
  }

  #startDemand(round: Round, message: FetchMessage, peer: DataPeer): void {
    const state = this.#decoderRequests.state(round.kvRequestId);
    if (state === 'reaped') {
      this.#refuse(round);
      return;
    }
    // Pins of lookups that were closed without an answer: the fetch does not rest on them.
    this.#leases.drop(round);
    this.#demands.start(round, message, peer, state === 'finished');
  }

  /** All is written, or nothing more will be. With checksums the consumer is told what it should have got. */
  #endFetch(fetch: Fetch, written: Written): void {
    const { shards } = this.#context;
    const keys = this.#writtenKeys(fetch, written);
    if (keys.count === 0 || this.#context.remote()?.features.has('checksums') !== true) {
      this.#closeFetch(fetch, written, undefined);
      return;
    }
    shards.match(keys, { pin: false }, (_failure, set) => {
      const checksums = set && shards.checksumsOf(set);
      if (set) shards.release(set);
      if (!fetch.isClosed && !this.#isEnded) this.#closeFetch(fetch, written, checksums);
    });
  }

  #writtenKeys({ message: { keys } }: Fetch, written: Written): KeySpan {
    if (written === 'all') return keys;
    const positions = written === 'failed' ? new Int32Array(0) : positionsOf(written, keys.count, true);
    return pickKeys(keys, positions, this.#context.shards.keyBytes);
  }

  #closeFetch(fetch: Fetch, written: Written, checksums: Uint8Array | undefined): void {
    this.#demands.forget(fetch);
    this.#writes.close(fetch);
    const success = written === 'all';
    if (success) this.#decoderRequests.onFetched(fetch.round.kvRequestId);
    this.#writes.owe(fetch.round, {
      type: 'transfer_done',
      success,
      checksums,
      written: typeof written === 'string' ? undefined : written,
    });
  }

  #tellDemands(kvRequestId: string, isLast: boolean): void {
    if (this.#isEnded || this.#demands.waitingCount === 0) return;
    for (const { fetch } of this.#rounds.ofId(kvRequestId)) {
      if (fetch !== undefined) this.#demands.onStored(fetch, isLast);
    }
  }

  #checkDrained(): void {
    if (!this.#isEnded || this.#isDrained) return;
    if (this.#writes.landingCount > 0 || this.#stop.isBusy) return;
    this.#isDrained = true;
    this.onDrained();
  }
}

/** Why a fetch cannot be served whatever the pool holds; a label of the rejection counter. */
function refusalOf(message: FetchMessage, peer: DataPeer | undefined, isIfHeld: boolean): string | undefined {
  if (peer === undefined) return 'no_data_plane';
  if (message.overRangeCount > 0) return 'bad_destination';
  if (message.keys.foreignCount > 0 && !isIfHeld) return 'foreign_key';
  return undefined;
}
