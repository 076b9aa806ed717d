// Extents of the request arena (operations.ts has the picture): where their arrays lie, for both sides.

import { EXTENT_HEADER_BYTES, ExtentWord, MAX_LEASES } from './operations.js';
import type { Layout } from './layout.js';
import { MAX_EXTENT_KEYS } from './layout.js';

/** What an extent shall hold. */
export interface ExtentShape {
  /** Positions. */
  readonly count: number;
  /** Bytes of the key area: the span from the first key's first byte to the last key's last one. */
  readonly keyAreaBytes: number;
  /** The key area starts at this address modulo 8 (default 0). */
  readonly keyPhase?: number;
  readonly hasIndexes: boolean;
  readonly leaseCount: number;
}

/** Byte offsets from the extent's start; 0 = absent. */
export interface ExtentPlan {
  readonly statusesOffset: number;
  readonly slotsOffset: number;
  readonly generationsOffset: number;
  readonly leasesOffset: number;
  readonly indexesOffset: number;
  readonly keysOffset: number;
  /** Bytes that stay when indexes and keys are given back. */
  readonly keptBytes: number;
  readonly bytes: number;
}

/** @throws RangeError when there are more positions or leases than an extent may have */
export function planExtent(shape: ExtentShape): ExtentPlan {
  const { count, keyAreaBytes, leaseCount } = shape;
  if (!Number.isInteger(count) || count < 0 || count > MAX_EXTENT_KEYS) {
    throw new RangeError(`a list of ${count} keys; at most ${MAX_EXTENT_KEYS} go into one operation`);
  }
  if (leaseCount > MAX_LEASES) {
    throw new RangeError(`an operation names ${leaseCount} leases; at most ${MAX_LEASES} are possible`);
  }
  const statusesOffset = EXTENT_HEADER_BYTES;
  const slotsOffset = align8(statusesOffset + count);
  const generationsOffset = align8(slotsOffset + 4 * count);
  const keptBytes = align8(generationsOffset + 2 * count);
  const indexesOffset = align8(keptBytes + 4 * leaseCount);
  const keysOffset = align8(indexesOffset + (shape.hasIndexes ? 4 * count : 0)) + (shape.keyPhase ?? 0);
  return {
    statusesOffset,
    slotsOffset,
    generationsOffset,
    leasesOffset: leaseCount > 0 ? keptBytes : 0,
    indexesOffset: shape.hasIndexes ? indexesOffset : 0,
    keysOffset: keyAreaBytes > 0 ? keysOffset : 0,
    keptBytes,
    bytes: align8(keysOffset + keyAreaBytes),
  };
}

function align8(bytes: number): number {
  return (bytes + 7) & ~7;
}

/**
 * The control mapping's memory as each side reads extents: one set of views for all of them, because a view per extent
 * costs more than the whole operation.
 */
export class ExtentMemory {
  readonly words: Int32Array;
  readonly bytes: Uint8Array;
  readonly halves: Uint16Array;

  constructor(control: SharedArrayBuffer, layout: Layout) {
    this.words = new Int32Array(control, 0, layout.controlBytes / 4);
    this.bytes = new Uint8Array(control, 0, layout.controlBytes);
    this.halves = new Uint16Array(control, 0, layout.controlBytes / 2);
  }

  /** A word of the header. @param extent byte offset of the extent in the control mapping */
  header(extent: number, word: number): number {
    return this.words[extent / 4 + word];
  }

  setHeader(extent: number, word: number, value: number): void {
    this.words[extent / 4 + word] = value;
  }

  /** Index of position 0's status in `bytes`. */
  statusesAt(extent: number): number {
    return extent + this.words[extent / 4 + ExtentWord.StatusesOffset];
  }

  /** Index of position 0's slot in `words`. */
  slotsAt(extent: number): number {
    return (extent + this.words[extent / 4 + ExtentWord.SlotsOffset]) / 4;
  }

  /** Index of position 0's generation in `halves`. */
  generationsAt(extent: number): number {
    return (extent + this.words[extent / 4 + ExtentWord.GenerationsOffset]) / 2;
  }

  /** Index of key 0's first byte in `bytes`. */
  keysAt(extent: number): number {
    return extent + this.words[extent / 4 + ExtentWord.KeysOffset];
  }
}
