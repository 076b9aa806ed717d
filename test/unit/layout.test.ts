// The map of the control mapping: nothing overlaps, everything is aligned, limits are named, adopted headers are checked.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Layout, LayoutOptions } from '../../src/shared/layout.js';
import {
  BUCKET_BYTES,
  CONTROL_WORD_BYTES,
  COUNTERS_PER_WORKER,
  MAX_CONTROL_BYTES,
  MAX_SHARDS,
  MAX_SLOTS,
  PAGE_BUCKETS,
  RING_RECORDS_OFFSET,
  RING_RECORD_BYTES,
  SCRATCH_BYTES,
  bucketOffset,
  completionRing,
  computeLayout,
  firstSlotOfShard,
  mainArmedWord,
  poolScratchOffset,
  recordOffset,
  shardOfSlot,
  submissionRing,
  workerArmedWord,
  workerScratch,
  workerStopWord,
} from '../../src/shared/layout.js';
import {
  HeaderField,
  LAYOUT_VERSION,
  readLayout,
  writeHeader,
  writeIncarnation,
} from '../../src/shared/layout-header.js';

const options = fc.record({
  numBlocks: fc.integer({ min: 30, max: 400 }),
  blockBytes: fc.integer({ min: 1, max: 64 }).map((pages) => pages * 4096),
  keyBytes: fc.integer({ min: 1, max: 64 }),
  shardCount: fc.integer({ min: 1, max: MAX_SHARDS }),
  ringCapacity: fc.integer({ min: 1, max: 11 }).map((bits) => 2 ** bits),
  arenaBytes: fc.integer({ min: 4096, max: 1_000_000 }),
});

const small: LayoutOptions = {
  numBlocks: 100,
  blockBytes: 4096,
  keyBytes: 36,
  shardCount: 3,
  arenaBytes: 4096,
};

/** Every place that somebody writes, as [start, end, alignment]. */
function placesOf(layout: Layout): [number, number, number][] {
  const places: [number, number, number][] = [
    [0, Object.keys(HeaderField).length * 8, 4096],
    [mainArmedWord(layout), mainArmedWord(layout) + CONTROL_WORD_BYTES, CONTROL_WORD_BYTES],
    [layout.arenaOffset, layout.arenaOffset + layout.arenaBytes, 4096],
  ];
  const add = (start: number, bytes: number, alignment: number): void => {
    places.push([start, start + bytes, alignment]);
  };
  for (let worker = 0; worker < layout.shardCount; worker++) {
    add(workerArmedWord(layout, worker), CONTROL_WORD_BYTES, CONTROL_WORD_BYTES);
    add(workerStopWord(layout, worker), CONTROL_WORD_BYTES, CONTROL_WORD_BYTES);
    const ringBytes = RING_RECORDS_OFFSET + layout.ringCapacity * RING_RECORD_BYTES;
    add(submissionRing(layout, worker), ringBytes, 64);
    add(completionRing(layout, worker), ringBytes, 64);
    add(workerScratch(layout, worker), SCRATCH_BYTES, 64);
    add(layout.countersOffset + worker * COUNTERS_PER_WORKER * 8, COUNTERS_PER_WORKER * 8, 64);
    add(bucketOffset(layout, worker, 0), layout.bucketsPerShard * BUCKET_BYTES, 64);
  }
  for (let slot = 0; slot < layout.numBlocks; slot++) {
    add(recordOffset(layout, slot), layout.recordBytes, layout.recordBytes);
  }
  return places;
}

