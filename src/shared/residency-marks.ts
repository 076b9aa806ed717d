// Marks of slots whose block came or went: set by the workers, taken by main, only in nodes that publish KV events.

/*
 * One buffer beside the control mapping, so that a node without KV events has none of it. Per shard, int32 words:
 *
 *     | changed, alone in 128 bytes | summary: a bit per word of marks | marks: a bit per slot |
 *
 * A mark says "look at this slot again", not what happened: main compares the slot's record with what it saw last. So
 * the size is fixed, nothing can be lost or overflow however late main looks, a mark that is set twice is the same
 * mark, and one set by a thread that died in the middle does no harm.
 *
 * A worker sets mark, summary, changed in this order, main takes them in the opposite one: what is set after main has
 * passed is found with the next `changed`.
 */

const HEADER_WORDS = 32;

interface Place {
  readonly firstSlot: number;
  readonly changed: number;
  readonly summary: number;
  readonly summaryWords: number;
  readonly marks: number;
}

export interface MarkedShards {
  readonly shardCount: number;
  readonly slotsPerShard: number;
}

function regionWords(slotsPerShard: number): number {
  const markWords = Math.ceil(slotsPerShard / 32);
  const words = HEADER_WORDS + Math.ceil(markWords / 32) + markWords;
  return Math.ceil(words / HEADER_WORDS) * HEADER_WORDS;
}

/** Zeroed memory for the marks of all shards. */
export function makeResidencyMarks({ shardCount, slotsPerShard }: MarkedShards): SharedArrayBuffer {
  return new SharedArrayBuffer(shardCount * regionWords(slotsPerShard) * 4);
}

function placeOf(shard: number, slotsPerShard: number): Place {
  const changed = shard * regionWords(slotsPerShard);
  const summaryWords = Math.ceil(Math.ceil(slotsPerShard / 32) / 32);
  const summary = changed + HEADER_WORDS;
  return { firstSlot: shard * slotsPerShard, changed, summary, summaryWords, marks: summary + summaryWords };
}

/** The worker's side, of its own shard. */
export class ResidencyMarker {
  readonly #words: Int32Array;
  readonly #place: Place;
  readonly #slotCount: number;

  constructor(marks: SharedArrayBuffer, { slotsPerShard }: MarkedShards, shard: number) {
    this.#words = new Int32Array(marks);
    this.#place = placeOf(shard, slotsPerShard);
    this.#slotCount = slotsPerShard;
  }

  /** After the slot's state has changed. */
  mark(slot: number): void {
    const words = this.#words;
    const { firstSlot, marks, summary, changed } = this.#place;
    const at = slot - firstSlot;
    Atomics.or(words, marks + (at >>> 5), 1 << (at & 31));
    Atomics.or(words, summary + (at >>> 10), 1 << ((at >>> 5) & 31));
    Atomics.store(words, changed, 1);
  }

  markAll(): void {
    const { firstSlot } = this.#place;
    for (let slot = firstSlot; slot < firstSlot + this.#slotCount; slot += 1) this.mark(slot);
  }
}

/** Main's side, of all shards. */
export class ResidencyMarks {
  readonly #words: Int32Array;
  readonly #places: readonly Place[];

  constructor(marks: SharedArrayBuffer, { shardCount, slotsPerShard }: MarkedShards) {
    this.#words = new Int32Array(marks);
    this.#places = Array.from({ length: shardCount }, (_, shard) => placeOf(shard, slotsPerShard));
  }

  /** One load per shard. */
  hasChanged(): boolean {
    return this.#places.some(({ changed }) => Atomics.load(this.#words, changed) !== 0);
  }

  /**
   * Takes marks and calls `look` for each marked slot, for about `maxCount` of them.
   *
   * @returns whether all of them were taken
   */
  take(maxCount: number, look: (slot: number) => void): boolean {
    let left = maxCount;
    for (const place of this.#places) {
      if (Atomics.load(this.#words, place.changed) === 0) continue;
      Atomics.store(this.#words, place.changed, 0);
      left -= this.#takeShard(place, left, look);
      if (left > 0) continue;
      Atomics.store(this.#words, place.changed, 1);
      return false;
    }
    return true;
  }

  #takeShard(place: Place, maxCount: number, look: (slot: number) => void): number {
    const words = this.#words;
    let count = 0;
    for (let s = 0; s < place.summaryWords; s += 1) {
      if (Atomics.load(words, place.summary + s) === 0) continue;
      let summary = Atomics.exchange(words, place.summary + s, 0);
      while (summary !== 0) {
        if (count >= maxCount) {
          Atomics.or(words, place.summary + s, summary);
          return count;
        }
        const bit = 31 - Math.clz32(summary & -summary);
        summary &= summary - 1;
        const word = s * 32 + bit;
        let marks = Atomics.exchange(words, place.marks + word, 0);
        while (marks !== 0) {
          const slotBit = 31 - Math.clz32(marks & -marks);
          marks &= marks - 1;
          look(place.firstSlot + word * 32 + slotBit);
          count += 1;
        }
      }
    }
    return count;
  }
}
