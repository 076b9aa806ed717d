// The allocator of the request arena: power-of-two size classes that split and join, used by the main thread only.

import { KvpeerError } from '../errors.js';

/** Grain of the arena: every extent starts on a multiple of it and takes a whole number of grains. */
export const ARENA_GRAIN_BYTES = 256;

const NONE = -1;

/**
 * A buddy allocator whose bookkeeping lies outside the arena, so nothing a worker writes can damage it.
 *
 *     alloc(1,300 B = 6 grains): the smallest free block of >= 8 grains is split down to 8; the 2 grains at its end
 *     go back at once.
 *
 *         | 0   1   2   3   4   5 | 6   7 |        an extent is 6 = 4 + 2 grains, from its start
 *           4-block       2-block   free
 *
 * `free` and `shrink` cut a range into the aligned power-of-two blocks it consists of and join each with its buddy as
 * far up as it goes. All three cost O(log arena) and allocate nothing.
 */
export class Arena {
  readonly grainCount: number;
  private freeGrains: number;
  /** Class of the free block that starts at this grain, or NONE. */
  private readonly classAt: Int8Array;
  private readonly next: Int32Array;
  private readonly previous: Int32Array;
  /** First free block of each class. */
  private readonly heads: Int32Array;

  /** @param bytes size of the arena, rounded down to whole grains */
  constructor(bytes: number) {
    const grainCount = Math.floor(bytes / ARENA_GRAIN_BYTES);
    if (!Number.isSafeInteger(grainCount) || grainCount < 1 || grainCount >= 2 ** 30) {
      throw new KvpeerError('KVPEER_INVALID_ARGUMENT', `an arena of ${bytes} bytes cannot be managed`);
    }
    this.grainCount = grainCount;
    this.freeGrains = 0;
    this.classAt = new Int8Array(grainCount).fill(NONE);
    this.next = new Int32Array(grainCount).fill(NONE);
    this.previous = new Int32Array(grainCount).fill(NONE);
    this.heads = new Int32Array(31).fill(NONE);
    this.give(0, grainCount, false);
  }

  /** Bytes that are not in any extent (not necessarily in one piece). */
  get freeBytes(): number {
    return this.freeGrains * ARENA_GRAIN_BYTES;
  }

  get bytes(): number {
    return this.grainCount * ARENA_GRAIN_BYTES;
  }

  /** Byte offset of an extent of at least `bytes` bytes, or -1 when no block is large enough. */
  alloc(bytes: number): number {
    const grains = grainsOf(bytes);
    const wanted = classFor(grains);
    let found = wanted;
    while (found < this.heads.length && this.heads[found] === NONE) found += 1;
    if (found >= this.heads.length) return NONE;
    const start = this.heads[found];
    this.unlink(start);
    this.freeGrains -= 1 << found;
    // Whatever of the block is not needed goes back; no piece of it can join, because their buddies are in use or split.
    this.give(start + grains, (1 << found) - grains, false);
    return start * ARENA_GRAIN_BYTES;
  }

  /** Gives an extent back. @param bytes the size it has now (as asked for, or as shrunk to) */
  free(offset: number, bytes: number): void {
    this.give(offset / ARENA_GRAIN_BYTES, grainsOf(bytes), true);
  }

  /** Gives the end of an extent back; afterwards its size is `keepBytes`. */
  shrink(offset: number, bytes: number, keepBytes: number): void {
    const grains = grainsOf(bytes);
    const keep = grainsOf(keepBytes);
    if (keep > grains) throw new RangeError(`an extent of ${bytes} bytes cannot shrink to ${keepBytes}`);
    this.give(offset / ARENA_GRAIN_BYTES + keep, grains - keep, true);
  }

  /** Makes the range free, as aligned power-of-two blocks. */
  private give(start: number, grains: number, mayJoin: boolean): void {
    if (!Number.isInteger(start) || start < 0 || start + grains > this.grainCount) {
      throw new RangeError(`grains ${start} to ${start + grains} are not a part of the arena`);
    }
    this.freeGrains += grains;
    let at = start;
    let left = grains;
    while (left > 0) {
      const alignment = at === 0 ? 30 : 31 - Math.clz32(at & -at);
      const size = Math.min(alignment, 31 - Math.clz32(left));
      if (this.classAt[at] !== NONE) throw new RangeError(`grain ${at} is free already`);
      if (mayJoin) this.join(at, size);
      else this.link(at, size);
      at += 1 << size;
      left -= 1 << size;
    }
  }

  private join(start: number, size: number): void {
    let at = start;
    let k = size;
    for (;;) {
      const buddy = at ^ (1 << k);
      if (k >= 29 || buddy + (1 << k) > this.grainCount || this.classAt[buddy] !== k) break;
      this.unlink(buddy);
      at &= ~(1 << k);
      k += 1;
    }
    this.link(at, k);
  }

  private link(at: number, k: number): void {
    this.classAt[at] = k;
    const head = this.heads[k];
    this.next[at] = head;
    this.previous[at] = NONE;
    if (head !== NONE) this.previous[head] = at;
    this.heads[k] = at;
  }

  private unlink(at: number): void {
    const k = this.classAt[at];
    const next = this.next[at];
    const previous = this.previous[at];
    if (previous === NONE) this.heads[k] = next;
    else this.next[previous] = next;
    if (next !== NONE) this.previous[next] = previous;
    this.classAt[at] = NONE;
  }
}

function grainsOf(bytes: number): number {
  return Math.max(1, Math.ceil(bytes / ARENA_GRAIN_BYTES));
}

/** Smallest k with 2 ** k >= grains. */
function classFor(grains: number): number {
  return grains <= 1 ? 0 : 32 - Math.clz32(grains - 1);
}
