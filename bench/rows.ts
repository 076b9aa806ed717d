// What a benchmark reports, and the little statistics it needs.

/** One measured figure. */
export interface Row {
  /** Dotted, stable: `index.1m.matchPinNs`. */
  readonly name: string;
  readonly value: number;
  readonly unit: string;
  /** The figure this project promises, if it promises one. */
  readonly goal?: { readonly atMost: number } | { readonly atLeast: number };
  /** Whether the goal is met; absent without a goal. */
  readonly holds?: boolean;
  /** Tenth and ninetieth percentile of the rounds. */
  readonly spread?: readonly [low: number, high: number];
  /** Rounds measured. */
  readonly n: number;
}

/** A file of bench/: one question, a few rows. */
export interface BenchGroup {
  /** What `--only` calls it. */
  readonly name: string;
  /** All its rows start with one of these. */
  readonly prefixes: readonly string[];
  run(options: BenchOptions): Promise<Row[]> | Row[];
}

export interface BenchOptions {
  /** Fewer rounds: does it run at all, not how fast. */
  readonly quick: boolean;
}

type Goal = NonNullable<Row['goal']>;

/** A row from repeated measurements: their median, and the spread beside it. */
export function rowOf(name: string, unit: string, samples: readonly number[], goal?: Goal): Row {
  const sorted = [...samples].sort((a, b) => a - b);
  const at = (share: number): number =>
    sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
  const value = at(0.5);
  return {
    name,
    value,
    unit,
    spread: [at(0.1), at(0.9)],
    n: samples.length,
    ...judged(value, goal),
  };
}

/** A row of a figure that is not measured but counted. */
export function factOf(name: string, unit: string, value: number, goal?: Goal): Row {
  return { name, value, unit, n: 1, ...judged(value, goal) };
}

function judged(value: number, goal: Goal | undefined): Pick<Row, 'goal' | 'holds'> {
  if (goal === undefined) return {};
  return { goal, holds: 'atMost' in goal ? value <= goal.atMost : value >= goal.atLeast };
}

/** Nanoseconds that `work` takes, once. */
export function nanosecondsOf(work: () => void): number {
  const start = process.hrtime.bigint();
  work();
  return Number(process.hrtime.bigint() - start);
}
