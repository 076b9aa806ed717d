// The producer's writes to one peer: their clocks, their end, and the answers that wait for it.
//
//     clocks, from receipt of the fetch             plain peer      kvpeer
//       nothing is posted after                      plainPostMs     quarantineMaxMs
//       unfinished writes are hard-stopped after     plainStopMs     quarantineMaxMs
//     from abort_fetch, hard stop after              plainAbortMs    plainStopMs
//     from the session's end, hard stop after        at once         plainAbortMs
//
// A plain peer reuses its slots 40 s after its fetch, and at once when its session ends; a kvpeer quarantines them until
// we say that nothing can land, so its writes get the time to end by themselves (design.md section 6 rules 2 and 9).

import type { FetchMessage } from '../protocol/messages.js';
import { writeAbortAck, writeTransferDone } from '../protocol/write.js';
import type { DataPeer, Failure, ServeRequest, ServeResult } from '../shards/shard-client.js';
import { Outcome } from '../../shared/operations.js';
import { Deadlines } from './deadlines.js';
import type { HeldMessages } from './held-messages.js';
import type { Demand, Fetch, OwedAnswer, ProducerRounds, Round, Write } from './producer-rounds.js';
import type { RoleContext } from './roles.js';
import type { WriteStop } from './write-stop.js';

export interface ProducerWritesOptions {
  readonly context: RoleContext;
  readonly rounds: ProducerRounds;
  readonly stop: WriteStop;
  readonly held: HeldMessages;
  /** A write has landed or can no longer land. */
  readonly onLanded: () => void;
}

export class ProducerWrites {
  readonly #context: RoleContext;
  readonly #rounds: ProducerRounds;
  readonly #stop: WriteStop;
  readonly #held: HeldMessages;
  readonly #onLandedHook: () => void;
  readonly #posts: Deadlines<Fetch>;
  readonly #stops: Deadlines<Fetch>;
  readonly #abortStops: Deadlines<Fetch>;
  readonly #writes = new Set<Write>();
  #landingCount = 0;
  #endStopMs = Infinity;

  constructor({ context, rounds, stop, held, onLanded }: ProducerWritesOptions) {
    this.#context = context;
    this.#rounds = rounds;
    this.#stop = stop;
    this.#held = held;
    this.#onLandedHook = onLanded;
    const queue = (): Deadlines<Fetch> =>
      new Deadlines((timeMs) => {
        context.wakeAt(timeMs);
      });
    this.#posts = queue();
    this.#stops = queue();
    this.#abortStops = queue();
  }

  /** Writes that have not ended. */
  get writeCount(): number {
    return this.#writes.size;
  }

  /** Writes that may still land: those, and cut ones until the sockets are empty. */
  get landingCount(): number {
    return this.#landingCount;
  }

  get isKvpeer(): boolean {
    return this.#context.remote()?.isKvpeer === true;
  }

  get nextMs(): number {
    return Math.min(this.#posts.nextMs, this.#stops.nextMs, this.#abortStops.nextMs, this.#endStopMs);
  }

  /** Starts the clocks of a fetch. It becomes the one of its round that is answered. */
  begin(round: Round, message: FetchMessage, peer: DataPeer, demand: Demand | undefined): Fetch {
    const receivedMs = this.#context.now();
    const fetch: Fetch = {
      round,
      message,
      peer,
      receivedMs,
      heldBytes: 0,
      isClosed: false,
      writes: new Set(),
      demand,
    };
    const { plainPostMs, plainStopMs, quarantineMaxMs } = this.#context.times;
    this.#posts.set(fetch, receivedMs + (this.isKvpeer ? quarantineMaxMs : plainPostMs));
    this.#stops.set(fetch, receivedMs + (this.isKvpeer ? quarantineMaxMs : plainStopMs));
    this.#held.add(fetch, message.keys);
    round.fetch = fetch;
    return fetch;
  }

  write(fetch: Fetch, request: ServeRequest, blockCount: number, onEnded: Write['onEnded']): void {
    const write: Write = { fetch, blockCount, startedMs: this.#context.now(), onEnded, handle: undefined };
    fetch.writes.add(write);
    this.#writes.add(write);
    fetch.round.landingCount += 1;
    this.#landingCount += 1;
    write.handle = this.#context.shards.serve(request, (failure, result) => {
      this.#onServed(write, failure, result);
    });
  }

  /** Nothing more of the fetch is posted; what was posted drains. */
  close(fetch: Fetch): void {
    fetch.isClosed = true;
    if (fetch.round.fetch === fetch) fetch.round.fetch = undefined;
    for (const write of fetch.writes) write.handle?.cancelUnposted();
    if (fetch.writes.size === 0) this.#forget(fetch);
  }

