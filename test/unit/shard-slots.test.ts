// The owner's side of a shard: what it answers, and that index, slot records and free list agree after any history.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Counter, WorkerCounters } from '../../src/shared/counters.js';
import {
  BUCKET_BYTES,
  BUCKET_ENTRIES,
  RECORD_CHAIN_POSITION,
  RECORD_KEY,
  RECORD_LINK_A,
  recordOffset,
} from '../../src/shared/layout.js';
import { PositionStatus, REBUILD_BATCH_KEYS, RebuildMode } from '../../src/shared/operations.js';
import { MAX_VISITED, Phase, generationOf, packState, phaseOf, pinsOf } from '../../src/shared/slot-state.js';
import type { ShardSlots } from '../../src/workers/slots.js';
import { ControlMemory } from '../fixtures/control-memory.js';

const { Miss, Pinned, Pending, Reserved, Full, Found, Quarantined } = PositionStatus;

/** Reserve as a worker does it: the native pins first, then the owner's part. */
function reserve(node: ControlMemory, owners: readonly ShardSlots[], ids: readonly number[]): number {
  const extent = node.extent(ids);
  owners.forEach((owner, shard) => {
    node.match(extent, shard);
    owner.reserve(extent, 0);
  });
  return extent;
}

/** What is wrong between index, records, free list and gauges of a shard. */
function faultsOf(node: ControlMemory, owner: ShardSlots, shard: number): string[] {
  const { layout, table } = node;
  const faults: string[] = [];
  const indexed = new Map<number, number>();
  const first = (layout.indexOffset + shard * layout.bucketsPerShard * BUCKET_BYTES) / 4;
  for (let entry = 0; entry < layout.bucketsPerShard * BUCKET_ENTRIES; entry += 1) {
    const slot = table.words[first + 2 * entry + 1] - 1;
    if (slot < 0) continue;
    if (indexed.has(slot)) faults.push(`slot ${slot} has two entries`);
    indexed.set(slot, 2 * entry);
  }
  const phases = [0, 0, 0, 0];
  const keys = new Set<number>();
  for (let slot = owner.firstSlot; slot < owner.firstSlot + owner.slotCount; slot += 1) {
    const phase = phaseOf(table.state(slot));
    phases[phase] += 1;
    const isFindable = phase === Phase.Ready || phase === Phase.Writing;
    if (indexed.has(slot) !== isFindable) faults.push(`slot ${slot} in phase ${phase}: entry is wrong`);
    if (!isFindable) continue;
    const record = recordOffset(layout, slot);
    if (table.words[(record + RECORD_LINK_A) / 4] - 1 !== indexed.get(slot)) {
      faults.push(`slot ${slot} has a wrong link`);
    }
    const id = node.idAt(record + RECORD_KEY);
    if (keys.has(id)) faults.push(`key ${id} has two slots`);
    keys.add(id);
    const place = node.place(id);
    const bucket = Math.floor((indexed.get(slot) ?? 0) / (2 * BUCKET_ENTRIES));
    if (place.shard !== shard || ![place.bucketA, place.bucketB].includes(bucket)) {
      faults.push(`key ${id} is at a wrong place`);
    }
  }
  const counters = new WorkerCounters(node.control, layout, shard);
  const gauges = [Counter.FreeSlots, Counter.WritingSlots, Counter.QuarantinedSlots].map((c) =>
    counters.get(c),
  );
  const counted = [phases[Phase.Free], phases[Phase.Writing], phases[Phase.Quarantined]];
  if (gauges.join() !== counted.join()) faults.push(`gauges ${gauges.join()}, slots ${counted.join()}`);
  return faults;
}

