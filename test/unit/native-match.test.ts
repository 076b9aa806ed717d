// The native match, release and resolve against the JavaScript reference on the same memory.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { unpackMatch } from '../../native/index.js';
import { HASH_WORDS, shardOfSlot, workerScratch } from '../../src/shared/layout.js';
import { ExtentFlag, ExtentWord, Outcome, PositionStatus } from '../../src/shared/operations.js';
import { MAX_PINS, Phase, generationOf, packState, pinsOf, visitedOf } from '../../src/shared/slot-state.js';
import { referenceHash, referencePlace } from '../helpers/hash-reference.js';
import { SharedPool, keyOf } from '../helpers/shared-pool.js';

const SEED = 0xfeed_face_cafe_beefn;

function slotOf(pool: SharedPool, key: Uint8Array, phase: Phase = Phase.Ready): number {
  const slot = pool.insert(key, phase, 7);
  if (slot === undefined) throw new Error('the test pool is full');
  return slot;
}

describe('the hash', () => {
  test('is the same natively and in the BigInt reference, for every length and seed', () => {
    const { native } = new SharedPool();
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 64 }),
        fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
        (key, seed) => {
          expect(native.hashKey(key, seed)).toEqual(referenceHash(key, seed));
        },
      ),
      { numRuns: 500 },
    );
  });

  test.each([1, 2, 3, 4, 7, 30])(
    'sends keys to the same place as the reference with %i shards',
    (shardCount) => {
      const pool = new SharedPool({ numBlocks: 1000, shardCount, seed: SEED });
      const keys = Array.from({ length: 300 }, (_, i) => keyOf(i));
      const extent = pool.extent({ keys });
      const target = workerScratch(pool.layout, 0);
      pool.native.hashKeys(pool.controlHandle, extent.offset, 0, -1, target);
      keys.forEach((key, i) => {
        const at = target / 4 + i * HASH_WORDS;
        const [shard, bucketA, bucketB, tag] = pool.table.words.subarray(at, at + HASH_WORDS);
        expect({ shard, bucketA, bucketB, tag }).toEqual(referencePlace(key, SEED, pool.layout));
        expect(bucketA).not.toBe(bucketB);
      });
    },
  );

  test.each([0n, 1n, 2n, 3n, SEED])('spreads keys that differ little evenly, with seed %i', (seed) => {
    const pool = new SharedPool({ numBlocks: 4096, shardCount: 4 });
    const counts = new Map<string, number>();
    const count = (what: string): void => {
      counts.set(what, (counts.get(what) ?? 0) + 1);
    };
    for (let i = 0; i < 20_000; i++) {
      const place = referencePlace(keyOf(i), seed, pool.layout);
      count(`shard ${place.shard}, quarter ${Math.floor((place.bucketA * 4) / pool.layout.bucketsPerShard)}`);
      count(`shard ${place.shard}, quarter of the page ${Math.floor((place.bucketB % 64) / 16)}`);
      count(`quarter ${Math.floor((place.bucketB % 64) / 16)}, tag ${place.tag >>> 30}`);
      count(`shard ${place.shard}, tag ${place.tag & 3}`);
    }
    expect(counts.size).toBe(64);
    for (const [what, found] of counts) expect(Math.abs(found - 1250), what).toBeLessThan(200);
  });
});

