// What a shard remembers of blocks that it evicted, and what it learned from it: how soon which blocks are used again.

/*
 * The history of a shard lies in the control mapping; its worker writes it, all workers read it:
 *
 *     statistics   uses, then ends: float64 per queue and age; then the clock
 *     ghosts       GHOSTS_PER_SLOT u16 per slot, each at the place that the tag of its key gives:
 *
 *         15 ........... 7 | 6 .............. 3 | 2         | 1          | 0
 *         of the key's tag | turnover it queued | list tail | it was     | it came
 *                          | in, modulo 16      |           | a regular  | back
 *
 * One key in TRACE_EVERY has a ghost, and so has the last block of every list. A block names its whole prefix, so one
 * block that was here says that all before it were: the ghosts of a few tell how much of a list is known.
 */

import { GHOSTS_PER_SLOT, HISTORY_STATISTICS_BYTES, shardHistory } from '../shared/layout.js';
import type { Layout } from '../shared/layout.js';

/** Blocks that were used once, and blocks that were used again. */
export const Queue = { Newcomers: 0, Regulars: 1 } as const;
export type Queue = (typeof Queue)[keyof typeof Queue];
export const QUEUE_COUNT = 2;

/** Time is counted in admissions: a turnover is as many as the shard has slots. */
export const TICKS_PER_TURNOVER = 16;
const TRACE_EVERY = 4;

/** Ages in turnovers: below 1, below 2, 4, 8, 16, and beyond. */
const AGE_COUNT = 6;
const AGE_STARTS = Array.from({ length: AGE_COUNT + 1 }, (_, age) => (age === 0 ? 0 : 2 ** (age - 1)));
const CELL_COUNT = QUEUE_COUNT * AGE_COUNT;
const ENDS_AT = CELL_COUNT;
const CLOCK_AT = 2 * CELL_COUNT;

/** A quarter of a turnover between two looks at the statistics, which then lose a tenth: half is 1.6 turnovers old. */
const TURNOVERS_PER_LESSON = 0.25;
const KEPT_PER_LESSON = 0.9;
/** How much the guess weighs that is believed without statistics: block-turnovers, and a part of those of the pool. */
const GUESS_BLOCKS = 8;
const GUESS_POOL_SHARE = 0.01;

const Ghost = {
  CameBack: 1,
  Regular: 2,
  Tail: 4,
  TurnoverShift: 3,
  TurnoverMask: 15,
  FingerprintShift: 7,
  FingerprintMask: 0x1ff,
} as const;

export class EvictionHistory {
  readonly #shard: number;
  readonly #slotCount: number;
  readonly #ghosts: readonly Uint16Array[];
  readonly #statistics: readonly Float64Array[];
  readonly #own: Float64Array;
  readonly #guessWeight: number;
  /** Uses per block and turnover that are to be expected, by queue and age. */
  readonly #rates = new Float64Array(CELL_COUNT);
  #nextLesson: number;
  #tick: number;

