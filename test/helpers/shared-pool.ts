// A small node's memory for tests: both mappings, attached, with helpers to place blocks and to write extents by hand.

import type { ControlHandle, Native, PoolHandle } from '../../native/index.js';
import { loadNative } from '../../native/index.js';
import type { Layout } from '../../src/shared/layout.js';
import {
  BUCKET_ENTRIES,
  RECORD_KEY,
  RECORD_KEY_LENGTH,
  bucketOffset,
  computeLayout,
  firstSlotOfShard,
  recordOffset,
  workerScratch,
} from '../../src/shared/layout.js';
import { writeHeader } from '../../src/shared/layout-header.js';
import { EXTENT_HEADER_BYTES, ExtentWord, PositionStatus } from '../../src/shared/operations.js';
import type { KeyPlace } from '../../src/shared/slot-state.js';
import { Phase, SlotTable, packState } from '../../src/shared/slot-state.js';

export interface SharedPoolOptions {
  readonly numBlocks?: number;
  readonly blockBytes?: number;
  readonly keyBytes?: number;
  readonly shardCount?: number;
  readonly arenaBytes?: number;
  readonly seed?: bigint;
}

/** The memory of a SharedPool made in another thread, and the part of the arena this thread may use. */
export interface SharedMemory {
  readonly control: SharedArrayBuffer;
  readonly pool: SharedArrayBuffer;
  readonly arenaStart: number;
}

export interface ExtentOptions {
  /** One key per position. */
  readonly keys: readonly Uint8Array[];
  readonly flags?: number;
  readonly keyStride?: number;
  readonly indexes?: readonly number[];
  /** Offsets of other extents. */
  readonly leases?: readonly number[];
  readonly pinLimit?: number;
  readonly peerNumBlocks?: number;
  readonly statuses?: readonly number[];
  readonly slots?: readonly number[];
}

export interface TestExtent {
  readonly offset: number;
  readonly words: Int32Array;
  readonly slots: Int32Array;
  readonly generations: Uint16Array;
  readonly statuses: Uint8Array;
}

export class SharedPool {
  readonly native: Native;
  readonly layout: Layout;
  readonly control: SharedArrayBuffer;
  readonly pool: SharedArrayBuffer;
  readonly controlHandle: ControlHandle;
  readonly poolHandle: PoolHandle;
  readonly table: SlotTable;
  readonly #arenaStart: number;
  #arenaEnd: number;
  #nextSlots: number[];

