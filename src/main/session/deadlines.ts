// Deadlines of one length: a queue in which looking for what has expired costs only what has expired.

/**
 * Items with the time they are due. All deadlines of one instance have the same length, so the order of insertion is
 * the order of expiry (within the disorder in which they were added: one that was added late is seen a little late).
 */
export class Deadlines<T> {
  readonly #due = new Map<T, number>();
  readonly #wakeAt: (timeMs: number) => void;

  /** `wakeAt` is told when the first item comes; after a tick the owner asks for nextMs again. */
  constructor(wakeAt: (timeMs: number) => void) {
    this.#wakeAt = wakeAt;
  }

  get size(): number {
    return this.#due.size;
  }

  /** When the next one is due; Infinity when there is none. */
  get nextMs(): number {
    for (const dueMs of this.#due.values()) return dueMs;
    return Infinity;
  }

  has(item: T): boolean {
    return this.#due.has(item);
  }

  /** An item that is present gets the new time. */
  set(item: T, dueMs: number): void {
    this.#due.delete(item);
    if (this.#due.size === 0) this.#wakeAt(dueMs);
    this.#due.set(item, dueMs);
  }

  delete(item: T): boolean {
    return this.#due.delete(item);
  }

  /** Takes out what is due, oldest first. The callback may add and delete. */
  expire(nowMs: number, onExpired: (item: T) => void): void {
    for (const [item, dueMs] of this.#due) {
      if (dueMs > nowMs) return;
      this.#due.delete(item);
      onExpired(item);
    }
  }

  /** Takes out the oldest. */
  shift(): T | undefined {
    for (const item of this.#due.keys()) {
      this.#due.delete(item);
      return item;
    }
    return undefined;
  }
}