  /** As close(), and what was posted has only the time that an abort leaves it. */
  abort(fetch: Fetch): void {
    this.close(fetch);
    if (fetch.writes.size === 0) return;
    const { plainAbortMs, plainStopMs } = this.#context.times;
    this.#abortStops.set(fetch, this.#context.now() + (this.isKvpeer ? plainStopMs : plainAbortMs));
  }

  /** The answer goes out as soon as nothing of the pair can land. An earlier one that did not go out is dropped. */
  owe(round: Round, answer: OwedAnswer): void {
    round.owed = answer;
    this.#pay(round);
  }

  tick(nowMs: number): void {
    this.#posts.expire(nowMs, (fetch) => {
      for (const write of fetch.writes) write.handle?.cancelUnposted();
    });
    const stopFetch = (fetch: Fetch): void => {
      this.#stopAll(fetch.writes);
    };
    this.#stops.expire(nowMs, stopFetch);
    this.#abortStops.expire(nowMs, stopFetch);
    if (nowMs >= this.#endStopMs) {
      this.#endStopMs = Infinity;
      this.#stopAll(this.#writes);
    }
  }

  /** The session is over and every fetch was closed: what is unfinished gets its last time. */
  end(): void {
    if (this.#writes.size === 0) return;
    if (this.isKvpeer) {
      this.#endStopMs = this.#context.now() + this.#context.times.plainAbortMs;
      this.#context.wakeAt(this.#endStopMs);
    } else {
      this.#stopAll(this.#writes);
    }
  }

  #onServed(write: Write, failure: Failure | undefined, result: ServeResult): void {
    const { fetch } = write;
    fetch.writes.delete(write);
    this.#writes.delete(write);
    this.#stop.onEnded(write);
    this.#count(write, failure, result);
    // The answer is decided before the write counts as landed, so that it leaves with the last one.
    write.onEnded(failure, result);
    if (fetch.isClosed && fetch.writes.size === 0) this.#forget(fetch);
    if (mayLandLater(failure)) {
      this.#stop.whenSettled(() => {
        this.#onLanded(fetch.round);
      });
    } else {
      this.#onLanded(fetch.round);
    }
  }

  #onLanded(round: Round): void {
    round.landingCount -= 1;
    this.#landingCount -= 1;
    this.#pay(round);
    this.#onLandedHook();
  }

  #pay(round: Round): void {
    if (round.landingCount > 0) return;
    const { owed, kvRequestId, roundSeq } = round;
    if (owed !== undefined) {
      round.owed = undefined;
      this.#context.send(
        owed.type === 'abort_ack'
          ? writeAbortAck(kvRequestId, roundSeq)
          : writeTransferDone(kvRequestId, owed.success, roundSeq, owed),
      );
    }
    this.#rounds.settle(round, this.#context.now());
  }

  #forget(fetch: Fetch): void {
    this.#held.drop(fetch);
    this.#posts.delete(fetch);
    this.#stops.delete(fetch);
    this.#abortStops.delete(fetch);
  }

  #stopAll(writes: Iterable<Write>): void {
    for (const write of writes) {
      write.handle?.cancelUnposted();
      this.#stop.request(write);
    }
  }

  #count(write: Write, failure: Failure | undefined, result: ServeResult): void {
    const { counters, log, address } = this.#context;
    if (result.bytes > 0) counters.bytesServed(result.bytes);
    if (failure === undefined) {
      counters.serveSeconds((this.#context.now() - write.startedMs) / 1_000);
      return;
    }
    if (failure.code === 'KVPEER_BUSY') counters.miss('busy', write.blockCount);
    else if (failure.code === 'KVPEER_WORKER_LOST') counters.miss('worker-lost', write.blockCount);
    else if (failure.code === 'outcome' && failure.outcome === Outcome.BadDestination) {
      counters.rejection('bad_destination');
    }
    log.debug({ peer: address, failure, blockCount: write.blockCount }, 'a write ended without success');
  }
}

/**
 * After these ends bytes may sit in a socket. Not after a refusal, when nothing was posted, nor when every posted part
 * has ended by itself.
 */
function mayLandLater(failure: Failure | undefined): boolean {
  if (failure === undefined) return false;
  if (failure.code !== 'outcome') return failure.code === 'KVPEER_WORKER_LOST';
  switch (failure.outcome) {
    case Outcome.Stopped:
    case Outcome.WriteFailed:
    case Outcome.Fault:
    case Outcome.WorkerLost:
      return true;
    case Outcome.Ok:
    case Outcome.NotInLease:
    case Outcome.BadDestination:
    case Outcome.Cancelled:
    case Outcome.BadMetadata:
    case Outcome.UnknownPeer:
    case Outcome.NoDataPlane:
      return false;
  }
}
