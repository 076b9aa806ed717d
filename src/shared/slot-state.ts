// The slot's state word, and probe, pin and unpin in JavaScript on the memory the native code works on.

/*
 *     bit 31 30 | 29 ............ 14 | 13 12   | 11 ..... 0
 *     phase     | generation         | visited | pins
 *
 * Any thread may take or give back a pin and set visited bits, by compare-and-swap; only the owner of the shard
 * changes phase and generation. Words are int32 in JavaScript (bit 31 is the sign), uint32 in native code.
 */

import type { Layout } from './layout.js';
import { BUCKET_BYTES, BUCKET_ENTRIES, RECORD_KEY, RECORD_STATE } from './layout.js';

export const Phase = { Free: 0, Writing: 1, Ready: 2, Quarantined: 3 } as const;
export type Phase = (typeof Phase)[keyof typeof Phase];

/** Stands for a slot where there is none. */
export const NO_SLOT = -1;

export const MAX_PINS = 4095;
export const MAX_VISITED = 3;
export const GENERATION_COUNT = 65_536;
/** Compare-and-swaps of one pin before it counts as a miss. */
export const PIN_TRIES = 8;

const PINS_MASK = 0xfff;
const VISITED_SHIFT = 12;
const VISITED_ONE = 1 << VISITED_SHIFT;
const GENERATION_SHIFT = 14;
const PHASE_SHIFT = 30;

/** @param generation taken modulo 65,536 */
export function packState(phase: Phase, generation: number, visited: number, pins: number): number {
  return (
    (phase << PHASE_SHIFT) | ((generation & 0xffff) << GENERATION_SHIFT) | (visited << VISITED_SHIFT) | pins
  );
}

export function pinsOf(state: number): number {
  return state & PINS_MASK;
}

export function visitedOf(state: number): number {
  return (state >>> VISITED_SHIFT) & MAX_VISITED;
}

export function generationOf(state: number): number {
  return (state >>> GENERATION_SHIFT) & 0xffff;
}

export function phaseOf(state: number): Phase {
  return (state >>> PHASE_SHIFT) as Phase;
}

/** What a probe says of one key. `slot` is -1 for a miss. */
export interface Probe {
  readonly kind: 'miss' | 'ready' | 'pinned' | 'pending';
  readonly slot: number;
  readonly generation: number;
}

const MISS: Probe = { kind: 'miss', slot: -1, generation: 0 };

/** Where a key's hash sends it; what the native hashKeys writes, four words per key. */
export interface KeyPlace {
  readonly shard: number;
  readonly bucketA: number;
  readonly bucketB: number;
  readonly tag: number;
}

/** The slot table and index of one control mapping, seen from JavaScript. */
export class SlotTable {
  readonly layout: Layout;
  /** The whole control mapping. */
  readonly words: Int32Array;
  readonly bytes: Uint8Array;

  constructor(control: SharedArrayBuffer, layout: Layout) {
    this.layout = layout;
    this.words = new Int32Array(control, 0, layout.controlBytes / 4);
    this.bytes = new Uint8Array(control, 0, layout.controlBytes);
  }

  /** Index of the slot's state in `words`. */
  stateWord(slot: number): number {
    return (this.layout.recordsOffset + slot * this.layout.recordBytes + RECORD_STATE) / 4;
  }

  state(slot: number): number {
    return Atomics.load(this.words, this.stateWord(slot));
  }

  /** The slot's key is the `keyBytes` bytes of `source` at `at`. Meaningful only while the slot cannot change. */
  keyEquals(slot: number, source: Uint8Array, at: number): boolean {
    const bytes = this.bytes;
    const mine = this.layout.recordsOffset + slot * this.layout.recordBytes + RECORD_KEY;
    const length = this.layout.keyBytes;
    for (let i = 0; i < length; i++) {
      if (bytes[mine + i] !== source[at + i]) return false;
    }
    return true;
  }

  /**
   * One pin on a READY slot, whatever its key: the caller compares the key afterwards and gives the pin back when it
   * is another one. False when the slot is not READY, has 4095 pins, or changed 8 times under us.
   */
  tryPin(slot: number): boolean {
    const at = this.stateWord(slot);
    for (let tries = 0; tries < PIN_TRIES; tries++) {
      const state = Atomics.load(this.words, at);
      if (phaseOf(state) !== Phase.Ready || pinsOf(state) === MAX_PINS) return false;
      if (Atomics.compareExchange(this.words, at, state, (state + 1) | VISITED_ONE) === state) return true;
    }
    return false;
  }

  /** @throws Error when the slot has no pin: a lease was released twice */
  unpin(slot: number): void {
    const at = this.stateWord(slot);
    if (pinsOf(Atomics.sub(this.words, at, 1)) === 0) {
      Atomics.add(this.words, at, 1);
      throw new Error(`slot ${slot} has no pin to give back`);
    }
  }

  /**
   * Looks a key up in its two buckets.
   *
   * @param source buffer that holds the key at `at`
   * @param pin    take a pin when the block is READY
   */
  probe(place: KeyPlace, source: Uint8Array, at: number, pin: boolean): Probe {
    const first = this.#probeBucket(place.shard, place.bucketA, place.tag, source, at, pin);
    if (first.kind !== 'miss') return first;
    return this.#probeBucket(place.shard, place.bucketB, place.tag, source, at, pin);
  }

  #probeBucket(
    shard: number,
    bucket: number,
    tag: number,
    source: Uint8Array,
    at: number,
    pin: boolean,
  ): Probe {
    const { layout, words } = this;
    const first = (layout.indexOffset + (shard * layout.bucketsPerShard + bucket) * BUCKET_BYTES) / 4;
    for (let entry = 0; entry < BUCKET_ENTRIES; entry++) {
      const slot = Atomics.load(words, first + 2 * entry + 1) - 1;
      if (slot < 0 || slot >= layout.numBlocks || Atomics.load(words, first + 2 * entry) !== tag) continue;
      const found = this.#look(slot, source, at, pin);
      if (found.kind !== 'miss') return found;
    }
    return MISS;
  }

  #look(slot: number, source: Uint8Array, at: number, pin: boolean): Probe {
    const state = this.state(slot);
    const phase = phaseOf(state);
    if (phase === Phase.Ready && pin) {
      if (!this.tryPin(slot)) return MISS;
      if (this.keyEquals(slot, source, at)) {
        return { kind: 'pinned', slot, generation: generationOf(this.state(slot)) };
      }
      this.unpin(slot);
      return MISS;
    }
    if (phase !== Phase.Ready && phase !== Phase.Writing) return MISS;
    // Without a pin the slot may change while its key is read: the key counts only if the phase and the generation
    // are still the ones from before.
    if (!this.keyEquals(slot, source, at)) return MISS;
    const after = this.state(slot);
    if (phaseOf(after) !== phase || generationOf(after) !== generationOf(state)) return MISS;
    return { kind: phase === Phase.Ready ? 'ready' : 'pending', slot, generation: generationOf(state) };
  }
}
