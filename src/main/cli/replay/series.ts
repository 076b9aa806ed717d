// Turns the replay's samples into the few numbers that each chart shows.
import type { RequestSample } from './tally.js';

/** Figures per second over time, one entry per bin; `timeS` is the middle of the bin. */
export interface TimeSeries {
  readonly endS: number;
  readonly timeS: readonly number[];
  readonly localPerS: readonly number[];
  readonly pulledPerS: readonly number[];
  readonly computedPerS: readonly number[];
  readonly bytesPulledPerS: readonly number[];
}

/** Counts per latency bin; bins are equally wide on a logarithmic axis and `micros` is the geometric middle. */
export interface LatencyHistogram {
  readonly micros: readonly number[];
  readonly counts: readonly number[];
}

/** About as many bins as a chart of a page's width can show apart. */
const MOST_TIME_BINS = 90;

const LATENCY_BINS_PER_DECADE = 12;

/** Bins the requests by the time when they ended; what is left of the run after the last whole bin belongs to that one. */
export function binOverTime(requests: readonly RequestSample[], wallS: number): TimeSeries {
  const endS = Math.max(wallS, 0.001, ...requests.slice(-1).map((request) => request.atS));
  const binS = niceStep(endS / MOST_TIME_BINS);
  const binCount = Math.max(1, Math.floor(endS / binS));
  const lastWidthS = endS - (binCount - 1) * binS;
  const zeros = (): number[] => new Array<number>(binCount).fill(0);
  const series = {
    endS,
    timeS: Array.from(
      { length: binCount },
      (_, bin) => bin * binS + (bin === binCount - 1 ? lastWidthS : binS) / 2,
    ),
    localPerS: zeros(),
    pulledPerS: zeros(),
    computedPerS: zeros(),
    bytesPulledPerS: zeros(),
  };
  for (const request of requests) {
    const bin = Math.min(binCount - 1, Math.floor(request.atS / binS));
    const widthS = bin === binCount - 1 ? lastWidthS : binS;
    series.localPerS[bin] += request.local / widthS;
    series.pulledPerS[bin] += request.pulled / widthS;
    series.computedPerS[bin] += request.computed / widthS;
    series.bytesPulledPerS[bin] += request.bytesPulled / widthS;
  }
  return series;
}

/** Bins latencies; no bins when there is no sample. */
export function binLatencies(samples: readonly number[]): LatencyHistogram {
  const bins = samples.map((micros) => Math.floor(Math.log10(Math.max(1, micros)) * LATENCY_BINS_PER_DECADE));
  const counts = new Map<number, number>();
  for (const bin of bins) counts.set(bin, (counts.get(bin) ?? 0) + 1);
  const sorted = [...counts.keys()].sort((a, b) => a - b);
  if (sorted.length === 0) return { micros: [], counts: [] };
  // One empty bin at either side keeps the outermost bars whole.
  const first = sorted[0] - 1;
  const length = sorted[sorted.length - 1] - first + 2;
  return {
    micros: Array.from({ length }, (_, index) => 10 ** ((first + index + 0.5) / LATENCY_BINS_PER_DECADE)),
    counts: Array.from({ length }, (_, index) => counts.get(first + index) ?? 0),
  };
}

/** The smallest of 1, 2 or 5 times a power of ten that is at least `value`, and at least 10 ms. */
function niceStep(value: number): number {
  const least = Math.max(value, 0.01);
  const power = 10 ** Math.floor(Math.log10(least));
  const factor = [1, 2, 5, 10].find((candidate) => candidate * power >= least * (1 - 1e-9)) ?? 10;
  return factor * power;
}