describe('match', () => {
  test.each([
    [36, 0],
    [36, 13],
    [36, 32],
    [20, 16],
    [64, 60],
    [4, 0],
  ])('finds 10,000 keys of %i bytes that differ only in the four bytes at %i', (keyBytes, at) => {
    const count = 10_000;
    const pool = new SharedPool({ numBlocks: 16_384, keyBytes, arenaBytes: 4 * 1024 * 1024 });
    const keys = Array.from({ length: count }, (_, i) => {
      const key = new Uint8Array(keyBytes).fill(0x11);
      new DataView(key.buffer).setUint32(at, i * 0x10001, true);
      return key;
    });
    const slots = keys.map((key) => {
      pool.resetArena();
      return slotOf(pool, key);
    });
    pool.resetArena();
    const extent = pool.extent({ keys, flags: ExtentFlag.Pin });
    expect(unpackMatch(pool.match(extent))).toEqual({
      hitCount: count,
      pendingCount: 0,
      leadingCount: count,
    });
    expect(Array.from(extent.slots)).toEqual(slots);
    expect(pool.native.release(pool.controlHandle, extent.offset)).toBe(count);
  });

  test('answers as the JavaScript reference does, key by key, and leaves the same memory behind', () => {
    const stateArbitrary = fc.record({
      phase: fc.constantFrom(Phase.Free, Phase.Writing, Phase.Ready, Phase.Ready, Phase.Quarantined),
      pins: fc.constantFrom(0, 0, 1, MAX_PINS - 1, MAX_PINS),
      visited: fc.integer({ min: 0, max: 3 }),
      generation: fc.integer({ min: 0, max: 65_535 }),
    });
    fc.assert(
      fc.property(
        fc.array(stateArbitrary, { minLength: 1, maxLength: 40 }),
        fc.array(fc.integer({ min: 0, max: 59 }), { maxLength: 100 }),
        fc.boolean(),
        (states, asked, pin) => {
          const [mine, oracle] = [0, 1].map(() => {
            const pool = new SharedPool({ numBlocks: 128, seed: SEED });
            states.forEach((state, i) => {
              const slot = slotOf(pool, keyOf(i));
              Atomics.store(
                pool.table.words,
                pool.table.stateWord(slot),
                packState(state.phase, state.generation, state.visited, state.pins),
              );
            });
            pool.resetArena();
            return pool;
          });
          const keys = asked.map((i) => keyOf(i));
          const extent = mine.extent({ keys, flags: pin ? ExtentFlag.Pin : 0 });
          mine.match(extent, 1);
          keys.forEach((key, position) => {
            const probe = oracle.table.probe(referencePlace(key, SEED, oracle.layout), key, 0, pin);
            const status = {
              miss: PositionStatus.Miss,
              pinned: PositionStatus.Pinned,
              ready: PositionStatus.Found,
              pending: PositionStatus.Pending,
            }[probe.kind];
            expect(extent.statuses[position]).toBe(status);
            expect(extent.slots[position]).toBe(probe.slot);
            expect(extent.generations[position]).toBe(probe.generation);
          });
          for (let slot = 0; slot < mine.layout.numBlocks; slot++) {
            expect(mine.table.state(slot)).toBe(oracle.table.state(slot));
          }
          expect(extent.words[ExtentWord.Recorded]).toBe(2);
        },
      ),
      { numRuns: 60 },
    );
  });

  test('counts leading hits up to the first gap, and nothing for skipped positions', () => {
    const pool = new SharedPool();
    const keys = [1, 2, 3, 4, 5].map((i) => keyOf(i));
    for (const i of [0, 1, 3, 4]) slotOf(pool, keys[i]);
    const statuses = [0xc2, 0xc2, 0xc2, 0xc2, PositionStatus.Skip];
    const extent = pool.extent({ keys, flags: ExtentFlag.Pin, statuses });
    expect(unpackMatch(pool.match(extent))).toEqual({ hitCount: 3, pendingCount: 0, leadingCount: 2 });
    expect(extent.statuses[4]).toBe(PositionStatus.Skip);
    expect(extent.statuses[2]).toBe(PositionStatus.Miss);
  });

  test('reports a block that is being written with its slot and generation, unpinned', () => {
    const pool = new SharedPool();
    const slot = slotOf(pool, keyOf(1), Phase.Writing);
    const extent = pool.extent({ keys: [keyOf(1)], flags: ExtentFlag.Pin });
    expect(unpackMatch(pool.match(extent))).toEqual({ hitCount: 0, pendingCount: 1, leadingCount: 0 });
    expect(extent.slots[0]).toBe(slot);
    expect(extent.generations[0]).toBe(7);
    expect(pinsOf(pool.table.state(slot))).toBe(0);
  });

  test('sets the visited bit of what it pins and keeps the generation', () => {
    const pool = new SharedPool();
    const slot = slotOf(pool, keyOf(1));
    const extent = pool.extent({ keys: [keyOf(1), keyOf(1)], flags: ExtentFlag.Pin });
    pool.match(extent);
    const state = pool.table.state(slot);
    expect([pinsOf(state), visitedOf(state), generationOf(state)]).toEqual([2, 1, 7]);
  });

  test('handles only the range it is given, and only one shard when asked', () => {
    const pool = new SharedPool();
    const keys = Array.from({ length: 20 }, (_, i) => keyOf(i));
    const slots = keys.map((key) => slotOf(pool, key));
    const extent = pool.extent({ keys, flags: ExtentFlag.Pin });
    const packed = pool.native.match(pool.controlHandle, extent.offset, 5, 10, 0, 1);
    const mine = slots.map(
      (slot, position) => position >= 5 && position < 15 && shardOfSlot(pool.layout, slot) === 1,
    );
    expect(unpackMatch(packed).hitCount).toBe(mine.filter(Boolean).length);
    expect(Array.from(extent.statuses, (status) => status === PositionStatus.Pinned)).toEqual(mine);
  });

  test('takes at most PIN_LIMIT pins, in order; every key beyond is a miss', () => {
    const pool = new SharedPool();
    const keys = [1, 2, 3, 4].map((i) => keyOf(i));
    const slots = keys.map((key, i) => slotOf(pool, key, i === 3 ? Phase.Writing : Phase.Ready));
    const extent = pool.extent({ keys, flags: ExtentFlag.Pin, pinLimit: 2 });
    expect(unpackMatch(pool.match(extent))).toEqual({ hitCount: 2, pendingCount: 0, leadingCount: 2 });
    expect(slots.map((slot) => pinsOf(pool.table.state(slot)))).toEqual([1, 1, 0, 0]);
  });

  test('with COUNT_UNIQUE counts each slot once over the leases and itself', () => {
    const pool = new SharedPool();
    const keys = [1, 2, 3, 4].map((i) => keyOf(i));
    const slots = keys.map((key) => slotOf(pool, key));
    const held = pool.extent({ keys: [keys[0], keys[1]], flags: ExtentFlag.Pin });
    pool.match(held);
    const flags = ExtentFlag.Pin | ExtentFlag.CountUnique;
    const order = [keys[0], keys[2], keys[3], keys[2], keys[1]];
    const extent = pool.extent({ keys: order, flags, pinLimit: 3, leases: [held.offset] });
    pool.match(extent);
    const { Pinned, Miss } = PositionStatus;
    expect(Array.from(extent.statuses)).toEqual([Pinned, Pinned, Miss, Pinned, Pinned]);
    expect(slots.map((slot) => pinsOf(pool.table.state(slot)))).toEqual([2, 2, 2, 0]);
  });

  test.each([
    ['an index beyond the peer', [0, 10], [1, 2]],
    ['a negative index', [0, -1], [1, 2]],
    ['an index given twice', [3, 3], [1, 2]],
    ['a key given twice', [3, 4], [9, 9]],
  ])('refuses %s before it pins anything', (_, indexes, names) => {
    const pool = new SharedPool();
    const slots = [1, 2].map((i) => slotOf(pool, keyOf(i)));
    const flags = ExtentFlag.Pin | ExtentFlag.CheckDestinations;
    const keys = names.map((name) => keyOf(name));
    const extent = pool.extent({ keys, flags, indexes, peerNumBlocks: 10 });
    expect(pool.match(extent)).toBe(-Outcome.BadDestination);
    expect(slots.map((slot) => pinsOf(pool.table.state(slot)))).toEqual([0, 0]);
  });
});

