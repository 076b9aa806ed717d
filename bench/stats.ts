// The little statistics a benchmark needs.

/** The value below which this share (0 to 1) of the samples lies; NaN without samples. */
export function quantile(samples: ArrayLike<number>, share: number): number {
  const sorted = Float64Array.from(samples).sort();
  return sorted.length === 0 ? NaN : sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}

export function median(samples: ArrayLike<number>): number {
  return quantile(samples, 0.5);
}

/** Medians per part of a whole, for shares: `a[i] / b[i]` per round. */
export function ratios(above: readonly number[], below: readonly number[]): number[] {
  return above.slice(0, below.length).map((value, i) => value / below[i]);
}

/** Numbers from 0 to 1, the same for the same seed: what is measured must not differ between two runs. */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
