// Memory of peers that failed: how long a peer is left alone, and which hosts are suspected.

/**
 * A faulty peer may be dialled again at once the first time; a further fault waits `minMs`, doubling to `maxMs`.
 * A peer that gave no trouble for `maxMs` after its last wait starts afresh. One that comes to us itself may be dialled
 * at once, but its faults still count: otherwise a peer that comes up and breaks again would never be left alone.
 */
export class Backoff {
  readonly #minMs: number;
  readonly #maxMs: number;
  readonly #maxEntries: number;
  readonly #peers = new Map<string, { readonly faultCount: number; readonly untilMs: number }>();
  /** Hosts with the time of their last fault. */
  readonly #suspectedHosts = new Map<string, number>();

  constructor(times: { readonly backoffMinMs: number; readonly backoffMaxMs: number }, maxEntries = 4_096) {
    this.#minMs = times.backoffMinMs;
    this.#maxMs = times.backoffMaxMs;
    this.#maxEntries = maxEntries;
  }

  /** @returns the wait in milliseconds before the peer is dialled again */
  onFault(address: string, nowMs: number): number {
    const known = this.#peers.get(address);
    const isFresh = known === undefined || nowMs > known.untilMs + this.#maxMs;
    const faultCount = isFresh ? 1 : known.faultCount + 1;
    const waitMs =
      faultCount === 1 ? 0 : Math.min(this.#minMs * 2 ** Math.min(faultCount - 2, 30), this.#maxMs);
    remember(this.#peers, address, { faultCount, untilMs: nowMs + waitMs }, this.#maxEntries);
    remember(this.#suspectedHosts, hostOf(address), nowMs, this.#maxEntries);
    return waitMs;
  }

  /** A session with the peer became ready: its host is trusted again. */
  onSuccess(address: string): void {
    this.#suspectedHosts.delete(hostOf(address));
  }

  /** The peer itself came to us, alive: it is not waited for. */
  onConnectFrom(address: string, nowMs: number): void {
    const known = this.#peers.get(address);
    if (known && known.untilMs > nowMs) this.#peers.set(address, { ...known, untilMs: nowMs });
  }

  isHeld(address: string, nowMs: number): boolean {
    const known = this.#peers.get(address);
    return known !== undefined && nowMs < known.untilMs;
  }

  /** Something on the host failed and nothing succeeded since: its first sign of life is not waited for as long. */
  isSuspected(address: string): boolean {
    return this.#suspectedHosts.has(hostOf(address));
  }

  get size(): number {
    return this.#peers.size;
  }
}

/** The host part of `host:port`. */
export function hostOf(address: string): string {
  return address.slice(0, address.lastIndexOf(':'));
}

/** Insert as the newest; the oldest goes when the map is full. */
function remember<T>(map: Map<string, T>, key: string, value: T, maxEntries: number): void {
  map.delete(key);
  map.set(key, value);
  if (map.size <= maxEntries) return;
  for (const oldest of map.keys()) {
    map.delete(oldest);
    return;
  }
}
