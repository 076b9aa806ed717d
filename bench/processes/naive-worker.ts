// The worker of the naive design.

import { KEY_BYTES, benchKeys } from '../support/keys.js';

const slots = new Map<string, number>();

/** Holds the blocks with the numbers below `count`. */
export function hold(count: number): void {
  for (let slot = 0; slot < count; slot++) {
    slots.set(benchKeys(slot, 1).toString('hex', 0, KEY_BYTES), slot);
  }
}

export function find(keys: readonly Uint8Array[]): boolean[] {
  return keys.map((key) => slots.has(Buffer.from(key.buffer, key.byteOffset, key.length).toString('hex')));
}
