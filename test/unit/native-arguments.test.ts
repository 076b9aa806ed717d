// A wrong number at the native border throws, it never faults: every call with every kind of wrong argument.

import { describe, expect, test } from 'vitest';
import type { ControlHandle, Native } from '../../native/index.js';
import { loadCoreAddon, loadNative } from '../../native/index.js';
import { computeLayout, workerScratch } from '../../src/shared/layout.js';
import { HeaderField } from '../../src/shared/layout-header.js';
import { ExtentFlag, ExtentWord, PositionStatus } from '../../src/shared/operations.js';
import { SharedPool, keyOf } from '../helpers/shared-pool.js';

type Call = (...args: unknown[]) => unknown;

/** Values that are no number at all, or no number any argument takes. */
const NEVER_NUMBERS: readonly unknown[] = [
  undefined,
  null,
  '1',
  {},
  [],
  1n,
  true,
  () => 1,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
  -2,
  -0.5,
  0.5,
  2 ** 32,
  2 ** 53,
  1e300,
  -(2 ** 63),
];

interface Signature {
  readonly name: keyof Native;
  /** Arguments that work, in a pool of the test's own. */
  readonly good: (pool: SharedPool, extent: number) => unknown[];
  /** Wrong values of single arguments beside NEVER_NUMBERS: by position. */
  readonly wrong?: Record<number, (pool: SharedPool, extent: number) => readonly unknown[]>;
}

const EXTENT_WRONG = (pool: SharedPool, extent: number): number[] => [
  0,
  64,
  extent + 1,
  extent + 4,
  pool.layout.arenaOffset - 64,
  pool.layout.arenaOffset + pool.layout.arenaBytes,
  pool.layout.arenaOffset + pool.layout.arenaBytes - 32,
  pool.layout.controlBytes,
  pool.layout.controlBytes - 64,
  2 ** 31,
  2 ** 32 - 64,
];
const HANDLE_WRONG = (): number[] => [0, 100_000, 2 ** 31, 2 ** 32 - 1];
const RANGE_FIRST_WRONG = (): number[] => [4, 5, 65_536, 65_537];
const RANGE_COUNT_WRONG = (): number[] => [3, 4, 65_536, 65_537];

function blockCall(name: keyof Native): Signature {
  return {
    name,
    good: (pool, extent) => [pool.controlHandle, pool.poolHandle, extent, 1, 2],
    wrong: {
      0: (pool) => [...HANDLE_WRONG(), pool.poolHandle],
      1: (pool) => [...HANDLE_WRONG(), pool.controlHandle],
      2: EXTENT_WRONG,
      3: RANGE_FIRST_WRONG,
      4: RANGE_COUNT_WRONG,
    },
  };
}

const SIGNATURES: readonly Signature[] = [
  {
    name: 'match',
    good: (pool, extent) => [pool.controlHandle, extent, 1, 2, 0, -1],
    wrong: {
      0: HANDLE_WRONG,
      1: EXTENT_WRONG,
      2: RANGE_FIRST_WRONG,
      3: RANGE_COUNT_WRONG,
      4: () => [2, 30, 31, 32],
      5: () => [2, 30],
    },
  },
  {
    name: 'release',
    good: (pool, extent) => [pool.controlHandle, extent],
    wrong: { 0: (pool) => [...HANDLE_WRONG(), pool.poolHandle], 1: EXTENT_WRONG },
  },
  {
    name: 'resolve',
    good: (pool, extent) => [pool.controlHandle, extent],
    wrong: { 0: HANDLE_WRONG, 1: EXTENT_WRONG },
  },
  {
    name: 'hashKeys',
    good: (pool, extent) => [pool.controlHandle, extent, 1, 2, workerScratch(pool.layout, 0)],
    wrong: {
      0: HANDLE_WRONG,
      1: EXTENT_WRONG,
      2: RANGE_FIRST_WRONG,
      3: RANGE_COUNT_WRONG,
      4: (pool) => [
        0,
        4096,
        workerScratch(pool.layout, 0) + 1,
        workerScratch(pool.layout, 2) - 16,
        pool.layout.indexOffset,
        pool.layout.recordsOffset,
        pool.layout.controlBytes - 16,
        2 ** 40,
      ],
    },
  },
  blockCall('fillFromKey'),
  blockCall('verifyFromKey'),
  blockCall('poison'),
  blockCall('checksum'),
  {
    ...blockCall('verifyChecksum'),
    good: (pool, extent) => [pool.controlHandle, pool.poolHandle, extent, 1, 2, pool.layout.arenaOffset],
    wrong: {
      ...blockCall('verifyChecksum').wrong,
      5: (pool) => [
        0,
        pool.layout.arenaOffset + 4,
        pool.layout.arenaOffset - 8,
        pool.layout.arenaOffset + pool.layout.arenaBytes - 8,
        pool.layout.indexOffset,
        2 ** 40,
      ],
    },
  },
  {
    ...blockCall('copyIn'),
    good: (pool, extent) => [
      pool.controlHandle,
      pool.poolHandle,
      extent,
      1,
      2,
      pool.native.holdBuffer(new Uint8Array(3 * 4096)),
    ],
    wrong: {
      ...blockCall('copyIn').wrong,
      5: (pool) => [0, 2 ** 40, pool.native.holdBuffer(new Uint8Array(3 * 4096 - 1))],
    },
  },
  { name: 'detach', good: (pool) => [pool.poolHandle], wrong: { 0: HANDLE_WRONG } },
  { name: 'wake', good: () => [12_345], wrong: { 0: () => [0] } },
  { name: 'closeWaker', good: (pool) => [wakerOf(pool.native)], wrong: { 0: () => [0, 2 ** 40] } },
  {
    name: 'dropBuffer',
    good: (pool) => [pool.native.holdBuffer(new Uint8Array(8))],
    wrong: { 0: () => [0, 2 ** 40] },
  },
];