describe('release', () => {
  test('gives every pin back exactly once', () => {
    const pool = new SharedPool();
    const slot = slotOf(pool, keyOf(1));
    const extent = pool.extent({ keys: [keyOf(1), keyOf(2), keyOf(1)], flags: ExtentFlag.Pin });
    pool.match(extent);
    expect(pool.native.release(pool.controlHandle, extent.offset)).toBe(2);
    expect(pinsOf(pool.table.state(slot))).toBe(0);
    expect(pool.native.release(pool.controlHandle, extent.offset)).toBe(0);
  });

  test('throws when a position has no pin to give back, and leaves the state word as it was', () => {
    const pool = new SharedPool();
    const slot = slotOf(pool, keyOf(1));
    const before = pool.table.state(slot);
    const extent = pool.extent({ keys: [keyOf(1)], slots: [slot], statuses: [PositionStatus.Pinned] });
    expect(() => pool.native.release(pool.controlHandle, extent.offset)).toThrow(/no pin/);
    expect(pool.table.state(slot)).toBe(before);
  });
});

describe('resolve', () => {
  function leased(pool: SharedPool): { slots: number[]; lease: number } {
    const keys = [1, 2, 3].map((i) => keyOf(i));
    const slots = keys.map((key) => slotOf(pool, key));
    const lease = pool.extent({ keys: keys.slice(0, 2), flags: ExtentFlag.Pin });
    pool.match(lease);
    return { slots, lease: lease.offset };
  }

  test('finds the slots that the leases have pinned, in the order of the fetch', () => {
    const pool = new SharedPool();
    const { slots, lease } = leased(pool);
    const keys = [keyOf(2), keyOf(1)];
    const extent = pool.extent({ keys, indexes: [5, 0], peerNumBlocks: 6, leases: [lease] });
    expect(pool.native.resolve(pool.controlHandle, extent.offset)).toBe(Outcome.Ok);
    expect(Array.from(extent.slots)).toEqual([slots[1], slots[0]]);
    expect(Array.from(extent.statuses)).toEqual([PositionStatus.Found, PositionStatus.Found]);
  });

  test('does not take a READY block that no lease has pinned', () => {
    const pool = new SharedPool();
    const { lease } = leased(pool);
    const keys = [keyOf(2), keyOf(3)];
    const extent = pool.extent({ keys, indexes: [5, 0], peerNumBlocks: 6, leases: [lease] });
    expect(pool.native.resolve(pool.controlHandle, extent.offset)).toBe(Outcome.NotInLease);
    const later = pool.extent({ keys: [keyOf(3)], indexes: [0], peerNumBlocks: 6, leases: [] });
    expect(pool.native.resolve(pool.controlHandle, later.offset)).toBe(Outcome.NotInLease);
  });

  test('refuses a key or a destination given twice', () => {
    const pool = new SharedPool();
    const { lease } = leased(pool);
    const twice = { peerNumBlocks: 6, leases: [lease] };
    const key = pool.extent({ ...twice, keys: [keyOf(1), keyOf(1)], indexes: [1, 2] });
    const index = pool.extent({ ...twice, keys: [keyOf(1), keyOf(2)], indexes: [1, 1] });
    expect(pool.native.resolve(pool.controlHandle, key.offset)).toBe(Outcome.BadDestination);
    expect(pool.native.resolve(pool.controlHandle, index.offset)).toBe(Outcome.BadDestination);
  });
});
