// Keys of a benchmark, by number: the same in every process, without a list that would have to be sent around.

import { seededRandom } from '../stats.js';

export const KEY_BYTES = 36;
const KEY_WORDS = KEY_BYTES / 4;

/** Packed keys number `first` to `first + count - 1`. */
export function benchKeys(first: number, count: number): Buffer {
  const keys = Buffer.allocUnsafe(count * KEY_BYTES);
  for (let i = 0; i < count; i++) writeKey(keys, i * KEY_BYTES, first + i);
  return keys;
}

/**
 * Packed keys with random numbers below `heldCount` (hits) and above it (misses).
 *
 * @param hitShare 0 to 1
 */
export function randomKeys(seed: number, count: number, heldCount: number, hitShare = 1): Buffer {
  const random = seededRandom(seed);
  const keys = Buffer.allocUnsafe(count * KEY_BYTES);
  for (let i = 0; i < count; i++) {
    const number = Math.floor(random() * heldCount);
    writeKey(keys, i * KEY_BYTES, random() < hitShare ? number : number + heldCount);
  }
  return keys;
}

/** `count` different numbers below `limit`, in random order. */
export function shuffled(seed: number, count: number, limit: number): Int32Array {
  const random = seededRandom(seed);
  const numbers = Int32Array.from({ length: limit }, (_, i) => i);
  for (let i = 0; i < count; i++) {
    const other = i + Math.floor(random() * (limit - i));
    [numbers[i], numbers[other]] = [numbers[other], numbers[i]];
  }
  return numbers.subarray(0, count);
}

export function writeKey(target: Buffer, at: number, number: number): void {
  for (let word = 0; word < KEY_WORDS; word++) {
    // The first word is a one-to-one mix of the number, so no two keys are equal; the others make it look like a hash.
    let mixed = Math.imul(number + word * 0x3c6ef372, 0x9e3779b1);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x85ebca6b);
    target.writeInt32LE(mixed ^ (mixed >>> 13), at + 4 * word);
  }
}