function wakerOf(native: Native): number {
  const waker = native.createWaker(() => undefined);
  native.setWakerRef(waker, false);
  return waker;
}

function poolWithExtent(): { pool: SharedPool; extent: number } {
  const pool = new SharedPool();
  const keys = [1, 2, 3].map((i) => keyOf(i));
  const indexes = [0, 1, 2];
  return { pool, extent: pool.extent({ keys, indexes, leases: [], peerNumBlocks: 3 }).offset };
}

function callOf(native: Native, name: string): Call {
  return (native as unknown as Record<string, Call>)[name];
}

describe.each(SIGNATURES)('$name', ({ name, good, wrong }) => {
  test('works with right arguments', () => {
    const { pool, extent } = poolWithExtent();
    expect(() => callOf(pool.native, name)(...good(pool, extent))).not.toThrow();
  });

  test('throws for every wrong value of every argument', () => {
    const { pool, extent } = poolWithExtent();
    const right = good(pool, extent);
    const before = new Uint8Array(pool.control).slice();
    let cells = 0;
    for (let position = 0; position < right.length; position++) {
      for (const value of [...NEVER_NUMBERS, ...(wrong?.[position]?.(pool, extent) ?? [])]) {
        // A waker and a buffer token may be any large whole number.
        if (value === 2 ** 32 && name === 'wake') continue;
        const args = right.map((argument, i) => (i === position ? value : argument));
        let thrown: unknown;
        try {
          callOf(pool.native, name)(...args);
        } catch (error) {
          thrown = error;
        }
        const isRightKind = thrown instanceof TypeError || thrown instanceof RangeError;
        expect(isRightKind, `${name} argument ${position} = ${String(value)}`).toBe(true);
        cells += 1;
      }
    }
    expect(cells).toBeGreaterThan(right.length * 10);
    expect(Buffer.compare(before, new Uint8Array(pool.control))).toBe(0);
  });

  test('throws when arguments are missing', () => {
    const { pool, extent } = poolWithExtent();
    const right = good(pool, extent);
    for (let count = 0; count < right.length; count++) {
      expect(() => callOf(pool.native, name)(...right.slice(0, count))).toThrow();
    }
  });
});

