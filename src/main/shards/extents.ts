// Extents as main makes them: room in the arena, the header, the one copy of the key bytes, and giving them back.

import { ExtentMemory, planExtent } from '../../shared/extent.js';
import { type Layout, shardOfSlot } from '../../shared/layout.js';
import { EXTENT_UNIT_BYTES, ExtentFlag, ExtentWord, PositionStatus } from '../../shared/operations.js';
import {
  MAX_VISITED,
  Phase,
  type SlotTable,
  generationOf,
  packState,
  phaseOf,
} from '../../shared/slot-state.js';
import { Arena } from './arena.js';
import type { KeySpan } from './shard-client.js';
import { ExtentSet } from './slot-set.js';

export interface ExtentContents {
  readonly count: number;
  readonly keys?: KeySpan | undefined;
  /** Bytes of the key area when it holds something else than keys. */
  readonly spaceBytes?: number;
  readonly indexes?: Int32Array | undefined;
  readonly leases?: readonly ExtentSet[] | undefined;
  readonly flags: number;
  readonly pinLimit: number;
  readonly peerNumBlocks: number;
  /** Only a match reads them, so that they may stay in the message they came with. */
  readonly isReadInPlace?: boolean;
  /** Slots read -1 until somebody writes them (a match writes all of them anyway). */
  readonly hasSlotsCleared?: boolean;
}

const NO_LEASES: readonly ExtentSet[] = [];

export class Extents {
  readonly memory: ExtentMemory;
  /** Every set that has not been given back, those of operations under way included. */
  private readonly live: ExtentSet[] = [];
  private readonly layout: Layout;
  private readonly table: SlotTable;
  private readonly arena: Arena;

  constructor(control: SharedArrayBuffer, layout: Layout, table: SlotTable) {
    this.layout = layout;
    this.table = table;
    this.memory = new ExtentMemory(control, layout);
    this.arena = new Arena(layout.arenaBytes);
  }

  get liveCount(): number {
    return this.live.length;
  }

  get freeBytes(): number {
    return this.arena.freeBytes;
  }

  get bytes(): number {
    return this.arena.bytes;
  }

  /** Undefined when the arena has no room now. @throws RangeError when the lists are longer than an extent allows */
  make(contents: ExtentContents): ExtentSet | undefined {
    const { memory } = this;
    const { count, keys, indexes } = contents;
    const leases = contents.leases ?? NO_LEASES;
    const message = indexes === undefined && contents.isReadInPlace === true ? keys?.message : undefined;
    const keyAreaBytes =
      keys === undefined || message !== undefined
        ? (contents.spaceBytes ?? 0)
        : count === 0
          ? 0
          : (count - 1) * keys.stride + this.layout.keyBytes;
    const plan = planExtent({
      count,
      keyAreaBytes,
      // V8 copies into shared memory word by word when both ends have the same phase, and byte by byte, seven times
      // slower, when they do not (38 KB: 3.2 us against 22). Buffers start on a multiple of 8.
      keyPhase: keys === undefined || message !== undefined ? 0 : (keys.bytes.byteOffset + keys.first) & 7,
      hasIndexes: indexes !== undefined,
      leaseCount: leases.length,
    });
    const inArena = this.arena.alloc(plan.bytes);
    if (inArena < 0) return undefined;
    const extent = this.layout.arenaOffset + inArena;
    const header = extent / 4;
    const { words, bytes } = memory;
    words[header + ExtentWord.Recorded] = 0;
    words[header + ExtentWord.OwnersLeft] = 0;
    words[header + ExtentWord.Outcome] = 0;
    words[header + ExtentWord.Count] = count;
    words[header + ExtentWord.Flags] =
      contents.flags | (message === undefined ? 0 : ExtentFlag.KeysInMessage);
    words[header + ExtentWord.KeysOffset] = message === undefined ? plan.keysOffset : (keys?.first ?? 0);
    words[header + ExtentWord.KeyStride] = keys === undefined ? this.layout.keyBytes : keys.stride;
    words[header + ExtentWord.SlotsOffset] = plan.slotsOffset;
    words[header + ExtentWord.GenerationsOffset] = plan.generationsOffset;
    words[header + ExtentWord.IndexesOffset] = plan.indexesOffset;
    words[header + ExtentWord.LeasesOffset] = plan.leasesOffset;
    words[header + ExtentWord.LeaseCount] = leases.length;
    words[header + ExtentWord.StatusesOffset] = plan.statusesOffset;
    words[header + ExtentWord.PinLimit] = contents.pinLimit;
    words[header + ExtentWord.PeerNumBlocks] = message ?? contents.peerNumBlocks;
    words[header + ExtentWord.Bytes] = plan.bytes;
    bytes.fill(0, extent + plan.statusesOffset, extent + plan.statusesOffset + count);
    if (contents.hasSlotsCleared === true || keys?.foreign !== undefined) {
      const slots = (extent + plan.slotsOffset) / 4;
      words.fill(-1, slots, slots + count);
    }
    for (let i = 0; i < leases.length; i += 1) {
      words[(extent + plan.leasesOffset) / 4 + i] = leases[i].extent / EXTENT_UNIT_BYTES;
    }
    if (indexes !== undefined) words.set(indexes, (extent + plan.indexesOffset) / 4);
    if (keys !== undefined && message === undefined && count > 0) {
      bytes.set(keys.bytes.subarray(keys.first, keys.first + keyAreaBytes), extent + plan.keysOffset);
      if (keys.foreign !== undefined) {
        this.markForeign(extent + plan.statusesOffset, keys.foreign, count, PositionStatus.Skip);
      }
    }
    const set = new ExtentSet(memory, extent, plan.bytes, plan.keptBytes, count);
    set.liveIndex = this.live.length;
    this.live.push(set);
    return set;
  }

