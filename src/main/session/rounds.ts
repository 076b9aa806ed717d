// The next round number of ids that this node has used at one peer.

/**
 * Round numbers outlive their requests: an id that comes back soon goes on where it stopped, so that nothing late of
 * the earlier use can be taken for the new one.
 */
export class RoundMemory {
  readonly #rememberedMs: number;
  readonly #maxIds: number;
  readonly #next = new Map<string, { readonly round: number; readonly sinceMs: number }>();

  constructor(rememberedMs: number, maxIds = 65_536) {
    this.#rememberedMs = rememberedMs;
    this.#maxIds = maxIds;
  }

  get size(): number {
    return this.#next.size;
  }

  recall(kvRequestId: string): number {
    return this.#next.get(kvRequestId)?.round ?? 0;
  }

  remember(kvRequestId: string, nextRound: number, nowMs: number): void {
    this.#next.delete(kvRequestId);
    this.#next.set(kvRequestId, { round: nextRound, sinceMs: nowMs });
    if (this.#next.size > this.#maxIds) this.#dropOldest();
  }

  /** Insertion order is time order: only what has expired is looked at. */
  tick(nowMs: number): void {
    for (const [id, { sinceMs }] of this.#next) {
      if (nowMs - sinceMs < this.#rememberedMs) return;
      this.#next.delete(id);
    }
  }

  #dropOldest(): void {
    for (const id of this.#next.keys()) {
      this.#next.delete(id);
      return;
    }
  }
}