describe('an extent', () => {
  const HUGE = [-1, -4096, 2 ** 30, 2 ** 31 - 1, -(2 ** 31), 70_000];
  const EXTENT_FIELDS = [
    'Count',
    'SlotsOffset',
    'GenerationsOffset',
    'StatusesOffset',
    'KeysOffset',
    'KeyStride',
    'IndexesOffset',
    'LeasesOffset',
    'LeaseCount',
    'Bytes',
  ] as const;
  const CALLS: [name: string, call: (pool: SharedPool, extent: number) => unknown, readsKeys: boolean][] = [
    ['match', (pool, extent) => pool.native.match(pool.controlHandle, extent, 0, -1, 0, -1), true],
    ['resolve', (pool, extent) => pool.native.resolve(pool.controlHandle, extent), true],
    ['release', (pool, extent) => pool.native.release(pool.controlHandle, extent), false],
    [
      'poison',
      (pool, extent) => pool.native.poison(pool.controlHandle, pool.poolHandle, extent, 0, -1),
      false,
    ],
  ];

  test.each(CALLS)('whose header lies is refused by %s, whichever word is wrong', (_, call, readsKeys) => {
    for (const field of EXTENT_FIELDS) {
      if (!readsKeys && (field === 'KeysOffset' || field === 'KeyStride')) continue;
      for (const value of HUGE) {
        const pool = new SharedPool({ arenaBytes: 8192 });
        const held = pool.extent({ keys: [keyOf(1)] });
        const keys = [1, 2, 3].map((i) => keyOf(i));
        const extent = pool.extent({ keys, indexes: [0, 1, 2], leases: [held.offset], peerNumBlocks: 3 });
        extent.words[ExtentWord[field]] = value;
        expect(() => call(pool, extent.offset), `${field} = ${value}`).toThrow(RangeError);
      }
    }
  });

  test('may lack its keys where they are not read, and is refused where they are', () => {
    const { pool, extent } = poolWithExtent();
    const words = new Int32Array(pool.control, extent, 16);
    words[ExtentWord.KeysOffset] = 0;
    words[ExtentWord.IndexesOffset] = 0;
    expect(pool.native.release(pool.controlHandle, extent)).toBe(0);
    expect(() => pool.match({ ...pool.extent({ keys: [] }), offset: extent })).toThrow(/keys/);
  });

  test('with leases that are no extents is refused', () => {
    for (const lease of [0, 64, 2 ** 31, -64]) {
      const pool = new SharedPool();
      const flags = ExtentFlag.Pin | ExtentFlag.CountUnique;
      const extent = pool.extent({ keys: [keyOf(1)], leases: [lease], flags });
      expect(() => pool.match(extent)).toThrow(RangeError);
      expect(() => pool.native.resolve(pool.controlHandle, extent.offset)).toThrow(RangeError);
    }
  });

  test('with slot numbers outside the pool is refused by everything that follows them', () => {
    for (const slot of [-1, 64, 2 ** 31 - 1, -(2 ** 31)]) {
      const pool = new SharedPool();
      const reserved = pool.extent({ keys: [keyOf(1)], slots: [slot], statuses: [PositionStatus.Reserved] });
      const pinned = pool.extent({ keys: [keyOf(1)], slots: [slot], statuses: [PositionStatus.Pinned] });
      const { native, controlHandle, poolHandle } = pool;
      for (const name of ['poison', 'fillFromKey', 'checksum'] as const) {
        expect(() => native[name](controlHandle, poolHandle, reserved.offset, 0, -1)).toThrow(RangeError);
      }
      expect(() => native.verifyFromKey(controlHandle, poolHandle, pinned.offset, 0, -1)).toThrow(RangeError);
      expect(() => native.release(controlHandle, pinned.offset)).toThrow(/no pin/);
    }
  });

  test('checked for destinations needs destinations', () => {
    const pool = new SharedPool();
    const extent = pool.extent({ keys: [keyOf(1)], flags: ExtentFlag.CheckDestinations });
    expect(() => pool.match(extent)).toThrow(/no destination indexes/);
  });

  test('may be filled with anything: index entries that name no slot are misses', () => {
    const pool = new SharedPool();
    pool.table.words.fill(0x7fff_fff0, pool.layout.indexOffset / 4, pool.layout.recordsOffset / 4);
    const place = pool.placeOf(keyOf(1));
    const first =
      pool.layout.indexOffset / 4 + (place.shard * pool.layout.bucketsPerShard + place.bucketA) * 16;
    pool.table.words[first] = place.tag;
    expect(pool.match(pool.extent({ keys: [keyOf(1)], flags: ExtentFlag.Pin }))).toBe(0);
  });
});

