// Some keys of a list as a list of their own: what is asked again when the rest has been answered.

import type { KeySpan } from '../shards/shard-client.js';

/**
 * A packed copy of the keys at `positions`, in that order.
 *
 * @param keyBytes  length of one key
 */
export function pickKeys(keys: KeySpan, positions: Int32Array, keyBytes: number): KeySpan {
  const bytes = new Uint8Array(positions.length * keyBytes);
  for (let i = 0; i < positions.length; i++) {
    const at = keys.first + positions[i] * keys.stride;
    bytes.set(keys.bytes.subarray(at, at + keyBytes), i * keyBytes);
  }
  return { bytes, first: 0, stride: keyBytes, count: positions.length };
}

/** `values` at `positions`; all of them when there are no positions. */
export function pickValues(values: Int32Array, positions: Int32Array | undefined): Int32Array {
  return positions === undefined ? values : positions.map((position) => values[position]);
}
