// Block bytes: what is copied, filled, poisoned, checked and summed, against plain JavaScript.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { RECORD_CHECKSUM, recordOffset } from '../../src/shared/layout.js';
import { PositionStatus } from '../../src/shared/operations.js';
import { Phase } from '../../src/shared/slot-state.js';
import { referenceChecksum, referenceContent } from '../helpers/hash-reference.js';
import type { TestExtent } from '../helpers/shared-pool.js';
import { SharedPool, keyOf } from '../helpers/shared-pool.js';

const { Reserved, Pinned, Found, Miss, Damaged } = PositionStatus;

/** Keys 0, 1, ... in slots 5, 4, ...: order of the list and order of the slots differ. */
function written(pool: SharedPool, statuses: readonly number[]): { extent: TestExtent; slots: number[] } {
  const keys = statuses.map((_, i) => keyOf(i, pool.layout.keyBytes));
  const slots = statuses.map((_, i) => statuses.length - 1 - i);
  keys.forEach((key, i) => {
    pool.writeRecord(slots[i], key, Phase.Writing);
  });
  return { extent: pool.extent({ keys, slots, statuses }), slots };
}

function checksumIn(pool: SharedPool, slot: number): bigint {
  return new DataView(pool.control).getBigUint64(recordOffset(pool.layout, slot) + RECORD_CHECKSUM, true);
}

describe('fill and verify', () => {
  test.each([36, 20, 64])(
    'give a block the content of its key (%i bytes), as the reference says',
    (keyBytes) => {
      const pool = new SharedPool({ blockBytes: 8192, keyBytes });
      const { extent, slots } = written(pool, [Reserved, Miss, Reserved]);
      const { native, controlHandle, poolHandle } = pool;
      expect(native.fillFromKey(controlHandle, poolHandle, extent.offset, 0, -1)).toBe(2);
      for (const i of [0, 2]) {
        expect(pool.block(slots[i])).toEqual(referenceContent(keyOf(i, keyBytes), 8192));
      }
      expect(pool.block(slots[1]).every((byte) => byte === 0)).toBe(true);
    },
  );

  test('find any single flipped byte, in the block it is in', () => {
    const pool = new SharedPool({ blockBytes: 8192 });
    const { extent, slots } = written(pool, [Reserved, Reserved, Reserved]);
    const { native, controlHandle, poolHandle } = pool;
    const verify = (): number => native.verifyFromKey(controlHandle, poolHandle, extent.offset, 0, -1);
    native.fillFromKey(controlHandle, poolHandle, extent.offset, 0, -1);
    expect(verify()).toBe(0);
    extent.statuses.set([Pinned, Found, Pinned]);
    expect(verify()).toBe(0);
    fc.assert(
      fc.property(
        fc.integer({ min: 0, max: 2 }),
        fc.integer({ min: 0, max: 8191 }),
        fc.integer({ min: 1, max: 255 }),
        (position, at, change) => {
          const block = pool.block(slots[position]);
          block[at] ^= change;
          expect(verify()).toBe(1);
          expect(native.verifyFromKey(controlHandle, poolHandle, extent.offset, position, 1)).toBe(1);
          block[at] ^= change;
          expect(verify()).toBe(0);
        },
      ),
    );
  });

  test('do not take another key’s content, nor poison, for right', () => {
    const pool = new SharedPool();
    const { extent, slots } = written(pool, [Reserved, Reserved]);
    const { native, controlHandle, poolHandle } = pool;
    native.fillFromKey(controlHandle, poolHandle, extent.offset, 0, -1);
    pool.block(slots[0]).set(pool.block(slots[1]));
    extent.statuses.set([Pinned, Pinned]);
    expect(native.verifyFromKey(controlHandle, poolHandle, extent.offset, 0, -1)).toBe(1);
    extent.statuses.set([Reserved, Reserved]);
    expect(native.poison(controlHandle, poolHandle, extent.offset, 0, -1)).toBe(2);
    extent.statuses.set([Pinned, Pinned]);
    expect(native.verifyFromKey(controlHandle, poolHandle, extent.offset, 0, -1)).toBe(2);
  });
});

describe('poison', () => {
  test('overwrites reserved blocks of the range with 0xA5 and nothing beside them', () => {
    const pool = new SharedPool();
    const { extent, slots } = written(pool, [Reserved, Reserved, Pinned, Reserved]);
    const { native, controlHandle, poolHandle } = pool;
    expect(native.poison(controlHandle, poolHandle, extent.offset, 1, 3)).toBe(2);
    const isPoisoned = (slot: number): boolean => pool.block(slot).every((byte) => byte === 0xa5);
    expect(slots.map((slot) => isPoisoned(slot))).toEqual([false, true, false, true]);
    expect(pool.block(4).every((byte) => byte === 0)).toBe(true);
  });
});

