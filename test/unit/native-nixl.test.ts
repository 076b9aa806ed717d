// The addon's NIXL part as far as it goes without the library: loading errors, and pairs for a serve.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { loadNative } from '../../native/index.js';
import type { ControlHandle } from '../../native/index.js';
import { loadNixl } from '../../native/nixl.js';
import { computeLayout } from '../../src/shared/layout.js';
import { writeHeader } from '../../src/shared/layout-header.js';

const nixl = loadNixl();
const native = loadNative();

const layout = computeLayout({ numBlocks: 64, blockBytes: 4096, keyBytes: 36, shardCount: 1 });
const memory = native.mapAnonymous({ bytes: layout.controlBytes, huge: false, lock: false }).buffer;
writeHeader(memory, layout, { seed: 1n, incarnation: 1n });
const control = native.attachControl(memory);

describe('loading the library', () => {
  const failure = (path: string) => {
    try {
      nixl.load(path);
    } catch (error) {
      return error as Error & { code: string };
    }
    throw new Error(`${path} was loaded`);
  };

  test.each([
    ['an empty path', '', 'not absolute'],
    ['a bare name, which the loader would search for', 'libnixl_capi.so', 'not absolute'],
    ['a file that is not there', '/nowhere/libnixl_capi.so', 'No such file'],
    ['a file that is no library', '/etc/passwd', '/etc/passwd'],
    ['a directory', '/', 'annot'],
  ])('%s is refused with the reason', (_, path, reason) => {
    expect(failure(path).code).toBe('KVPEER_NIXL_UNAVAILABLE');
    expect(failure(path).message).toContain(reason);
  });

  test('a library of something else is refused with the names of what it lacks', () => {
    // The addon itself is a library that is certainly there.
    const other = process.report.getReport() as unknown as { sharedObjects: string[] };
    const addon = other.sharedObjects.find((path) => path.endsWith('kvpeer_core.node')) ?? '';
    expect(failure(addon).message).toContain('nixl_capi_create_configured_agent');
    expect(failure(addon).message).toContain('nixl_capi_post_xfer_req');
  });

  test('nothing can be done before it, and that is said', () => {
    const pool = native.mapAnonymous({ bytes: layout.poolBytes, huge: false, lock: false }).buffer;
    const handle = native.attachPool(pool, control);
    expect(() => nixl.createSendAgent(handle, 64, 4096)).toThrow('the NIXL library is not loaded');
  });

  test('statuses have words', () => {
    expect(nixl.statusText(0)).toContain('success');
    expect(nixl.statusText(-2)).toContain('connection lost');
    expect(nixl.statusText(-6)).toContain('not found');
    expect(nixl.statusText(-99)).toContain('-99');
  });
});

describe('preparing the pairs of a serve', () => {
  const WANTED = [3, 7] as const;
  const SLOTS = 64;
  const INDEXES = 100;

  interface Position {
    readonly slot: number;
    readonly index: number;
    readonly status: number;
  }

  function prepare(
    positions: readonly Position[],
    handle: ControlHandle = control,
  ): number | [number, number][] {
    const slotsOffset = layout.arenaOffset;
    const indexesOffset = slotsOffset + 4 * positions.length;
    const statusesOffset = indexesOffset + 4 * positions.length;
    new Int32Array(memory, slotsOffset, positions.length).set(positions.map(({ slot }) => slot));
    new Int32Array(memory, indexesOffset, positions.length).set(positions.map(({ index }) => index));
    new Uint8Array(memory, statusesOffset, positions.length).set(positions.map(({ status }) => status));
    const pairs = new Int32Array(2 * positions.length);
    const count = nixl.preparePairs(
      handle,
      slotsOffset,
      indexesOffset,
      statusesOffset,
      positions.length,
      ...WANTED,
      SLOTS,
      INDEXES,
      pairs,
    );
    if (count < 0) return count;
    return Array.from({ length: count }, (_, i) => [pairs[2 * i], pairs[2 * i + 1]]);
  }

  const position = fc.record({
    slot: fc.integer({ min: 0, max: SLOTS - 1 }),
    index: fc.integer({ min: 0, max: INDEXES - 1 }),
    status: fc.constantFrom(...WANTED, 0, 0xc2),
  });

  test('the wanted positions come in the order of their slots, and the lists stay as they are', () => {
    fc.assert(
      fc.property(fc.array(position, { maxLength: 200 }), (positions) => {
        const expected = positions
          .filter(({ status }) => status === WANTED[0] || status === WANTED[1])
          .map(({ slot, index }): [number, number] => [slot, index])
          .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
        expect(prepare(positions)).toEqual(expected);
        const slots = new Int32Array(memory, layout.arenaOffset, positions.length);
        expect([...slots]).toEqual(positions.map(({ slot }) => slot));
      }),
    );
  });

  test.each([
    ['a slot beyond the pool', { slot: SLOTS, index: 0 }],
    ['a negative slot', { slot: -1, index: 0 }],
    ['an index beyond the peer', { slot: 0, index: INDEXES }],
    ['a negative index', { slot: 0, index: -1 }],
  ])('%s is told, unless its position is not wanted', (_, bad) => {
    const good = { slot: 1, index: 1, status: WANTED[0] };
    expect(prepare([good, { ...bad, status: WANTED[1] }])).toBe(-1);
    expect(prepare([good, { ...bad, status: 0 }])).toEqual([[1, 1]]);
  });

  test('a handle that was never given throws', () => {
    expect(() => prepare([], 4711 as ControlHandle)).toThrow('no such mapping');
  });
});
