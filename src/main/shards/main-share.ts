// What the main thread does itself instead of a worker: short lists always, longer ones while matches come one by one.

/** The longest list that is matched on the main thread whenever the workers are idle. */
const MATCH_KEYS = 64;
/** The same while matches come one by one: up to 70 us of the main thread. */
const QUIET_MATCH_KEYS = 1024;
/** Two matches that are this near to each other are wanted at the same time ... */
const TOGETHER_MS = 0.1;
/** ... and for so long afterwards the workers are used: what is short of time then is the main thread. */
const BUSY_MS = 20;
/** Pins up to this many are given back on the main thread: cheaper than a trip over the rings. */
const RELEASE_PINS = 32;
/** The same while matches come one by one: up to 15 us of the main thread, less than a sleeping worker's wake-up. */
const QUIET_RELEASE_PINS = 1024;

/** The trip to a worker and back is two wake-ups, 100 us and more; a node that has much to do wakes nobody. */
export class MainShare {
  private readonly now: () => number;
  private lastMatchMs = -Infinity;
  private lastBusyMs = -Infinity;

  /** @param now milliseconds that never go back */
  constructor(now: () => number) {
    this.now = now;
  }

  /**
   * Whether a match is made here. To be asked once for every match: it is remembered when that was.
   *
   * @param isIdle no worker has anything in hand that somebody waits for
   */
  takesMatch(keyCount: number, isIdle: boolean): boolean {
    const nowMs = this.now();
    if (!isIdle || nowMs - this.lastMatchMs < TOGETHER_MS) this.lastBusyMs = nowMs;
    this.lastMatchMs = nowMs;
    return isIdle && keyCount <= (this.isQuietAt(nowMs) ? QUIET_MATCH_KEYS : MATCH_KEYS);
  }

  /** Whether so many pins are given back here. */
  takesRelease(pinCount: number): boolean {
    if (pinCount <= RELEASE_PINS) return true;
    return pinCount <= QUIET_RELEASE_PINS && this.isQuietAt(this.now());
  }

  /** Matches come one by one: none was wanted together with another, or while a worker had something in hand. */
  private isQuietAt(nowMs: number): boolean {
    return nowMs - this.lastBusyMs >= BUSY_MS;
  }
}