describe('the slots of a shard', () => {
  it('give each new key a slot of its own, the last blocks of a list the first slots', () => {
    const node = new ControlMemory({ numBlocks: 8 });
    const owner = node.owner(0);
    const extent = reserve(node, [owner], [10, 11, 12]);
    expect(node.statuses(extent)).toEqual([Reserved, Reserved, Reserved]);
    expect(node.slots(extent)).toEqual([2, 1, 0]);
    expect(faultsOf(node, owner, 0)).toEqual([]);
  });

  it('answer pending for a key that is being written, also by the same list, and pinned once it is published', () => {
    const node = new ControlMemory({ numBlocks: 8 });
    const owner = node.owner(0);
    const first = reserve(node, [owner], [1, 2, 1]);
    expect(node.statuses(first)).toEqual([Reserved, Reserved, Pending]);
    expect(node.slots(first)[2]).toBe(node.slots(first)[0]);
    const second = reserve(node, [owner], [2, 3]);
    expect(node.statuses(second)).toEqual([Pending, Reserved]);
    owner.publish(first, true);
    expect(node.statuses(first)).toEqual([Pinned, Pinned, Pending]);
    const third = reserve(node, [owner], [1, 3]);
    expect(node.statuses(third)).toEqual([Pinned, Pending]);
    expect(pinsOf(node.table.state(node.slots(first)[0]))).toBe(2);
    expect(faultsOf(node, owner, 0)).toEqual([]);
  });

  it('evict what is neither pinned nor being written, and say full when nothing is left', () => {
    const node = new ControlMemory({ numBlocks: 4 });
    const owner = node.owner(0);
    const pinned = reserve(node, [owner], [1, 2]);
    owner.publish(pinned, true);
    const loose = reserve(node, [owner], [3, 4]);
    owner.publish(loose, false);
    const next = reserve(node, [owner], [5, 6, 7]);
    expect(node.statuses(next)).toEqual([Reserved, Reserved, Full]);
    expect(node.slots(next).slice(0, 2).sort()).toEqual([...node.slots(loose)].sort());
    expect(faultsOf(node, owner, 0)).toEqual([]);
  });

  it('evict the tail of a chain before its head', () => {
    const node = new ControlMemory({ numBlocks: 4 });
    const owner = node.owner(0);
    owner.publish(reserve(node, [owner], [1, 2, 3, 4]), false);
    owner.publish(reserve(node, [owner], [8, 9]), false);
    const chain = node.extent([1, 2, 3, 4]);
    node.match(chain, 0);
    expect(node.statuses(chain)).toEqual([Pinned, Pinned, Miss, Miss]);
  });

  it('keep the position of a block in its chain, up to 255', () => {
    const node = new ControlMemory({ numBlocks: 4 });
    const owner = node.owner(0);
    const extent = node.extent([1, 2, 3]);
    node.match(extent, 0);
    owner.reserve(extent, 253);
    const positions = node
      .slots(extent)
      .map((slot) => node.table.bytes[recordOffset(node.layout, slot) + RECORD_CHAIN_POSITION]);
    expect(positions).toEqual([253, 254, 255]);
  });

  it('spare a block that was looked up since the hand came by last', () => {
    const node = new ControlMemory({ numBlocks: 4 });
    const owner = node.owner(0);
    owner.publish(reserve(node, [owner], [1]), false);
    owner.publish(reserve(node, [owner], [2]), false);
    owner.publish(reserve(node, [owner], [3]), false);
    owner.publish(reserve(node, [owner], [4]), false);
    const lookup = node.extent([1, 3]);
    node.match(lookup, 0);
    node.release(lookup);
    owner.publish(reserve(node, [owner], [5, 6]), false);
    const again = node.extent([1, 2, 3, 4]);
    node.match(again, 0);
    expect(node.statuses(again)).toEqual([Pinned, Miss, Pinned, Miss]);
  });

  it('keep a quarantined slot out of index and free list until it is given back, with a new generation', () => {
    const node = new ControlMemory({ numBlocks: 1 });
    const owner = node.owner(0);
    const extent = reserve(node, [owner], [1]);
    owner.abandon(extent, true);
    expect(node.statuses(extent)).toEqual([Quarantined]);
    expect(node.statuses(reserve(node, [owner], [1]))).toEqual([Full]);
    owner.unquarantine(extent);
    expect(generationOf(node.table.state(0))).toBe(1);
    expect(node.statuses(reserve(node, [owner], [1]))).toEqual([Reserved]);
    expect(faultsOf(node, owner, 0)).toEqual([]);
  });

  it('do nothing a second time when a step is run again after the status was lost', () => {
    const node = new ControlMemory({ numBlocks: 2 });
    const owner = node.owner(0);
    const extent = reserve(node, [owner], [1]);
    owner.publish(extent, true);
    node.memory.bytes[node.memory.statusesAt(extent)] = Reserved;
    owner.publish(extent, true);
    expect(node.statuses(extent)).toEqual([Pinned]);
    expect(pinsOf(node.table.state(node.slots(extent)[0]))).toBe(1);
    expect(faultsOf(node, owner, 0)).toEqual([]);
  });

  it('make room in a full bucket pair by evicting one of its sixteen blocks', () => {
    const node = new ControlMemory({ numBlocks: 64, bucketPairs: 1 });
    const owner = node.owner(0);
    for (let id = 0; id < 16; id += 1) owner.publish(reserve(node, [owner], [id]), false);
    const extent = reserve(node, [owner], [100]);
    expect(node.statuses(extent)).toEqual([Reserved]);
    expect(new WorkerCounters(node.control, node.layout, 0).get(Counter.BucketEvictions)).toBe(1);
    expect(faultsOf(node, owner, 0)).toEqual([]);
  });

  it('look at a bounded number of slots even when everything is pinned', () => {
    const node = new ControlMemory({ numBlocks: 16 });
    let asked = 0;
    const nothing = (): void => undefined;
    const owner = node.owner(0, {
      propose(budget) {
        asked += 1;
        budget.left -= 10_000;
        return 0;
      },
      admit: nothing,
      left: nothing,
      clear: nothing,
      adopt: nothing,
      forget: nothing,
    });
    owner.publish(
      reserve(
        node,
        [owner],
        Array.from({ length: 16 }, (_, i) => i),
      ),
      true,
    );
    expect(node.statuses(reserve(node, [owner], [50, 51]))).toEqual([Full, Full]);
    expect(asked).toBeLessThan(20);
  });
});