describe('copyIn', () => {
  test('copies block i to position i where it is reserved, from any alignment', () => {
    const pool = new SharedPool();
    const { native, controlHandle, poolHandle } = pool;
    fc.assert(
      fc.property(
        fc.array(fc.constantFrom(Reserved, Pinned, Miss), { minLength: 1, maxLength: 6 }),
        fc.integer({ min: 0, max: 70 }),
        (statuses, shift) => {
          new Uint8Array(pool.pool).fill(0);
          pool.resetArena();
          const { extent, slots } = written(pool, statuses);
          const source = new Uint8Array(shift + statuses.length * 4096).subarray(shift);
          source.forEach((_, i) => {
            source[i] = (i * 31 + (i >> 12)) & 0xff;
          });
          const token = native.holdBuffer(source);
          const reserved = statuses.filter((status) => status === Reserved).length;
          expect(native.copyIn(controlHandle, poolHandle, extent.offset, 0, -1, token)).toBe(reserved);
          native.dropBuffer(token);
          statuses.forEach((status, i) => {
            const expected =
              status === Reserved ? source.subarray(i * 4096, (i + 1) * 4096) : new Uint8Array(4096);
            expect(Buffer.compare(pool.block(slots[i]), expected)).toBe(0);
          });
        },
      ),
      { numRuns: 40 },
    );
  });

  test('reads a held buffer also when it was detached meanwhile, and not after it was dropped', () => {
    const pool = new SharedPool();
    const { native, controlHandle, poolHandle } = pool;
    const { extent, slots } = written(pool, [Reserved]);
    const source = new Uint8Array(4096).fill(7);
    const token = native.holdBuffer(source);
    structuredClone(source.buffer, { transfer: [source.buffer] });
    expect(source.byteLength).toBe(0);
    expect(native.copyIn(controlHandle, poolHandle, extent.offset, 0, -1, token)).toBe(1);
    expect(pool.block(slots[0]).every((byte) => byte === 7)).toBe(true);
    native.dropBuffer(token);
    expect(() => native.copyIn(controlHandle, poolHandle, extent.offset, 0, -1, token)).toThrow(/no buffer/);
    expect(() => {
      native.dropBuffer(token);
    }).toThrow(/no buffer/);
  });

  test('does not hold resizable buffers', () => {
    const { native } = new SharedPool();
    // Node 20 has them, TypeScript's library for ES2023 does not.
    const resizable = Reflect.construct(ArrayBuffer, [8, { maxByteLength: 16 }]) as ArrayBuffer;
    expect(() => native.holdBuffer(new Uint8Array(resizable))).toThrow(/resizable/);
  });
});

describe('checksums', () => {
  test('are the reference’s, and land in the slot records', () => {
    const pool = new SharedPool({ blockBytes: 8192 });
    const { native, controlHandle, poolHandle } = pool;
    const { extent, slots } = written(pool, [Reserved, Miss, Reserved]);
    native.fillFromKey(controlHandle, poolHandle, extent.offset, 0, -1);
    expect(native.checksum(controlHandle, poolHandle, extent.offset, 0, -1)).toBe(2);
    const sums = slots.map((slot) => checksumIn(pool, slot));
    expect(sums[0]).toBe(referenceChecksum(pool.block(slots[0])));
    expect(sums[1]).toBe(0n);
    expect(sums[2]).toBe(referenceChecksum(pool.block(slots[2])));
  });

  test('change with every flipped bit', () => {
    const block = new Uint8Array(4096);
    const sum = referenceChecksum(block);
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 4096 * 8 - 1 }), (bit) => {
        block[bit >> 3] ^= 1 << (bit & 7);
        expect(referenceChecksum(block)).not.toBe(sum);
        block[bit >> 3] ^= 1 << (bit & 7);
      }),
    );
  });

  test('mark exactly the damaged blocks, and record the sums of the good ones', () => {
    const pool = new SharedPool();
    const { native, controlHandle, poolHandle } = pool;
    const { extent, slots } = written(pool, [Reserved, Reserved, Reserved]);
    native.fillFromKey(controlHandle, poolHandle, extent.offset, 0, -1);
    const expected = pool.layout.arenaOffset + 65_536;
    new BigUint64Array(pool.control, expected, 3).set(
      slots.map((slot) => referenceChecksum(pool.block(slot))),
    );
    pool.block(slots[1])[4095] ^= 1;
    expect(native.verifyChecksum(controlHandle, poolHandle, extent.offset, 0, -1, expected)).toBe(1);
    expect(Array.from(extent.statuses)).toEqual([Reserved, Damaged, Reserved]);
    expect(checksumIn(pool, slots[0])).toBe(referenceChecksum(pool.block(slots[0])));
    expect(checksumIn(pool, slots[1])).toBe(0n);
  });
});
