// How long a worker sleeps when a pass of its loop changed nothing: a pure function of what it has in hand.

/** In the first 50 us after a transfer moved, its end is likely to be seen by looking again at once. */
export const SPIN_MS = 0.05;
/** A request that is older than this is a frozen peer's, not a busy one's. */
export const FROZEN_AFTER_MS = 100;
/** Without open requests only the ring can bring work, and it wakes the worker: this is a safety net. */
export const IDLE_SLEEP_MS = 500;

const STEPS_MS = [0.05, 0.2, 1] as const;
const FROZEN_SLEEP_MS = 25;

/** What decides the next sleep. Times in milliseconds. */
export interface SleepInput {
  readonly openRequestCount: number;
  /** Age of the oldest open request. */
  readonly oldestOpenAgeMs: number;
  /** Since a request was last posted or ended. */
  readonly sinceProgressMs: number;
  /** Passes since then that slept. */
  readonly sleepCount: number;
}

/**
 * Milliseconds to wait on the armed word; 0 is another pass at once. A submission ends every sleep, but nothing wakes
 * a worker for NIXL: while writes are open it has to look by itself, soon at first, then less and less often, so that
 * one frozen write costs at most 1 % of a core (a wake-up and a poll, 200 us on a virtual machine, every 25 ms).
 */
export function sleepFor(input: SleepInput): number {
  if (input.openRequestCount === 0) return IDLE_SLEEP_MS;
  if (input.sinceProgressMs < SPIN_MS) return 0;
  if (input.oldestOpenAgeMs > FROZEN_AFTER_MS && input.sinceProgressMs > FROZEN_AFTER_MS)
    return FROZEN_SLEEP_MS;
  return STEPS_MS[Math.min(input.sleepCount, STEPS_MS.length - 1)];
}
