// What a benchmark reports: rows, each with a name, a value, its spread and whether it is what was promised.

import type { Goal, GoalName, GroupName } from './goals.js';
import { GOALS, goalOf } from './goals.js';
import { median } from './stats.js';

/** One figure. A row that could not be measured has no value and says why. */
export interface Row {
  /** Dotted, stable: `index.1m.matchPinNs`. */
  readonly name: string;
  readonly value: number | null;
  readonly unit: string;
  /** The figure this project promises, if it promises one. */
  readonly goal: Goal | null;
  /** Whether it holds; null without a goal or a value. */
  readonly holds: boolean | null;
  /** Least and greatest of the rounds. */
  readonly spread: readonly [min: number, max: number] | null;
  /** Rounds (or samples) behind the value. */
  readonly n: number;
  readonly skipped?: string;
}

/** A question of bench/, with the rows that answer it. */
export interface Section {
  readonly group: GroupName;
  /** For progress lines and errors. */
  readonly title: string;
  readonly goals: readonly GoalName[];
  /** What the names of its rows begin with. */
  readonly prefixes: readonly string[];
  /** Rough seconds of a full and of a quick run; the quick one may be left out of `--quick` (null). */
  run(bench: Bench): Promise<void> | void;
}

/** What a section gets. */
export interface Bench {
  /** Fewer rounds and smaller sizes: does it run at all, and roughly how fast. */
  readonly isQuick: boolean;
  /** Folder for CPU profiles, or undefined. */
  readonly profileDir: string | undefined;
  readonly rows: RowBook;
  /** Says on the terminal what is going on. */
  note(text: string): void;
}

/** Collects rows; every name once. */
export class RowBook {
  readonly #rows = new Map<string, Row>();
  readonly #onRow: (row: Row) => void;

  constructor(onRow: (row: Row) => void = () => undefined) {
    this.#onRow = onRow;
  }

  get all(): readonly Row[] {
    return [...this.#rows.values()];
  }

  has(name: string): boolean {
    return this.#rows.has(name);
  }

  /** A row from repeated measurements: their median, least and greatest. A row with a goal has its unit from there. */
  measured(name: string, samples: ArrayLike<number>, unit = ''): void {
    const values = Array.from(samples);
    this.#add(name, unit, median(values), [Math.min(...values), Math.max(...values)], values.length);
  }

  /** A figure that is computed once, of `n` samples. */
  figure(name: string, value: number, unit = '', n = 1): void {
    this.#add(name, unit, value, null, n);
  }

  /** A ratio of two medians, its spread from the ranges of both. */
  ratio(
    name: string,
    value: number,
    above: readonly [number, number],
    below: readonly [number, number],
    n: number,
  ): void {
    this.#add(name, '', value, [above[0] / below[1], above[1] / below[0]], n);
  }

  skip(name: string, reason: string): void {
    const known = goalOf(name);
    this.#put({
      name,
      value: null,
      unit: known?.unit ?? '',
      goal: known?.goal ?? null,
      holds: null,
      spread: null,
      n: 0,
      skipped: reason,
    });
  }

  /** Rows with goals that nobody filled are there all the same. */
  skipMissing(names: readonly GoalName[], reason: string): void {
    for (const name of names) if (!this.#rows.has(name)) this.skip(name, reason);
  }

  #add(name: string, unit: string, value: number, spread: Row['spread'], n: number): void {
    if (!Number.isFinite(value)) {
      this.skip(name, 'no sample');
      return;
    }
    const known = goalOf(name);
    const goal = known?.goal ?? null;
    this.#put({ name, value, unit: known?.unit ?? unit, goal, holds: holdsOf(value, goal), spread, n });
  }

  #put(row: Row): void {
    this.#rows.set(row.name, row);
    this.#onRow(row);
  }
}

export function holdsOf(value: number, goal: Goal | null): boolean | null {
  if (goal === null) return null;
  return 'atMost' in goal ? value <= goal.atMost : value >= goal.atLeast;
}

export function goalText(goal: Goal): string {
  return 'atMost' in goal ? `<= ${goal.atMost}` : `>= ${goal.atLeast}`;
}

/** A number with four significant digits, for people. */
export function figureText(value: number): string {
  const text = value.toPrecision(4);
  return text.includes('e')
    ? String(Math.round(value))
    : text.replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '');
}

export const GOAL_NAMES = Object.keys(GOALS) as GoalName[];

/** Nanoseconds that `work` takes, once. */
export function nanosecondsOf(work: () => void): number {
  const start = process.hrtime.bigint();
  work();
  return Number(process.hrtime.bigint() - start);
}