type Step =
  | { kind: 'reserve'; ids: number[] }
  | { kind: 'publish'; which: number; keepPins: boolean }
  | { kind: 'abandon'; which: number; quarantine: boolean }
  | { kind: 'unquarantine'; which: number }
  | { kind: 'match'; ids: number[] }
  | { kind: 'release'; which: number }
  | { kind: 'evict'; ids: number[] }
  | { kind: 'crash'; shard: number; torn: number };

const ids = fc.array(fc.nat(60), { minLength: 1, maxLength: 12 });
const which = fc.nat();
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('reserve' as const), ids }) },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('publish' as const), which, keepPins: fc.boolean() }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant('abandon' as const), which, quarantine: fc.boolean() }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('unquarantine' as const), which }) },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('match' as const), ids }) },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('release' as const), which }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('evict' as const), ids }) },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('crash' as const), shard: fc.nat(1), torn: fc.nat(40) }),
  },
);

/** What main knows: extents that hold something, and how often each slot is pinned by them. */
class Model {
  readonly extents: number[] = [];

  constructor(private readonly node: ControlMemory) {}

  withStatus(status: number, which: number): number | undefined {
    const having = this.extents.filter((extent) => this.node.statuses(extent).includes(status));
    return having.length === 0 ? undefined : having[which % having.length];
  }

  pins(): Map<number, number> {
    const pins = new Map<number, number>();
    for (const extent of this.extents) {
      const slots = this.node.slots(extent);
      this.node.statuses(extent).forEach((status, i) => {
        if (status === Pinned) pins.set(slots[i], (pins.get(slots[i]) ?? 0) + 1);
      });
    }
    return pins;
  }

  /** Marks what live extents own, as the supervisor does after a worker's exit. */
  markClaimed(shard: number): void {
    for (const extent of this.extents) {
      const slots = this.node.slots(extent);
      this.node.statuses(extent).forEach((status, i) => {
        if (status !== Reserved && status !== Quarantined) return;
        const slot = slots[i];
        if (Math.floor(slot / this.node.layout.slotsPerShard) !== shard) return;
        const state = this.node.table.state(slot);
        this.node.table.words[this.node.table.stateWord(slot)] = packState(
          phaseOf(state),
          generationOf(state),
          MAX_VISITED,
          0,
        );
      });
    }
  }
}