  constructor(options: SharedPoolOptions = {}, shared?: SharedMemory) {
    this.native = loadNative();
    this.layout = computeLayout({
      numBlocks: options.numBlocks ?? 64,
      blockBytes: options.blockBytes ?? 4096,
      keyBytes: options.keyBytes ?? 36,
      shardCount: options.shardCount ?? 2,
      ringCapacity: 64,
      arenaBytes: options.arenaBytes ?? 1024 * 1024,
    });
    const map = (bytes: number): SharedArrayBuffer =>
      this.native.mapAnonymous({ bytes, huge: false, lock: false }).buffer;
    this.control = shared?.control ?? map(this.layout.controlBytes);
    this.pool = shared?.pool ?? map(this.layout.poolBytes);
    if (shared === undefined) {
      const seed = options.seed ?? 0x1234_5678_9abc_def0n;
      writeHeader(this.control, this.layout, { seed, incarnation: 1n });
    }
    this.controlHandle = this.native.attachControl(this.control);
    this.poolHandle = this.native.attachPool(this.pool, this.controlHandle);
    this.table = new SlotTable(this.control, this.layout);
    this.#arenaStart = shared?.arenaStart ?? this.layout.arenaOffset;
    this.#arenaEnd = this.#arenaStart;
    this.#nextSlots = Array.from({ length: this.layout.shardCount }, (_, shard) =>
      firstSlotOfShard(this.layout, shard),
    );
  }

  /** Bytes of a slot in the pool. */
  block(slot: number): Uint8Array {
    return new Uint8Array(this.pool, slot * this.layout.blockBytes, this.layout.blockBytes);
  }

  /** Forgets all extents. */
  resetArena(): void {
    this.#arenaEnd = this.#arenaStart;
  }

  placeOf(key: Uint8Array): KeyPlace {
    const extent = this.extent({ keys: [key] });
    const target = workerScratch(this.layout, 0);
    this.native.hashKeys(this.controlHandle, extent.offset, 0, 1, target);
    const words = this.table.words.subarray(target / 4, target / 4 + 4);
    return { shard: words[0], bucketA: words[1], bucketB: words[2], tag: words[3] };
  }

  /** Writes a slot's key and state; the index is not touched. */
  writeRecord(slot: number, key: Uint8Array, phase: Phase, generation = 1): void {
    const record = recordOffset(this.layout, slot);
    this.table.bytes.set(key, record + RECORD_KEY);
    this.table.bytes[record + RECORD_KEY_LENGTH] = key.length;
    Atomics.store(this.table.words, this.table.stateWord(slot), packState(phase, generation, 0, 0));
  }

  /** Takes the next slot of the key's shard and enters it; undefined when the shard or both buckets are full. */
  insert(key: Uint8Array, phase: Phase = Phase.Ready, generation = 1): number | undefined {
    const place = this.placeOf(key);
    const slot = this.#nextSlots[place.shard];
    if (slot >= firstSlotOfShard(this.layout, place.shard + 1)) return undefined;
    this.writeRecord(slot, key, phase, generation);
    if (!this.enter(place, slot)) return undefined;
    this.#nextSlots[place.shard] = slot + 1;
    return slot;
  }

  /** Puts an index entry into the emptier bucket of the pair. */
  enter(place: KeyPlace, slot: number): boolean {
    const { words } = this.table;
    const empty = (bucket: number): number[] =>
      Array.from(
        { length: BUCKET_ENTRIES },
        (_, entry) => bucketOffset(this.layout, place.shard, bucket) / 4 + 2 * entry,
      ).filter((at) => words[at + 1] === 0);
    const a = empty(place.bucketA);
    const b = empty(place.bucketB);
    const at = (a.length >= b.length ? a : b).at(0);
    if (at === undefined) return false;
    Atomics.store(words, at, place.tag);
    Atomics.store(words, at + 1, slot + 1);
    return true;
  }

  /** Writes an extent at the arena's end. */
  extent(options: ExtentOptions): TestExtent {
    const { keyBytes } = this.layout;
    const count = options.keys.length;
    const stride = options.keyStride ?? keyBytes;
    let end = EXTENT_HEADER_BYTES;
    const place = (bytes: number): number => {
      const at = end;
      end = Math.ceil((end + bytes) / 8) * 8;
      return at;
    };
    const statusesAt = place(count);
    const slotsAt = place(4 * count);
    const generationsAt = place(2 * count);
    const leasesAt = options.leases === undefined ? 0 : place(4 * options.leases.length);
    const indexesAt = options.indexes === undefined ? 0 : place(4 * count);
    const keysAt = place(count === 0 ? 0 : (count - 1) * stride + keyBytes);
    const bytes = Math.ceil(end / 64) * 64;
    const offset = this.#arenaEnd;
    if (offset + bytes > this.layout.arenaOffset + this.layout.arenaBytes)
      throw new Error('test arena is full');
    this.#arenaEnd += bytes;

    const words = new Int32Array(this.control, offset, EXTENT_HEADER_BYTES / 4);
    words.fill(0);
    words[ExtentWord.Count] = count;
    words[ExtentWord.Flags] = options.flags ?? 0;
    words[ExtentWord.KeysOffset] = keysAt;
    words[ExtentWord.KeyStride] = stride;
    words[ExtentWord.SlotsOffset] = slotsAt;
    words[ExtentWord.GenerationsOffset] = generationsAt;
    words[ExtentWord.IndexesOffset] = indexesAt;
    words[ExtentWord.LeasesOffset] = leasesAt;
    words[ExtentWord.LeaseCount] = options.leases?.length ?? 0;
    words[ExtentWord.StatusesOffset] = statusesAt;
    words[ExtentWord.PinLimit] = options.pinLimit ?? count;
    words[ExtentWord.PeerNumBlocks] = options.peerNumBlocks ?? 0;
    words[ExtentWord.Bytes] = bytes;
    const slots = new Int32Array(this.control, offset + slotsAt, count);
    const statuses = new Uint8Array(this.control, offset + statusesAt, count);
    slots.fill(-1);
    statuses.fill(PositionStatus.Miss);
    if (options.slots !== undefined) slots.set(options.slots);
    if (options.statuses !== undefined) statuses.set(options.statuses);
    if (options.leases !== undefined) {
      new Int32Array(this.control, offset + leasesAt, options.leases.length).set(
        options.leases.map((lease) => lease / 64),
      );
    }
    if (options.indexes !== undefined) {
      new Int32Array(this.control, offset + indexesAt, count).set(options.indexes);
    }
    options.keys.forEach((key, position) => {
      this.table.bytes.set(key, offset + keysAt + position * stride);
    });
    return {
      offset,
      words,
      slots,
      statuses,
      generations: new Uint16Array(this.control, offset + generationsAt, count),
    };
  }

  match(extent: TestExtent, worker = 0): number {
    return this.native.match(this.controlHandle, extent.offset, 0, -1, worker, -1);
  }
}

/** A key of `keyBytes` bytes that holds `number` in its first bytes. */
export function keyOf(number: number, keyBytes = 36): Uint8Array {
  const key = new Uint8Array(keyBytes);
  const view = new DataView(key.buffer);
  if (keyBytes >= 8) view.setFloat64(0, number, true);
  else for (let i = 0; i < keyBytes; i++) key[i] = (number >>> (8 * i)) & 0xff;
  return key;
}
