// How late the event loop of the main thread is.

import { monitorEventLoopDelay, type IntervalHistogram } from 'node:perf_hooks';

/** Node measures with a timer; what it reports is the timer's interval plus the delay. */
const RESOLUTION_MS = 20;

/** Delays since the last `reset`, in milliseconds. Measures from construction until `close`. */
export class EventLoopDelay {
  readonly #histogram: IntervalHistogram;

  constructor() {
    this.#histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
    this.#histogram.enable();
  }

  /** The delay that so many per cent of the samples stay below. */
  percentileMs(percentile: number): number {
    return this.#histogram.count === 0 ? 0 : toDelay(this.#histogram.percentile(percentile));
  }

  maxMs(): number {
    return this.#histogram.count === 0 ? 0 : toDelay(this.#histogram.max);
  }

  reset(): void {
    this.#histogram.reset();
  }

  close(): void {
    this.#histogram.disable();
  }
}

function toDelay(nanoseconds: number): number {
  return Math.max(0, nanoseconds / 1e6 - RESOLUTION_MS);
}