describe('computeLayout', () => {
  test('gives every section, ring, word, bucket and record a place of its own, aligned and inside', () => {
    fc.assert(
      fc.property(options, (asked) => {
        const layout = computeLayout(asked);
        let end = 0;
        for (const [start, stop, alignment] of placesOf(layout).sort(([a], [b]) => a - b)) {
          expect(start).toBeGreaterThanOrEqual(end);
          expect(start % alignment).toBe(0);
          end = stop;
        }
        expect(end).toBeLessThanOrEqual(layout.controlBytes);
      }),
      { numRuns: 30 },
    );
  });

  test('shares the slots equally, in contiguous ranges, and rounds their number down for it', () => {
    fc.assert(
      fc.property(options, (asked) => {
        const layout = computeLayout(asked);
        expect(layout.numBlocks % asked.shardCount).toBe(0);
        expect(asked.numBlocks - layout.numBlocks).toBeLessThan(asked.shardCount);
        for (let shard = 0; shard < layout.shardCount; shard++) {
          const first = firstSlotOfShard(layout, shard);
          expect(shardOfSlot(layout, first)).toBe(shard);
          expect(shardOfSlot(layout, first + layout.slotsPerShard - 1)).toBe(shard);
        }
      }),
    );
  });

  test('has two index entries per slot, at least a pair of buckets and only whole pages beyond one', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 1_000_000 }), (numBlocks) => {
        const { bucketsPerShard } = computeLayout({ ...small, numBlocks, shardCount: 1 });
        expect(bucketsPerShard * 8).toBeGreaterThanOrEqual(2 * numBlocks);
        expect(bucketsPerShard).toBeGreaterThanOrEqual(2);
        if (bucketsPerShard > PAGE_BUCKETS) expect(bucketsPerShard % PAGE_BUCKETS).toBe(0);
      }),
    );
  });

  test('needs at most 128 bytes of control memory per slot at a million slots, 64-byte records up to 40 key bytes', () => {
    const layout = computeLayout({ numBlocks: 1_000_000, blockBytes: 4096, keyBytes: 40, shardCount: 4 });
    expect(layout.controlBytes / layout.numBlocks).toBeLessThanOrEqual(128);
    expect(layout.recordBytes).toBe(64);
    expect(computeLayout({ ...small, keyBytes: 41 }).recordBytes).toBe(128);
  });

  test('puts the scratch page behind the last slot', () => {
    const layout = computeLayout(small);
    expect(poolScratchOffset(layout)).toBe(99 * 4096);
    expect(layout.poolBytes).toBe(100 * 4096);
  });

  test.each<[Partial<LayoutOptions>, RegExp]>([
    [{ numBlocks: 2 }, /numBlocks is 2; .* from 3 to/],
    [{ numBlocks: MAX_SLOTS + 1 }, /numBlocks/],
    [{ numBlocks: 1.5 }, /numBlocks/],
    [{ numBlocks: Number.NaN }, /numBlocks/],
    [{ blockBytes: 0 }, /blockBytes/],
    [{ blockBytes: 6000 }, /blockBytes is 6000; it must be a multiple of 4096/],
    [{ keyBytes: 0 }, /keyBytes/],
    [{ keyBytes: 65 }, /keyBytes is 65/],
    [{ shardCount: 0 }, /shardCount/],
    [{ shardCount: 31 }, /shardCount/],
    [{ ringCapacity: 100 }, /power of two/],
    [{ ringCapacity: 1 }, /ringCapacity/],
    [{ arenaBytes: 0 }, /arenaBytes/],
    [{ numBlocks: 60_000_000 }, new RegExp(`more than ${MAX_CONTROL_BYTES}`)],
    [{ numBlocks: 30_000_000, blockBytes: 2 ** 40 }, /cannot be addressed/],
  ])('refuses %o and says why', (wrong, message) => {
    expect(() => computeLayout({ ...small, ...wrong })).toThrow(message);
  });
});

describe('the header', () => {
  const identity = { seed: 2n ** 64n - 1n, incarnation: 77n };

  function written(): SharedArrayBuffer {
    const layout = computeLayout(small);
    const control = new SharedArrayBuffer(layout.controlBytes);
    writeHeader(control, layout, identity);
    return control;
  }

  test('gives back what was written', () => {
    expect(readLayout(written())).toEqual({ ...computeLayout(small), ...identity });
  });

  test('gets a new incarnation without any other change', () => {
    const control = written();
    writeIncarnation(control, 78n);
    expect(readLayout(control)).toEqual({ ...computeLayout(small), ...identity, incarnation: 78n });
  });

  const sizes = ['NumBlocks', 'BlockBytes', 'KeyBytes', 'ShardCount', 'RingCapacity', 'ArenaBytes'];
  test.each(Object.entries(HeaderField).filter(([name]) => name !== 'Seed' && name !== 'Incarnation'))(
    'is refused when its %s is wrong',
    (name, field) => {
      const control = written();
      new BigUint64Array(control)[field] += 8n;
      // A wrong size makes the fields that follow from it wrong; every other field is named itself.
      const named =
        { Magic: 'wrong magic', Version: `layout version ${LAYOUT_VERSION + 8}` }[name] ??
        `mapping's ${name} is`;
      expect(() => readLayout(control)).toThrow(
        sizes.includes(name) ? /must be|power of two/ : new RegExp(named),
      );
    },
  );

  test('is refused when the mapping is smaller than it says', () => {
    const whole = written();
    const cut = new SharedArrayBuffer(whole.byteLength - 4096);
    new Uint8Array(cut).set(new Uint8Array(whole, 0, cut.byteLength));
    expect(() => readLayout(cut)).toThrow(/bytes, its header says/);
    expect(() => readLayout(new SharedArrayBuffer(64))).toThrow(/less than its header/);
    const layout = computeLayout(small);
    expect(() => {
      writeHeader(cut, layout, identity);
    }).toThrow(/the layout needs/);
  });
});
