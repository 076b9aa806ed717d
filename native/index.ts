// The typed face of the native addon: loads the two targets, checks that they fit, and says what each call does.

import { createRequire } from 'node:module';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

declare const brand: unique symbol;
/** A mapping as one env's native code knows it. Valid only in the thread that attached it. */
export type ControlHandle = number & { readonly [brand]: 'ControlHandle' };
export type PoolHandle = number & { readonly [brand]: 'PoolHandle' };
/** A buffer held for native reads; valid in every thread of the process until dropBuffer(). */
export type BufferToken = number & { readonly [brand]: 'BufferToken' };
/** A wake-up of the thread that created it; wake() works from every thread. */
export type WakerHandle = number & { readonly [brand]: 'WakerHandle' };

export interface MapOptions {
  /** Rounded up to a page. */
  readonly bytes: number;
  /** Advise 2 MiB pages. */
  readonly huge: boolean;
  /** Try to lock the pages in memory. */
  readonly lock: boolean;
}

/**
 * A mapping as a SharedArrayBuffer whose start is on a 2 MiB boundary. It is unmapped when no isolate holds the buffer,
 * no handle is attached and no NIXL agent has registered it.
 */
export interface Mapped {
  readonly buffer: SharedArrayBuffer;
  readonly locked: boolean;
  readonly hugeAdvised: boolean;
  /** Why it is not locked or not huge although asked for; empty otherwise. */
  readonly reason: string;
}

/** What a match found; made by unpackMatch(). */
export interface MatchCounts {
  /** Positions Pinned or (without the PIN flag) Found. */
  readonly hitCount: number;
  readonly pendingCount: number;
  /** Positions from the first one of the range that are hits without a gap. */
  readonly leadingCount: number;
}

/**
 * Every call checks its arguments: a wrong type throws a TypeError, a wrong number (handle, offset, count, an extent
 * whose header does not fit) a RangeError; nothing a caller passes makes native code touch memory outside the mapping.
 *
 * `extent` is always the extent's byte offset in the control mapping. A range of positions is `first` and `count`
 * (count -1: to the end).
 */
export interface Native {
  // Mappings
  mapAnonymous(options: MapOptions): Mapped;
  /**
   * A file (in /dev/shm), mapped shared. `create`: make it (it must not exist) with that size; otherwise map an existing
   * one of at least that size.
   */
  mapFile(path: string, options: MapOptions & { readonly create: boolean }): Mapped;
  /**
   * Makes every page present, on a thread of libuv's pool; locked pages are locked from then on.
   *
   * @throws Error (rejects) when the memory cannot be had, for instance because tmpfs is full
   */
  touch(buffer: SharedArrayBuffer): Promise<void>;
  /** Keeps the buffer's memory (also if it is detached or collected meanwhile) until dropBuffer(). */
  holdBuffer(source: Uint8Array): BufferToken;
  dropBuffer(token: BufferToken): void;

  // Attaching: once per thread
  /** Checks magic, version and every offset of the header. The buffer must come from mapAnonymous or mapFile. */
  attachControl(control: SharedArrayBuffer): ControlHandle;
  /** The pool that belongs to this control mapping; checks its size. */
  attachPool(pool: SharedArrayBuffer, control: ControlHandle): PoolHandle;
  detach(handle: ControlHandle | PoolHandle): void;

  // Index and pins
  /**
   * Looks up every key of the range whose status is not Skip, pins (flag PIN), writes slots, generations and statuses, and sets
   * bit `worker` of RECORDED as its last store. Honours PIN, CHECK_DESTINATIONS, COUNT_UNIQUE and PIN_LIMIT.
   *
   * @param onlyShard keys of other shards are left untouched; -1 for all
   * @returns for unpackMatch(); negative: minus an Outcome (BadDestination), nothing is pinned then
   */
  match(
    control: ControlHandle,
    extent: number,
    first: number,
    count: number,
    worker: number,
    onlyShard: number,
  ): number;
  /** Unpins every Pinned position, which becomes a Miss; returns how many. Throws when a slot has no pin. */
  release(control: ControlHandle, extent: number): number;
  /**
   * A fetch by lease: every key gets the slot that the LEASES extents have pinned for it and the status Found (its pin
   * belongs to the lease); one that none has pinned becomes a Miss. Destination indexes are checked if there are any.
   *
   * @returns an Outcome: Ok, NotInLease or BadDestination (also for a key given twice)
   */
  resolve(control: ControlHandle, extent: number): number;
  /**
   * Hashes the keys of a range: four int32 words per key (shard, bucket A, bucket B, tag) at `target`, a byte offset in the
   * control mapping: workerScratch() has room for 4,096 keys, an extent of the arena will do as well.
   */
  hashKeys(control: ControlHandle, extent: number, first: number, count: number, target: number): void;
  /** 128-bit hash of a key of at most 64 bytes under any seed, for tests. */
  hashKey(key: Uint8Array, seed: bigint): readonly [low: bigint, high: bigint];

