// The request arena's allocator against a simple model of used ranges.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ARENA_GRAIN_BYTES, Arena } from '../../src/main/shards/arena.js';

interface Extent {
  offset: number;
  bytes: number;
}

const roundUp = (bytes: number): number =>
  Math.max(1, Math.ceil(bytes / ARENA_GRAIN_BYTES)) * ARENA_GRAIN_BYTES;

type Step =
  | { kind: 'alloc'; bytes: number }
  | { kind: 'free'; which: number }
  | { kind: 'shrink'; which: number; share: number };

const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ kind: fc.constant('alloc' as const), bytes: fc.integer({ min: 0, max: 20_000 }) }),
  fc.record({ kind: fc.constant('free' as const), which: fc.nat() }),
  fc.record({
    kind: fc.constant('shrink' as const),
    which: fc.nat(),
    share: fc.double({ min: 0, max: 1, noNaN: true }),
  }),
);

describe('the request arena', () => {
  it('never hands out a byte twice, counts what is free, and is whole again when all is given back', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 700 }), fc.array(step, { maxLength: 300 }), (grains, steps) => {
        const arena = new Arena(grains * ARENA_GRAIN_BYTES);
        const open: Extent[] = [];
        for (const s of steps) {
          if (s.kind === 'alloc') {
            const offset = arena.alloc(s.bytes);
            if (offset >= 0) {
              expect(offset % ARENA_GRAIN_BYTES).toBe(0);
              expect(offset + roundUp(s.bytes)).toBeLessThanOrEqual(arena.bytes);
              for (const other of open) {
                const isApart =
                  offset + roundUp(s.bytes) <= other.offset || other.offset + roundUp(other.bytes) <= offset;
                expect(isApart).toBe(true);
              }
              open.push({ offset, bytes: s.bytes });
            }
          } else if (open.length > 0) {
            const at = s.which % open.length;
            const extent = open[at];
            if (s.kind === 'free') {
              arena.free(extent.offset, extent.bytes);
              open.splice(at, 1);
            } else {
              const keep = Math.floor(extent.bytes * s.share);
              arena.shrink(extent.offset, extent.bytes, keep);
              extent.bytes = keep;
            }
          }
          const used = open.reduce((sum, extent) => sum + roundUp(extent.bytes), 0);
          expect(arena.freeBytes).toBe(arena.bytes - used);
        }
        for (const extent of open) arena.free(extent.offset, extent.bytes);
        const largest = 2 ** Math.floor(Math.log2(grains)) * ARENA_GRAIN_BYTES;
        expect(arena.alloc(largest)).toBeGreaterThanOrEqual(0);
      }),
      { numRuns: 300 },
    );
  });

  it('finds room for a request whenever an aligned block of its class is free', () => {
    const arena = new Arena(1024 * ARENA_GRAIN_BYTES);
    const small = Array.from({ length: 1024 }, () => arena.alloc(ARENA_GRAIN_BYTES));
    expect(small.every((offset) => offset >= 0)).toBe(true);
    expect(arena.alloc(1)).toBe(-1);
    for (const offset of small) arena.free(offset, ARENA_GRAIN_BYTES);
    expect(arena.alloc(1024 * ARENA_GRAIN_BYTES)).toBe(0);
  });

  it('refuses to free a range twice or outside of the arena', () => {
    const arena = new Arena(16 * ARENA_GRAIN_BYTES);
    const offset = arena.alloc(ARENA_GRAIN_BYTES);
    arena.free(offset, ARENA_GRAIN_BYTES);
    expect(() => {
      arena.free(offset, ARENA_GRAIN_BYTES);
    }).toThrow(RangeError);
    expect(() => {
      arena.free(16 * ARENA_GRAIN_BYTES, 1);
    }).toThrow(RangeError);
  });
});
