// A slot set on main: an extent of the arena with the counts of what it holds, until it is given back.

import type { ExtentMemory } from '../../shared/extent.js';
import { ExtentWord, PositionStatus } from '../../shared/operations.js';
import type { SlotSet } from './shard-client.js';

/** Counts of the positions by what they mean to the caller. */
export interface SetCounts {
  pinned: number;
  pending: number;
  reserved: number;
  /** Reserved before their bytes were found damaged. */
  damaged: number;
  /** Reserved, and never to be written. */
  unwritten: number;
  quarantined: number;
  leading: number;
}

export class ExtentSet implements SlotSet {
  readonly count: number;
  readonly extent: number;
  /** Bytes it has in the arena now. */
  bytes: number;
  /** Of these, what is kept when leases, indexes and keys go. */
  readonly keptBytes: number;
  readonly counts: SetCounts = {
    pinned: 0,
    pending: 0,
    reserved: 0,
    damaged: 0,
    unwritten: 0,
    quarantined: 0,
    leading: 0,
  };
  /** An operation on the set itself is under way. */
  isBusy = false;
  /** Operations that read it (a match within it, a serve by it): it is not given back before they end. */
  holdCount = 0;
  /** Its owner is done with it; pins and memory go as soon as nothing reads it. */
  isReleased = false;
  isGivenBack = false;
  /** Its place in the list of live sets. */
  liveIndex = -1;

  private readonly memory: ExtentMemory;
  private statusView: Uint8Array | undefined;
  private slotView: Int32Array | undefined;
  private generationView: Uint16Array | undefined;

  constructor(memory: ExtentMemory, extent: number, bytes: number, keptBytes: number, count: number) {
    this.memory = memory;
    this.extent = extent;
    this.bytes = bytes;
    this.keptBytes = keptBytes;
    this.count = count;
  }

  // Views are made when asked for: most sets are released without anybody looking.

  get statuses(): Uint8Array {
    this.checkAlive();
    const at = this.memory.statusesAt(this.extent);
    return (this.statusView ??= this.memory.bytes.subarray(at, at + this.count));
  }

  get slots(): Int32Array {
    this.checkAlive();
    const at = this.memory.slotsAt(this.extent);
    return (this.slotView ??= this.memory.words.subarray(at, at + this.count));
  }

  get generations(): Uint16Array {
    this.checkAlive();
    const at = this.memory.generationsAt(this.extent);
    return (this.generationView ??= this.memory.halves.subarray(at, at + this.count));
  }

  get pinnedCount(): number {
    return this.counts.pinned;
  }

  get pendingCount(): number {
    return this.counts.pending;
  }

  get reservedCount(): number {
    return this.counts.reserved;
  }

  get leadingCount(): number {
    return this.counts.leading;
  }

  /** Counts the positions anew: after operations whose parts ran on several workers. */
  recount(): void {
    const { counts, memory } = this;
    const at = memory.statusesAt(this.extent);
    let isLeading = true;
    counts.pinned = counts.pending = counts.reserved = counts.damaged = 0;
    counts.unwritten = counts.quarantined = counts.leading = 0;
    for (let i = 0; i < this.count; i += 1) {
      const status = memory.bytes[at + i];
      const isPresent = status === PositionStatus.Pinned || status === PositionStatus.Found;
      isLeading = isLeading && isPresent;
      if (isLeading) counts.leading += 1;
      if (status === PositionStatus.Pinned) counts.pinned += 1;
      else if (status === PositionStatus.Pending) counts.pending += 1;
      else if (status === PositionStatus.Reserved) counts.reserved += 1;
      else if (status === PositionStatus.Damaged) counts.damaged += 1;
      else if (status === PositionStatus.Unwritten) counts.unwritten += 1;
      else if (status === PositionStatus.Quarantined) counts.quarantined += 1;
    }
  }

  /** These Reserved positions become Unwritten; what is not Reserved stays as it is. */
  markUnwritten(positions: Int32Array): void {
    this.checkIdle();
    const { counts, memory } = this;
    const at = memory.statusesAt(this.extent);
    for (const position of positions) {
      if (memory.bytes[at + position] !== PositionStatus.Reserved) continue;
      memory.bytes[at + position] = PositionStatus.Unwritten;
      counts.reserved -= 1;
      counts.unwritten += 1;
    }
  }

  /** Forgets leases, indexes and keys, which lie at the end of the extent. */
  dropKeys(): void {
    this.memory.setHeader(this.extent, ExtentWord.KeysOffset, 0);
    this.memory.setHeader(this.extent, ExtentWord.IndexesOffset, 0);
    this.memory.setHeader(this.extent, ExtentWord.LeasesOffset, 0);
    this.memory.setHeader(this.extent, ExtentWord.LeaseCount, 0);
    this.memory.setHeader(this.extent, ExtentWord.Bytes, this.keptBytes);
    this.bytes = this.keptBytes;
  }

  checkAlive(): void {
    if (this.isReleased || this.isGivenBack)
      throw new Error('the slot set was given back; its memory may be in other hands');
  }

  checkIdle(): void {
    if (this.isBusy) throw new Error('the slot set has an operation under way');
  }
}

/** What a caller gives back as a slot set, which must be one of ours and still his. */
export function ownSet(set: unknown): ExtentSet {
  if (!(set instanceof ExtentSet)) throw new Error('not a slot set of this client');
  set.checkAlive();
  return set;
}
