// When a slot that a remote producer has finished with may be used again: not before what had arrived has landed.

import type { Arrivals } from '../../../native/nixl.js';

/**
 * A producer's word (transfer_done, abort_ack, its exit) can be handled before this process's own progress thread has
 * read the last bytes of its writes from the kernel, above all after this process stood still. So before a slot that a
 * remote write could reach becomes free: look at what has arrived and is not read, wait until it is, and a little
 * longer, since the progress thread may be copying what it read last.
 */
export const SETTLE_MS = 5;

export interface LandingOptions {
  /** What has arrived and is not read now; undefined without a receive agent (then nothing can land). */
  readonly waitingArrivals: () => Arrivals | undefined;
  readonly haveBeenRead: (arrivals: Arrivals) => boolean;
  readonly after: (ms: number, callback: () => void) => void;
}

type Then = () => void;

export class LandingGate {
  private readonly options: LandingOptions;
  /** Asked since the last look. */
  private asked: Then[] = [];
  /** Waiting for these arrivals. */
  private looked: { readonly arrivals: Arrivals | undefined; readonly waiting: readonly Then[] } | undefined;
  private isTicking = false;
  private isClosed = false;

  constructor(options: LandingOptions) {
    this.options = options;
  }

  /** Calls `then` once what has arrived by now has landed: after SETTLE_MS to 2 * SETTLE_MS when nothing waits. */
  whenLanded(then: Then): void {
    if (this.isClosed) {
      then();
      return;
    }
    this.asked.push(then);
    if (!this.isTicking) this.look();
  }

  /** Whoever waits goes on at once: the receive agent is about to go. */
  close(): void {
    this.isClosed = true;
    const waiting = [...(this.looked?.waiting ?? []), ...this.asked];
    this.looked = undefined;
    this.asked = [];
    for (const then of waiting) then();
  }

  private look(): void {
    this.looked = { arrivals: this.options.waitingArrivals(), waiting: this.asked };
    this.asked = [];
    this.tickLater();
  }

  private tickLater(): void {
    this.isTicking = true;
    this.options.after(SETTLE_MS, () => {
      this.tick();
    });
  }

  private tick(): void {
    this.isTicking = false;
    if (this.looked === undefined) return;
    const { arrivals, waiting } = this.looked;
    if (arrivals !== undefined && !this.options.haveBeenRead(arrivals)) {
      this.tickLater();
      return;
    }
    this.looked = undefined;
    if (this.asked.length > 0) this.look();
    for (const then of waiting) then();
  }
}