describe('attaching', () => {
  test('refuses memory that is no mapping of the addon', () => {
    const { control, layout, native, controlHandle } = new SharedPool();
    const copy = new SharedArrayBuffer(layout.controlBytes);
    new Uint8Array(copy).set(new Uint8Array(control));
    expect(() => native.attachControl(copy)).toThrow(/no mapping made by/);
    expect(() => native.attachPool(new SharedArrayBuffer(layout.poolBytes), controlHandle)).toThrow(
      /no mapping made by/,
    );
    expect(() => native.touch(copy)).toThrow(/no mapping made by/);
  });

  test('refuses a control mapping with any wrong field', () => {
    const skipped: number[] = [HeaderField.Seed, HeaderField.Incarnation];
    for (const field of Object.values(HeaderField).filter((value) => !skipped.includes(value))) {
      for (const value of [0n, 1n, 2n ** 32n, 2n ** 63n, 2n ** 64n - 1n, 12_345n]) {
        const pool = new SharedPool();
        const header = new BigUint64Array(pool.control);
        // A shorter key fits the same records: nothing else would be different.
        if (header[field] === value || (field === HeaderField.KeyBytes && value === 1n)) continue;
        header[field] = value;
        expect(() => pool.native.attachControl(pool.control), `field ${field} = ${value}`).toThrow(
          RangeError,
        );
      }
    }
  });

  test('refuses a pool that is smaller than the control mapping says, and a mapping cut off', () => {
    const { native, layout, controlHandle, control } = new SharedPool();
    const map = (bytes: number): SharedArrayBuffer =>
      native.mapAnonymous({ bytes, huge: false, lock: false }).buffer;
    expect(() => native.attachPool(map(layout.poolBytes - 4096), controlHandle)).toThrow(
      /the control mapping says/,
    );
    const cut = map(layout.controlBytes - 4096);
    new Uint8Array(cut).set(new Uint8Array(control, 0, cut.byteLength));
    expect(() => native.attachControl(cut)).toThrow(/smaller than its header says/);
  });

  test('gives the same handle again, and a new one after detach; the old one is dead', () => {
    const { native, control, controlHandle } = new SharedPool();
    expect(native.attachControl(control)).toBe(controlHandle);
    native.detach(controlHandle);
    expect(() => native.release(controlHandle, 0)).toThrow(/no such control mapping/);
    const next = native.attachControl(control);
    expect(next).not.toBe(controlHandle);
    expect(() => {
      native.detach(controlHandle);
    }).toThrow(/no such mapping/);
  });

  test('refuses views of other kinds and other capabilities', () => {
    loadNative();
    const addon = loadCoreAddon() as {
      attachControl: (view: unknown) => ControlHandle;
      useRegion: (path: unknown) => void;
    };
    for (const view of [
      undefined,
      5,
      new Uint8Array(4096),
      new ArrayBuffer(4096),
      new SharedArrayBuffer(4096),
      {},
    ]) {
      expect(() => addon.attachControl(view)).toThrow(TypeError);
    }
    expect(() => addon.attachControl(new BigInt64Array(0))).toThrow(RangeError);
    for (const path of [undefined, 5, '', '/nowhere/kvpeer_region.node', process.execPath]) {
      expect(() => {
        addon.useRegion(path);
      }).toThrow();
    }
  });
});

describe('hashKey, holdBuffer, mapAnonymous, mapFile and createWaker', () => {
  const native = loadNative();
  const option = { bytes: 4096, huge: false, lock: false };

  test.each<[string, unknown[]]>([
    ['hashKey', [new Uint8Array(65), 1n]],
    ['hashKey', [new Uint8Array(8), 2n ** 64n]],
    ['hashKey', [new Uint8Array(8), -1n]],
    ['hashKey', [new Uint8Array(8), 1]],
    ['hashKey', ['key', 1n]],
    ['holdBuffer', [new ArrayBuffer(8)]],
    ['holdBuffer', [new Uint16Array(8)]],
    ['holdBuffer', ['bytes']],
    ['mapAnonymous', []],
    ['mapAnonymous', [4096]],
    ['mapAnonymous', [{ ...option, bytes: 0 }]],
    ['mapAnonymous', [{ ...option, bytes: -1 }]],
    ['mapAnonymous', [{ ...option, bytes: 1.5 }]],
    ['mapAnonymous', [{ ...option, bytes: Number.NaN }]],
    ['mapAnonymous', [{ ...option, bytes: 2 ** 47 }]],
    ['mapAnonymous', [{ ...option, bytes: '4096' }]],
    ['mapAnonymous', [{ ...option, huge: 1 }]],
    ['mapAnonymous', [{ bytes: 4096, huge: false }]],
    ['mapFile', ['', { ...option, create: true }]],
    ['mapFile', ['/dev/shm/a\0b', { ...option, create: true }]],
    ['mapFile', [5, { ...option, create: true }]],
    ['mapFile', ['/dev/shm/kvpeer-none', option]],
    ['createWaker', [5]],
    ['createWaker', []],
  ])('%s refuses %o', (name, args) => {
    let thrown: unknown;
    try {
      callOf(native, name)(...args);
    } catch (error) {
      thrown = error;
    }
    expect(thrown instanceof TypeError || thrown instanceof RangeError).toBe(true);
  });

  test('mapAnonymous says what the system refused', () => {
    expect(() => native.mapAnonymous({ ...option, bytes: 2 ** 46 })).toThrow(/cannot (map|reserve)/);
  });

  test('a layout too large for the machine is an error, not a crash', () => {
    expect(() =>
      computeLayout({ numBlocks: 2 ** 31, blockBytes: 4096, keyBytes: 36, shardCount: 1 }),
    ).toThrow(RangeError);
  });
});
