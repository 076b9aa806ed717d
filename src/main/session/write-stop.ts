// Stopping writes to one peer for good: the hard stop, and the wait until nothing of it is in a socket any more.
//
//     request(write) ---> shards.hardStop(peer) ---> sockets to the peer drained, at most 2 s ---> whenSettled() runs
//                          every serve ends first
//
// A write that was cut, or that failed, may have left bytes in a socket of this host: they land when the peer reads.
// So nothing tells the peer that its slots are free before whenSettled() has run (design.md section 6 rule 9).

import type { DataPeer, ShardClient } from '../shards/shard-client.js';
import type { Write } from './producer-rounds.js';
import type { SessionCounters } from './roles.js';

export interface WriteStopOptions {
  readonly address: string;
  readonly shards: Pick<ShardClient, 'hardStop'>;
  readonly counters: Pick<SessionCounters, 'hardStop'>;
  /** `done` once no socket to the address has unsent data, at the latest after 2 s. */
  readonly socketsDrained: (address: string, done: () => void) => void;
  now(): number;
  wakeAt(timeMs: number): void;
  /** A hard stop was needed: the peer may be left alone for a while. */
  onHardStop(): void;
  /** No stop is under way any more, nor is anything waiting for sockets. */
  onIdle(): void;
}

/** After a hard stop that could not be asked for (full ring, dying worker), or that did not end a write it should have. */
const RETRY_MS = 1_000;

export class WriteStop {
  readonly #options: WriteStopOptions;
  /** Writes whose time is over. */
  readonly #overdue = new Set<Write>();
  #isStopping = false;
  /** A write became overdue while a stop was running, which may not know of it. */
  #isStopAgain = false;
  #isDraining = false;
  #retryMs = Infinity;
  #settleCallbacks: (() => void)[] = [];

  constructor(options: WriteStopOptions) {
    this.#options = options;
  }

  get nextMs(): number {
    return this.#retryMs;
  }

  get isBusy(): boolean {
    return this.#isStopping || this.#isDraining || this.#settleCallbacks.length > 0;
  }

  /** The write must end now. One hard stop serves all that are asked for while it runs and end with it. */
  request(write: Write): void {
    this.#overdue.add(write);
    if (this.#isStopping) this.#isStopAgain = true;
    this.#stop(write.fetch.peer);
  }

  /** The write has ended, one way or another. */
  onEnded(write: Write): void {
    this.#overdue.delete(write);
  }

  /** `done` once no byte that was posted before can be on its way to the peer. */
  whenSettled(done: () => void): void {
    this.#settleCallbacks.push(done);
    this.#drain();
  }

  tick(nowMs: number): void {
    if (nowMs < this.#retryMs) return;
    this.#retryMs = Infinity;
    this.#stopOverdue();
  }

  #stopOverdue(): void {
    for (const write of this.#overdue) {
      this.#stop(write.fetch.peer);
      return;
    }
  }

  #stop(peer: DataPeer): void {
    if (this.#isStopping || this.#retryMs !== Infinity) return;
    this.#isStopping = true;
    this.#isStopAgain = false;
    this.#options.counters.hardStop();
    this.#options.onHardStop();
    this.#options.shards.hardStop(peer, (failure) => {
      this.#isStopping = false;
      if (failure === undefined && this.#isStopAgain) {
        this.#stopOverdue();
      } else if (this.#overdue.size > 0) {
        this.#retryMs = this.#options.now() + RETRY_MS;
        this.#options.wakeAt(this.#retryMs);
      }
      // Also when every write ended by itself at the last moment: sockets of the old agent were cut.
      this.whenSettled(() => undefined);
    });
  }

  /** The sockets of a cut write are closed by the end of the hard stop, so they are looked at after it. */
  #drain(): void {
    if (this.#isStopping || this.#isDraining || this.#settleCallbacks.length === 0) return;
    this.#isDraining = true;
    const callbacks = this.#settleCallbacks;
    this.#settleCallbacks = [];
    this.#options.socketsDrained(this.#options.address, () => {
      this.#isDraining = false;
      for (const callback of callbacks) callback();
      this.#drain();
      if (!this.isBusy) this.#options.onIdle();
    });
  }
}
