// The conformance set: keys and contents of blocks that any program can compute, named by a seed and a number.

import { createHash } from 'node:crypto';

/** Bytes of a key: a SHA-256 hash and the group, as vLLM's. */
export const CONFORMANCE_KEY_BYTES = 36;

/** SHA-256 of a label, then the group 0. */
export function conformanceKey(seed: string, index: number): Buffer {
  const key = Buffer.alloc(CONFORMANCE_KEY_BYTES);
  createHash('sha256').update(`conformance-key:${seed}:${index}`).digest().copy(key);
  return key;
}

/** The keys of these blocks, packed. */
export function conformanceKeys(seed: string, indexes: readonly number[]): Buffer {
  return Buffer.concat(indexes.map((index) => conformanceKey(seed, index)));
}

/** SHAKE-128 of a label, squeezed to the length of a block. */
export function conformanceBlock(seed: string, index: number, blockBytes: number): Buffer {
  return createHash('shake128', { outputLength: blockBytes })
    .update(`conformance-block:${seed}:${index}`)
    .digest();
}