  // Block bytes: on positions of a range, in the pool
  /** Block i of the held buffer goes to position i when that is Reserved. Returns the blocks copied. */
  copyIn(
    control: ControlHandle,
    pool: PoolHandle,
    extent: number,
    first: number,
    count: number,
    source: BufferToken,
  ): number;
  /** Fills Reserved positions with the content that belongs to their key. Returns the blocks filled. */
  fillFromKey(control: ControlHandle, pool: PoolHandle, extent: number, first: number, count: number): number;
  /** Compares Pinned and Found positions with the content of their key. Returns the blocks that differ. */
  verifyFromKey(
    control: ControlHandle,
    pool: PoolHandle,
    extent: number,
    first: number,
    count: number,
  ): number;
  /** Reserved positions become 0xA5 throughout. Returns the blocks written. */
  poison(control: ControlHandle, pool: PoolHandle, extent: number, first: number, count: number): number;
  /** Stores the checksum of Reserved positions in their slot records. Returns the blocks read. */
  checksum(control: ControlHandle, pool: PoolHandle, extent: number, first: number, count: number): number;
  /**
   * Compares Reserved positions with expected checksums: u64 per position of the extent at byte `checksums` of the
   * control mapping, inside the arena, 0 where none is known. A damaged one gets status Damaged, a good one its checksum in the slot record. Returns the damaged blocks.
   */
  verifyChecksum(
    control: ControlHandle,
    pool: PoolHandle,
    extent: number,
    first: number,
    count: number,
    checksums: number,
  ): number;

  // Waking the main thread
  /** `callback` runs on this thread's event loop at least once after each wake(); several wakes may become one call. */
  createWaker(callback: () => void): WakerHandle;
  /** From any thread. False when the waker is gone. */
  wake(waker: WakerHandle): boolean;
  /** Whether the waker keeps the event loop alive (it does at first). Only in the thread that created it. */
  setWakerRef(waker: WakerHandle, ref: boolean): void;
  closeWaker(waker: WakerHandle): void;

  // Memory of messages
  /** Gives the buffer's memory back now and not with the next garbage collection; its views are empty from then on. */
  freeBytes(buffer: ArrayBuffer): void;

  // Facts
  /** CPU time of the calling thread, ns. */
  threadCpuNs(): number;
  /**
   * Whether a write of up to 4,096 bytes (PIPE_BUF) to this descriptor would go through or fail at once, as soon as it
   * would but at most `waitMs` later: a pipe in blocking mode, full, holds a write for as long as its reader likes.
   */
  isWritable(fd: number, waitMs: number): boolean;
  readonly cpuFeatures: { readonly avx2: boolean };
}

/** The addon is missing, does not load, or was built from other sources. Stands for KVPEER_NATIVE_UNAVAILABLE. */
export class NativeUnavailableError extends Error {
  override readonly name = 'NativeUnavailableError';
  readonly code = 'KVPEER_NATIVE_UNAVAILABLE';
}

/** Raised with every change of the interface between this file and the addon. */
const ADDON_VERSION = 4;

type RegionAddon = Pick<Native, 'mapAnonymous' | 'mapFile' | 'holdBuffer' | 'dropBuffer'> & {
  readonly addonVersion: number;
};

type CoreAddon = Omit<Native, keyof RegionAddon | 'touch' | 'attachControl' | 'attachPool'> & {
  readonly addonVersion: number;
  useRegion(regionPath: string): void;
  touch(whole: BigInt64Array): Promise<void>;
  attachControl(whole: BigInt64Array): ControlHandle;
  attachPool(whole: BigInt64Array, control: ControlHandle): PoolHandle;
};

let loaded: Native | undefined;

/**
 * Loads the addon into this thread (once) and checks that it was built from these sources.
 *
 * @throws NativeUnavailableError with the remedy
 */
export function loadNative(): Native {
  loaded ??= load();
  return loaded;
}

/** The addon's raw core exports, for the part of the addon that has its own typed face (NIXL). */
export function loadCoreAddon(): object {
  loadNative();
  return requireAddon('kvpeer_core');
}

/** Counts of a match that did not end with an outcome. */
export function unpackMatch(packed: number): MatchCounts {
  const upper = Math.floor(packed / 2 ** 17);
  return {
    hitCount: packed % 2 ** 17,
    pendingCount: upper % 2 ** 17,
    leadingCount: Math.floor(upper / 2 ** 17),
  };
}

function load(): Native {
  const region = requireAddon('kvpeer_region') as RegionAddon;
  const core = requireAddon('kvpeer_core') as CoreAddon;
  checkVersion('kvpeer_region', region.addonVersion);
  checkVersion('kvpeer_core', core.addonVersion);
  core.useRegion(addonPath('kvpeer_region'));
  // A typed array over the whole mapping: Node 20's Node-API does not accept a SharedArrayBuffer.
  const whole = (buffer: SharedArrayBuffer): BigInt64Array => new BigInt64Array(buffer);
  return {
    ...region,
    ...core,
    touch: (buffer) => core.touch(whole(buffer)),
    attachControl: (control) => core.attachControl(whole(control)),
    attachPool: (pool, control) => core.attachPool(whole(pool), control),
  };
}

function addonPath(target: string): string {
  // From sources (tests) and from dist/native (everything else) the build directory is at different places.
  const places = ['./build/Release/', '../../native/build/Release/'].map((directory) =>
    fileURLToPath(new URL(`${directory}${target}.node`, import.meta.url)),
  );
  const path = places.find((place) => existsSync(place));
  if (path === undefined) {
    throw new NativeUnavailableError(`the native addon ${target} is not built; run npm run build`);
  }
  return path;
}

function requireAddon(target: string): object {
  const path = addonPath(target);
  try {
    return createRequire(import.meta.url)(path) as object;
  } catch (cause) {
    throw new NativeUnavailableError(
      `the native addon ${target} does not load in this Node (${process.version}); run npm run build`,
      { cause },
    );
  }
}

function checkVersion(target: string, version: number): void {
  if (version !== ADDON_VERSION) {
    throw new NativeUnavailableError(
      `the native addon ${target} has version ${version}, this program needs ${ADDON_VERSION}; run npm run build`,
    );
  }
}
