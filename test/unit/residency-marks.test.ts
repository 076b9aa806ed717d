// Marks of slots between workers and main: nothing lost, nothing told twice, whatever the order and the budget.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { ResidencyFeed } from '../../src/main/events/residency.js';
import { RECORD_KEY, recordOffset } from '../../src/shared/layout.js';
import { RebuildMode, PositionStatus } from '../../src/shared/operations.js';
import { ResidencyMarker, ResidencyMarks, makeResidencyMarks } from '../../src/shared/residency-marks.js';
import { Phase, phaseOf } from '../../src/shared/slot-state.js';
import { ControlMemory } from '../fixtures/control-memory.js';

describe('residency marks', () => {
  it('give every marked slot once, in however many takes', () => {
    fc.assert(
      fc.property(fc.array(fc.nat({ max: 5999 })), fc.integer({ min: 1, max: 200 }), (marked, budget) => {
        const shards = { shardCount: 3, slotsPerShard: 2000 };
        const memory = makeResidencyMarks(shards);
        const markers = [0, 1, 2].map((shard) => new ResidencyMarker(memory, shards, shard));
        for (const slot of marked) markers[Math.floor(slot / 2000)].mark(slot);
        const marks = new ResidencyMarks(memory, shards);
        const seen: number[] = [];
        while (!marks.take(budget, (slot) => seen.push(slot)));
        expect(seen.toSorted((a, b) => a - b)).toEqual([...new Set(marked)].toSorted((a, b) => a - b));
        expect(marks.hasChanged()).toBe(false);
      }),
    );
  });
});

describe('the residency feed', () => {
  function node() {
    const memory = new ControlMemory({ numBlocks: 64 });
    const marks = makeResidencyMarks(memory.layout);
    const owner = memory.owner(0, undefined, new ResidencyMarker(marks, memory.layout, 0));
    const feed = new ResidencyFeed(memory.table, marks);
    const here = new Map<number, number>();
    const take = (): void => {
      feed.take(1000, {
        onArrived: (slot, key) => {
          expect(here.has(slot)).toBe(false);
          here.set(slot, key.readUInt32BE());
        },
        onLeft: (slot) => {
          expect(here.delete(slot)).toBe(true);
        },
      });
    };
    const store = (ids: readonly number[]): void => {
      const extent = memory.extent(ids);
      memory.match(extent, 0);
      owner.reserve(extent, 0);
      owner.publish(extent, false);
      memory.release(extent);
    };
    const resident = (): number[] => {
      const keys: number[] = [];
      for (let slot = 0; slot < 64; slot += 1) {
        if (phaseOf(memory.table.state(slot)) === Phase.Ready) {
          keys.push(memory.idAt(recordOffset(memory.layout, slot) + RECORD_KEY));
        }
      }
      return keys.toSorted((a, b) => a - b);
    };
    return {
      memory,
      owner,
      store,
      take,
      resident,
      known: () => [...here.values()].toSorted((a, b) => a - b),
    };
  }

  it('tells what the slot records say after any history of stores, evictions and rebuilds', () => {
    const step = fc.oneof(
      {
        weight: 6,
        arbitrary: fc
          .array(fc.nat({ max: 200 }), { minLength: 1, maxLength: 20 })
          .map((ids) => ({ store: ids })),
      },
      {
        weight: 2,
        arbitrary: fc
          .array(fc.nat({ max: 200 }), { minLength: 1, maxLength: 20 })
          .map((ids) => ({ evict: ids })),
      },
      { weight: 1, arbitrary: fc.constant({ rebuild: true }) },
      { weight: 3, arbitrary: fc.constant({ take: true }) },
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const { memory, owner, store, take, resident, known } = node();
        for (const one of steps) {
          if ('store' in one) store([...new Set(one.store)]);
          else if ('evict' in one) owner.evictKeys(memory.extent([...new Set(one.evict)]));
          else if ('rebuild' in one) owner.rebuild(memory.extent([], 1024), RebuildMode.Replaced);
          else take();
        }
        take();
        expect(known()).toEqual(resident());
      }),
    );
  });

  it('says nothing of a block that came and went between two looks, nor of one that is being written', () => {
    const { memory, owner, store, take, known } = node();
    store([1]);
    owner.evictKeys(memory.extent([1]));
    const extent = memory.extent([2]);
    memory.match(extent, 0);
    owner.reserve(extent, 0);
    expect(memory.statuses(extent)).toEqual([PositionStatus.Reserved]);
    take();
    expect(known()).toEqual([]);
  });
});