  /** Gives the positions whose bit is set this status. */
  markForeign(statuses: number, foreign: Uint8Array, count: number, status: PositionStatus): void {
    for (let i = 0; i < count; i += 1) {
      if (((foreign[i >> 3] >> (i & 7)) & 1) !== 0) this.memory.bytes[statuses + i] = status;
    }
  }

  /** Copies statuses, slots and generations of a set with the same count. */
  copyPositions(from: ExtentSet, to: ExtentSet): void {
    const start = this.memory.statusesAt(from.extent);
    this.memory.bytes.copyWithin(this.memory.statusesAt(to.extent), start, from.extent + from.keptBytes);
  }

  /** The operation that needed them is over: leases, indexes and keys make room for others. */
  trim(set: ExtentSet): void {
    if (set.keptBytes < set.bytes) {
      this.arena.shrink(set.extent - this.layout.arenaOffset, set.bytes, set.keptBytes);
    }
    set.dropKeys();
  }

  giveBack(set: ExtentSet): void {
    if (this.live[set.liveIndex] !== set) throw new Error('the extent was given back before');
    // The last one takes its place.
    const last = this.live[this.live.length - 1];
    last.liveIndex = set.liveIndex;
    this.live[set.liveIndex] = last;
    this.live.pop();
    set.isGivenBack = true;
    this.arena.free(set.extent - this.layout.arenaOffset, set.bytes);
  }

  /** Bits of the shards that positions with this status are in. */
  ownersOf(set: ExtentSet, status: PositionStatus): number {
    const { words, bytes } = this.memory;
    const statuses = this.memory.statusesAt(set.extent);
    const slots = this.memory.slotsAt(set.extent);
    const all = 2 ** this.layout.shardCount - 1;
    let owners = 0;
    for (let i = 0; i < set.count && owners !== all; i += 1) {
      if (bytes[statuses + i] === status) owners |= 1 << shardOfSlot(this.layout, words[slots + i]);
    }
    return owners;
  }

  /**
   * After a worker's exit and before its replacement starts: sets all visited bits of the shard's slots that live
   * extents have reserved or hold in quarantine. Rebuild keeps those and frees what nobody has. Nobody else writes the
   * shard's state words of these phases then, so main may.
   */
  markClaimed(shard: number): void {
    const { bytes, words, halves } = this.memory;
    for (const set of this.live) {
      const statuses = this.memory.statusesAt(set.extent);
      const slots = this.memory.slotsAt(set.extent);
      const generations = this.memory.generationsAt(set.extent);
      for (let i = 0; i < set.count; i += 1) {
        const status = bytes[statuses + i];
        if (
          status !== PositionStatus.Reserved &&
          status !== PositionStatus.Quarantined &&
          status !== PositionStatus.Damaged &&
          status !== PositionStatus.Unwritten
        ) {
          continue;
        }
        const slot = words[slots + i];
        if (slot < 0 || shardOfSlot(this.layout, slot) !== shard) continue;
        const state = this.table.state(slot);
        const phase = phaseOf(state);
        if (phase !== Phase.Writing && phase !== Phase.Quarantined) continue;
        if (generationOf(state) !== halves[generations + i]) continue;
        Atomics.store(
          words,
          this.table.stateWord(slot),
          packState(phase, generationOf(state), MAX_VISITED, 0),
        );
      }
    }
  }
}
