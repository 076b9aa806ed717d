// A set of 64-bit hashes that packed keys are held against, without an object per key.

/** Bytes after the block hash in a key: the group index (hashes/block-hasher.ts). */
const GROUP_BYTES = 4;

/**
 * The low 64 bits of a key's hash are its last 8 bytes, big-endian, as events and hints of KV routers name blocks.
 *
 * ```
 *   key of 36 bytes    | hash, 24 bytes | high word | low word | group |
 *   sorted, two words each               ^ compared as two unsigned 32-bit numbers
 * ```
 *
 * A sorted list, not a hash table: what it holds comes from outside, and no choice of hashes makes it slow.
 */
export class HashFilter {
  /** Low word at 2i, high word at 2i + 1. */
  readonly #words: Uint32Array;

  /** @param hashes unsigned 64-bit numbers; taken over */
  constructor(hashes: BigUint64Array) {
    hashes.sort();
    const words = new Uint32Array(hashes.buffer, hashes.byteOffset, hashes.length * 2);
    this.#words = IS_LITTLE_ENDIAN ? words : swapped(words);
  }

  get size(): number {
    return this.#words.length / 2;
  }

  /** Whether the hash of the key at `at` is in the set. Keys whose hash is shorter than 8 bytes are padded in front. */
  has(bytes: Uint8Array, at: number, keyBytes: number): boolean {
    const end = at + (keyBytes > GROUP_BYTES ? keyBytes - GROUP_BYTES : keyBytes);
    const high = wordBefore(bytes, end - 4, at);
    const low = wordBefore(bytes, end, at);
    const words = this.#words;
    let from = 0;
    let to = words.length / 2;
    while (from < to) {
      const middle = (from + to) >>> 1;
      const middleHigh = words[2 * middle + 1];
      if (middleHigh < high || (middleHigh === high && words[2 * middle] < low)) from = middle + 1;
      else to = middle;
    }
    return from < words.length / 2 && words[2 * from + 1] === high && words[2 * from] === low;
  }
}

const IS_LITTLE_ENDIAN = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

function swapped(words: Uint32Array): Uint32Array {
  return words.map((_, index) => words[index ^ 1]);
}

/** The big-endian word that ends before `end`; bytes before `start` count as 0. */
function wordBefore(bytes: Uint8Array, end: number, start: number): number {
  let word = 0;
  for (let at = Math.max(start, end - 4); at < end; at++) word = word * 256 + bytes[at];
  return word;
}
