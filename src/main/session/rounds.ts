// The next round number of every id that this node has used at some peer.

/**
 * Round numbers outlive requests and sessions: an id that comes back soon goes on where it stopped, so that nothing
 * late of the earlier use can be taken for the new one. One memory for the node.
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

  /** The lowest round that the id may use at this address. */
  recall(address: string, kvRequestId: string): number {
    return this.#next.get(nameOf(address, kvRequestId))?.round ?? 0;
  }

  remember(address: string, kvRequestId: string, nextRound: number, nowMs: number): void {
    const name = nameOf(address, kvRequestId);
    this.#next.delete(name);
    this.#next.set(name, { round: nextRound, sinceMs: nowMs });
    if (this.#next.size > this.#maxIds) this.#dropOldest();
  }

  /** Insertion order is time order: only what has expired is looked at. */
  tick(nowMs: number): void {
    for (const [name, { sinceMs }] of this.#next) {
      if (nowMs - sinceMs < this.#rememberedMs) return;
      this.#next.delete(name);
    }
  }

  #dropOldest(): void {
    for (const name of this.#next.keys()) {
      this.#next.delete(name);
      return;
    }
  }
}

/** No address has a space in it. */
function nameOf(address: string, kvRequestId: string): string {
  return `${address} ${kvRequestId}`;
}