describe('the slots of two shards', () => {
  it('keep index, records, free list, pins and live reservations in agreement through any history and crashes', () => {
    fc.assert(
      fc.property(
        fc.constantFrom(1, 2, 3, 40),
        fc.array(step, { minLength: 5, maxLength: 60 }),
        (bucketPairs, steps) => {
          const node = new ControlMemory({ numBlocks: 40, shardCount: 2, bucketPairs, tagCount: 4 });
          const owners = [node.owner(0), node.owner(1)];
          const model = new Model(node);
          for (const s of steps) {
            const before = model.extents.map((extent) => node.statuses(extent));
            switch (s.kind) {
              case 'reserve': {
                const extent = reserve(node, owners, s.ids);
                model.extents.push(extent);
                const allowed: number[] = [Pinned, Pending, Reserved, Full];
                expect(node.statuses(extent).every((status) => allowed.includes(status))).toBe(true);
                break;
              }
              case 'publish': {
                const extent = model.withStatus(Reserved, s.which);
                if (extent === undefined) break;
                for (const owner of owners) owner.publish(extent, s.keepPins);
                expect(node.statuses(extent)).not.toContain(Reserved);
                break;
              }
              case 'abandon': {
                const extent = model.withStatus(Reserved, s.which);
                if (extent === undefined) break;
                for (const owner of owners) owner.abandon(extent, s.quarantine);
                break;
              }
              case 'unquarantine': {
                const extent = model.withStatus(Quarantined, s.which);
                if (extent === undefined) break;
                for (const owner of owners) owner.unquarantine(extent);
                break;
              }
              case 'match': {
                const extent = node.extent(s.ids);
                for (const shard of [0, 1]) node.match(extent, shard);
                model.extents.push(extent);
                break;
              }
              case 'release': {
                const extent = model.withStatus(Pinned, s.which);
                if (extent !== undefined) node.release(extent);
                break;
              }
              case 'evict': {
                const extent = node.extent(s.ids);
                for (const owner of owners) owner.evictKeys(extent);
                for (const [i, status] of node.statuses(extent).entries()) {
                  expect([Found, Miss]).toContain(status);
                  if (status !== Found) continue;
                  const probe = node.table.probe(
                    node.place(s.ids[i]),
                    node.memory.bytes,
                    node.memory.keysAt(extent) + i * node.layout.keyBytes,
                    false,
                  );
                  expect(probe.kind).toBe('miss');
                }
                break;
              }
              case 'crash': {
                model.markClaimed(s.shard);
                // The dead owner may have stopped in the middle of an update of its index.
                const words = node.layout.bucketsPerShard * (BUCKET_BYTES / 4);
                const index = node.layout.indexOffset / 4 + s.shard * words;
                node.table.words[index + (s.torn % words)] = 0;
                owners[s.shard] = node.owner(s.shard);
                const space = node.extent([], REBUILD_BATCH_KEYS);
                owners[s.shard].rebuild(space, RebuildMode.Replaced);
                expect(model.extents.map((extent) => node.statuses(extent))).toEqual(before);
                break;
              }
            }
            const pins = model.pins();
            const states = Array.from({ length: node.layout.numBlocks }, (_, slot) => node.table.state(slot));
            expect(states.map(pinsOf)).toEqual(states.map((_, slot) => pins.get(slot) ?? 0));
            owners.forEach((owner, shard) => {
              expect(faultsOf(node, owner, shard)).toEqual([]);
            });
          }
          for (const extent of model.extents) {
            node.release(extent);
            for (const owner of owners) {
              owner.abandon(extent, false);
              owner.unquarantine(extent);
            }
          }
          for (let slot = 0; slot < node.layout.numBlocks; slot += 1) {
            expect([Phase.Free, Phase.Ready]).toContain(phaseOf(node.table.state(slot)));
          }
        },
      ),
      { numRuns: 100 },
    );
  });

  it('take over a pool whose processes are gone: READY stays without pins, everything else is free', () => {
    const node = new ControlMemory({ numBlocks: 16 });
    const owner = node.owner(0);
    owner.publish(reserve(node, [owner], [1, 2]), true);
    reserve(node, [owner], [3]);
    owner.abandon(reserve(node, [owner], [4]), true);
    const next = node.owner(0);
    next.rebuild(node.extent([], REBUILD_BATCH_KEYS), RebuildMode.Adopted);
    expect(faultsOf(node, next, 0)).toEqual([]);
    const lookup = node.extent([1, 2, 3, 4]);
    node.match(lookup, 0);
    expect(node.statuses(lookup)).toEqual([Pinned, Pinned, Miss, Miss]);
    expect(
      node
        .slots(lookup)
        .slice(0, 2)
        .map((slot) => pinsOf(node.table.state(slot))),
    ).toEqual([1, 1]);
  });
});