  constructor(control: ArrayBufferLike, layout: Layout, shard: number) {
    this.#shard = shard;
    this.#slotCount = layout.slotsPerShard;
    const shards = Array.from({ length: layout.shardCount }, (_, id) => shardHistory(layout, id));
    this.#ghosts = shards.map(
      (at) => new Uint16Array(control, at + HISTORY_STATISTICS_BYTES, GHOSTS_PER_SLOT * layout.slotsPerShard),
    );
    this.#statistics = shards.map((at) => new Float64Array(control, at, HISTORY_STATISTICS_BYTES / 8));
    this.#own = this.#statistics[shard];
    this.#guessWeight = (GUESS_BLOCKS + GUESS_POOL_SHARE * layout.numBlocks) / TRACE_EVERY;
    this.#tick = this.#tickNow();
    this.#nextLesson = this.#own[CLOCK_AT] + this.#slotCount * TURNOVERS_PER_LESSON;
    this.#learn();
  }

  /** Ticks since the pool was made, by admissions to this shard. */
  get tick(): number {
    return this.#tick;
  }

  /** One admission later. */
  advance(): void {
    this.#own[CLOCK_AT] += 1;
    this.#tick = this.#tickNow();
    if (this.#own[CLOCK_AT] < this.#nextLesson) return;
    this.#nextLesson += this.#slotCount * TURNOVERS_PER_LESSON;
    this.#learn();
    for (let cell = 0; cell < 2 * CELL_COUNT; cell += 1) this.#own[cell] *= KEPT_PER_LESSON;
  }

  /** Whether a block with this tag has a ghost wherever in a list it is. */
  isTraced(tag: number): boolean {
    return tag % TRACE_EVERY === 0;
  }

  /** A block of this shard was evicted. @param tick when it was put in its queue */
  remember(tag: number, queue: Queue, isTail: boolean, tick: number): void {
    const ghosts = this.#ghosts[this.#shard];
    const at = placeOf(tag, ghosts.length);
    const before = ghosts[at];
    if (before !== 0 && (before & Ghost.CameBack) === 0) this.#own[ENDS_AT + this.#cellOf(before)] += 1;
    ghosts[at] =
      (fingerprintOf(tag) << Ghost.FingerprintShift) |
      (turnoverOf(tick) << Ghost.TurnoverShift) |
      (isTail ? Ghost.Tail : 0) |
      (queue === Queue.Regulars ? Ghost.Regular : 0);
  }

  /** A block of this shard that is not here is about to be stored: a use, if it was here before. */
  noteReturn(tag: number): void {
    const ghosts = this.#ghosts[this.#shard];
    const at = placeOf(tag, ghosts.length);
    const ghost = ghosts[at];
    if (!this.#isOf(ghost, tag) || (ghost & Ghost.CameBack) !== 0) return;
    this.#own[this.#cellOf(ghost)] += 1;
    ghosts[at] = ghost | Ghost.CameBack;
  }

  /** What is known of a key that may have been here: nothing, that it was, or that it was the last of a list. */
  recall(shard: number, tag: number): 'unknown' | 'known' | 'tail' {
    const ghosts = this.#ghosts[shard];
    const ghost = ghosts[placeOf(tag, ghosts.length)];
    if (!this.#isOf(ghost, tag)) return 'unknown';
    return (ghost & Ghost.Tail) === 0 ? 'known' : 'tail';
  }

  /** A block was used between `ticks` ago and now: nobody knows when, so each age gets its part. */
  noteUse(queue: Queue, ticks: number): void {
    const turnovers = Math.max(1, ticks) / TICKS_PER_TURNOVER;
    for (let age = 0; age < AGE_COUNT && AGE_STARTS[age] < turnovers; age += 1) {
      const end = age === AGE_COUNT - 1 ? turnovers : Math.min(AGE_STARTS[age + 1], turnovers);
      this.#own[queue * AGE_COUNT + age] += (end - AGE_STARTS[age]) / turnovers;
    }
  }

  /** Uses per turnover to be expected of a block that was put in its queue so long ago. */
  rateOf(queue: Queue, ticks: number): number {
    return this.#rates[queue * AGE_COUNT + ageOf(Math.floor(ticks / TICKS_PER_TURNOVER))];
  }

  /**
   * Uses of blocks of an age, divided by the turnovers that blocks spent at that age. All shards' statistics together:
   * workers that chose differently would make holes in chains.
   */
  #learn(): void {
    for (let queue = 0; queue < QUEUE_COUNT; queue += 1) {
      let survivors = 0;
      for (let age = AGE_COUNT - 1; age >= 0; age -= 1) {
        let uses = 0;
        let ends = 0;
        for (const statistics of this.#statistics) {
          uses += statistics[queue * AGE_COUNT + age];
          ends += statistics[ENDS_AT + queue * AGE_COUNT + age];
        }
        const width = AGE_STARTS[age + 1] - AGE_STARTS[age];
        const spent = survivors * width + ((uses + ends) * width) / 2;
        survivors += uses + ends;
        const guess = (queue + 1) / guessedAge(age);
        this.#rates[queue * AGE_COUNT + age] =
          (uses + guess * this.#guessWeight) / (spent + this.#guessWeight);
      }
    }
  }

  /** Only a tail may be asked for by a key that is not traced. */
  #isOf(ghost: number, tag: number): boolean {
    if (ghost === 0 || ghost >>> Ghost.FingerprintShift !== fingerprintOf(tag)) return false;
    return (ghost & Ghost.Tail) !== 0 || this.isTraced(tag);
  }

  /** Index of the statistics of a ghost's queue and age. */
  #cellOf(ghost: number): number {
    const then = (ghost >>> Ghost.TurnoverShift) & Ghost.TurnoverMask;
    const turnovers = (turnoverOf(this.#tick) - then) & Ghost.TurnoverMask;
    return ((ghost & Ghost.Regular) === 0 ? 0 : AGE_COUNT) + ageOf(turnovers);
  }

  #tickNow(): number {
    return Math.floor((this.#own[CLOCK_AT] * TICKS_PER_TURNOVER) / this.#slotCount);
  }
}

/** The guess: a block is used again after about as long as it was not, the sooner the more often it was used. */
function guessedAge(age: number): number {
  return age === 0 ? 0.5 : AGE_STARTS[age] * Math.SQRT2;
}

function ageOf(turnovers: number): number {
  return Math.min(AGE_COUNT - 1, 32 - Math.clz32(turnovers));
}

function turnoverOf(tick: number): number {
  return Math.floor(tick / TICKS_PER_TURNOVER) & Ghost.TurnoverMask;
}

/** Place and fingerprint come from different products of the tag: the lowest bits of traced tags are all the same. */
function placeOf(tag: number, count: number): number {
  return Math.floor(((Math.imul(tag ^ (tag >>> 15), 0x2c1b3c6d) >>> 0) / 2 ** 32) * count);
}

function fingerprintOf(tag: number): number {
  return (Math.imul(tag ^ (tag >>> 13), 0x297a2d39) >>> 20) & Ghost.FingerprintMask;
}
