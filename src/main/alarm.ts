// One timer for all deadlines of a node: asked for any number of times, it fires about once per grain of time.

/** Deadlines are rounded up to this: at most a hundred ticks a second, however many deadlines there are. */
const GRAIN_MS = 10;
/** A longer one would fire at once. The clock is looked at when it fires, so a far time takes several. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/**
 * Remembers every time it is asked for (rounded up, each once) and calls `onTime` at or soon after it. Deadlines that
 * were met by then find nothing to do, so nothing is ever taken back.
 */
export class Alarm {
  readonly #now: () => number;
  readonly #onTime: (nowMs: number) => void;
  readonly #known = new Set<number>();
  /** Binary heap, smallest first. */
  readonly #heap: number[] = [];
  #timer: NodeJS.Timeout | undefined;
  #timerFor = Infinity;
  #isStopped = false;

  constructor(now: () => number, onTime: (nowMs: number) => void) {
    this.#now = now;
    this.#onTime = onTime;
  }

  wakeAt(timeMs: number): void {
    if (!Number.isFinite(timeMs) || this.#isStopped) return;
    const time = Math.ceil(timeMs / GRAIN_MS) * GRAIN_MS;
    if (this.#known.has(time)) return;
    this.#known.add(time);
    this.#push(time);
    this.#arm();
  }

  stop(): void {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    this.#heap.length = 0;
    this.#known.clear();
  }

  #arm(): void {
    const next = this.#heap.at(0);
    if (next === undefined || next >= this.#timerFor) return;
    clearTimeout(this.#timer);
    this.#timerFor = next;
    // At least one millisecond: setTimeout fires up to one early, and a tick that comes early finds nothing to do.
    this.#timer = setTimeout(
      () => {
        this.#fire();
      },
      Math.min(MAX_TIMER_MS, Math.max(1, Math.ceil(next - this.#now()))),
    );
  }

  #fire(): void {
    this.#timerFor = Infinity;
    const now = this.#now();
    let isDue = false;
    for (let next = this.#heap.at(0); next !== undefined && next <= now; next = this.#heap.at(0)) {
      this.#pop();
      this.#known.delete(next);
      isDue = true;
    }
    if (isDue) this.#onTime(now);
    this.#arm();
  }

  #push(time: number): void {
    const heap = this.#heap;
    let at = heap.push(time) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (heap[parent] <= time) break;
      heap[at] = heap[parent];
      at = parent;
    }
    heap[at] = time;
  }

  #pop(): void {
    const heap = this.#heap;
    const last = heap.pop();
    if (last === undefined || heap.length === 0) return;
    let at = 0;
    for (;;) {
      const left = 2 * at + 1;
      if (left >= heap.length) break;
      const child = left + 1 < heap.length && heap[left + 1] < heap[left] ? left + 1 : left;
      if (heap[child] >= last) break;
      heap[at] = heap[child];
      at = child;
    }
    heap[at] = last;
  }
}
