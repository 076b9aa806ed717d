// A set of host:port endpoints, whatever their spelling.

import { foldHost } from '../params/address.js';
import type { PeerAddress } from '../params/types.js';

/**
 * Spellings of one address are one endpoint; a name and its address are two, because nothing here asks a resolver:
 * what a name resolves to can change between the check and the dialling.
 */
export class Endpoints {
  readonly #keys: ReadonlySet<string>;

  constructor(addresses: Iterable<PeerAddress>) {
    this.#keys = new Set(Array.from(addresses, ({ host, port }) => keyOf(host, port)));
  }

  has(host: string, port: number): boolean {
    return this.#keys.has(keyOf(host, port));
  }

  get size(): number {
    return this.#keys.size;
  }
}

/** A folded host has no blank. */
function keyOf(host: string, port: number): string {
  return `${foldHost(host)} ${port}`;
}
