// A small seeded random source: the same seed gives the same replay on every machine.

export interface RandomSource {
  /** A number in [0, 1). */
  next(): number;
  /** An integer in [0, count). */
  integer(count: number): number;
}

/**
 * A counter stepped by an odd constant and mixed twice (a 32-bit multiply-and-shift hash). Good enough to place
 * requests and shape a trace; never to be used where an adversary matters.
 */
export function seededRandom(seed: number): RandomSource {
  // Both halves of the seed count: seeds up to 2^53 give different sequences.
  let state = (mix(Math.floor(seed / 2 ** 32)) ^ seed) >>> 0;
  const next = (): number => {
    state = (state + 0x9e3779b9) >>> 0;
    return mix(state) / 2 ** 32;
  };
  return { next, integer: (count) => Math.floor(next() * count) };
}

function mix(value: number): number {
  let word = value >>> 0;
  word = Math.imul(word ^ (word >>> 16), 0x21f0aaad);
  word = Math.imul(word ^ (word >>> 15), 0x735a2d97);
  return (word ^ (word >>> 15)) >>> 0;
}
