// Results of lookups as callers see them, and the memory of which keys a remote source said it holds.

import { freePayload } from './protocol/message-memory.js';
import { HIT } from './protocol/messages.js';
import type { Hits } from './peer-api.js';

/** Hits from one status byte per key (0xc3 for a hit). */
export function hitsOf(statuses: Uint8Array): Hits {
  const count = statuses.length;
  const bitmap = new Uint8Array(Math.ceil(count / 8));
  let hitCount = 0;
  let leadingCount = -1;
  for (let i = 0; i < count; i++) {
    if (statuses[i] === HIT) {
      bitmap[i >> 3] |= 1 << (i & 7);
      hitCount++;
    } else if (leadingCount < 0) {
      leadingCount = i;
    }
  }
  return {
    count,
    hitCount,
    leadingCount: leadingCount < 0 ? count : leadingCount,
    bitmap,
    has: (index) => index >= 0 && index < count && (bitmap[index >> 3] & (1 << (index & 7))) !== 0,
  };
}

/**
 * Which keys of a request the source answered with a hit in the round that is open. A load may fetch these and no
 * others: a producer refuses a fetch that names a key it was not asked for.
 */
export class RemoteHits {
  readonly #keyBytes: number;
  #lookups: { readonly keys: Buffer; readonly statuses: Uint8Array }[] = [];

  constructor(keyBytes: number) {
    this.#keyBytes = keyBytes;
  }

  add(keys: Uint8Array, statuses: Uint8Array): void {
    this.#lookups.push({ keys: Buffer.from(keys), statuses });
  }

  /** The round was closed by a fetch or given up. */
  clear(): void {
    for (const { keys } of this.#lookups) freePayload(keys);
    this.#lookups = [];
  }

  /**
   * One byte per key: 1 when the source holds it. Keys that continue a lookup in its order, as those of a prefix do,
   * are compared byte for byte; anything else goes through a table.
   */
  select(keys: Uint8Array): Uint8Array {
    const keyBytes = this.#keyBytes;
    const count = keys.length / keyBytes;
    const isRemote = new Uint8Array(count);
    const wanted = Buffer.from(keys.buffer, keys.byteOffset, keys.byteLength);
    for (const lookup of this.#lookups) {
      const start = startOf(wanted, lookup.keys, keyBytes);
      if (start < 0) continue;
      for (let i = 0; i < count; i++) isRemote[i] = lookup.statuses[start + i] === HIT ? 1 : 0;
      return isRemote;
    }
    const hits = new Set<string>();
    for (const lookup of this.#lookups) {
      for (let i = 0; i < lookup.statuses.length; i++) {
        if (lookup.statuses[i] === HIT) hits.add(keyText(lookup.keys, i, keyBytes));
      }
    }
    for (let i = 0; i < count; i++) if (hits.has(keyText(wanted, i, keyBytes))) isRemote[i] = 1;
    return isRemote;
  }
}

/** Where the whole of `wanted` stands in `keys`, in keys; -1 when it does not. */
function startOf(wanted: Buffer, keys: Buffer, keyBytes: number): number {
  if (wanted.length === 0 || wanted.length > keys.length) return -1;
  const at = keys.indexOf(wanted.subarray(0, keyBytes));
  if (at < 0 || at % keyBytes !== 0 || at + wanted.length > keys.length) return -1;
  return wanted.compare(keys, at, at + wanted.length) === 0 ? at / keyBytes : -1;
}

function keyText(keys: Buffer, index: number, keyBytes: number): string {
  return keys.toString('latin1', index * keyBytes, (index + 1) * keyBytes);
}
