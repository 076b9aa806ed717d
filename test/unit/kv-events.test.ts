// Announcements: parents first, one per residency, and numbering that a replay from 0 can always be answered from.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { BlockCatalog, type DescribedBlock } from '../../src/main/events/catalog.js';
import { KvEvents } from '../../src/main/events/kv-events.js';
import { Numbering, type NumberedBatch } from '../../src/main/events/numbering.js';
import type { KvEvent } from '../../src/main/events/payload.js';
import type { ResidencyEvents } from '../../src/main/events/residency.js';
import { RouterIndex, nameOf } from '../fixtures/router-index.js';

const OPTIONS = { announcesUnknown: false, tokensPerBlock: 4, maxAbsent: 1000 };

/** Block `i` of chain `chain`. */
function hashOf(chain: number, i: number): Buffer {
  return Buffer.from([1, 2, 3, 4, 5, 6, chain, i]);
}

function blockOf(chain: number, i: number): DescribedBlock {
  return {
    tokenIds: Uint32Array.of(chain, i, 0, 0),
    parent: i === 0 ? undefined : hashOf(chain, i - 1),
    loraName: undefined,
    extraKeys: undefined,
  };
}

function stored(events: readonly KvEvent[]): string[][] {
  return events.flatMap((event) => (event.kind === 'stored' ? [event.hashes.map(nameOf)] : []));
}

describe('the catalogue of blocks', () => {
  it('announces a chain in one event, in prefix order, whatever the order in which its blocks came', () => {
    const catalog = new BlockCatalog(OPTIONS);
    for (const i of [0, 1, 2, 3]) catalog.describe(hashOf(0, i), blockOf(0, i));
    for (const i of [3, 1, 2, 0]) catalog.arrived(hashOf(0, i));
    expect(stored(catalog.takeEvents(100))).toEqual([[0, 1, 2, 3].map((i) => hashOf(0, i).toString('hex'))]);
    expect(catalog.hasNews).toBe(false);
  });

  it('stores the absent ancestors of a block before it and removes them behind it', () => {
    const catalog = new BlockCatalog(OPTIONS);
    const router = new RouterIndex();
    for (const i of [0, 1, 2]) catalog.describe(hashOf(0, i), blockOf(0, i));
    catalog.arrived(hashOf(0, 2));
    const events = catalog.takeEvents(100);
    expect(events.map(({ kind }) => kind)).toEqual(['stored', 'removed']);
    router.take(events);
    expect(router.hashes()).toEqual([nameOf(hashOf(0, 2))]);
  });

  it('keeps a block back whose tokens or whose ancestors nobody told, until somebody does', () => {
    const catalog = new BlockCatalog(OPTIONS);
    catalog.arrived(hashOf(0, 1));
    expect(catalog.takeEvents(100)).toEqual([]);
    catalog.describe(hashOf(0, 1), blockOf(0, 1));
    expect(catalog.takeEvents(100)).toEqual([]);
    expect(catalog.counts()).toMatchObject({ resident: 1, announced: 0, waiting: 1 });
    catalog.describe(hashOf(0, 0), blockOf(0, 0));
    expect(stored(catalog.takeEvents(100))).toEqual([[hashOf(0, 0), hashOf(0, 1)].map(nameOf)]);
    expect(catalog.counts()).toMatchObject({ resident: 1, announced: 1, waiting: 0 });
  });

  it('announces a block of unknown tokens only when told to, and anew once its tokens are known', () => {
    const catalog = new BlockCatalog({ ...OPTIONS, announcesUnknown: true });
    catalog.arrived(hashOf(0, 0));
    expect(catalog.takeEvents(100)).toMatchObject([{ kind: 'stored', tokenIds: [], tokensPerBlock: 4 }]);
    catalog.describe(hashOf(0, 0), blockOf(0, 0));
    expect(catalog.takeEvents(100)).toMatchObject([
      { kind: 'removed' },
      { kind: 'stored', tokenIds: [blockOf(0, 0).tokenIds] },
    ]);
  });

  it('does not announce blocks whose descriptions lead back to themselves, and goes on with the others', () => {
    const catalog = new BlockCatalog(OPTIONS);
    const block = { ...blockOf(0, 0), parent: hashOf(0, 1) };
    catalog.describe(hashOf(0, 0), block);
    catalog.describe(hashOf(0, 1), { ...block, parent: hashOf(0, 0) });
    catalog.describe(hashOf(0, 2), { ...block, parent: hashOf(0, 2) });
    for (let i = 0; i < 3; i += 1) catalog.arrived(hashOf(0, i));
    catalog.describe(hashOf(1, 0), blockOf(1, 0));
    catalog.arrived(hashOf(1, 0));
    expect(stored(catalog.takeEvents(100))).toEqual([[nameOf(hashOf(1, 0))]]);
    expect(catalog.counts()).toMatchObject({ resident: 4, announced: 1, waiting: 3 });
    for (let i = 0; i < 3; i += 1) catalog.left(hashOf(0, i));
    expect(catalog.counts()).toMatchObject({ resident: 1, waiting: 0 });
  });

  it('cuts a run of blocks with many tokens into events of at most 16,384', () => {
    const catalog = new BlockCatalog(OPTIONS);
    for (let i = 0; i < 10; i += 1) {
      catalog.describe(hashOf(0, i), { ...blockOf(0, i), tokenIds: new Uint32Array(4096) });
      catalog.arrived(hashOf(0, i));
    }
    const lengths = stored(catalog.takeEvents(100)).map((hashes) => hashes.length);
    expect(lengths).toEqual([4, 4, 2]);
  });

  it('forgets the oldest descriptions of absent blocks beyond its bound', () => {
    const catalog = new BlockCatalog({ ...OPTIONS, maxAbsent: 3 });
    for (let chain = 0; chain < 10; chain += 1) catalog.describe(hashOf(chain, 0), blockOf(chain, 0));
    expect(catalog.counts().absent).toBe(3);
    catalog.arrived(hashOf(0, 0));
    catalog.arrived(hashOf(9, 0));
    expect(stored(catalog.takeEvents(100))).toEqual([[nameOf(hashOf(9, 0))]]);
  });
});

/** A node whose residency the test decides, and whose deferred turns it runs. */
class Scripted {
  readonly batches: NumberedBatch[] = [];
  readonly resident = new Map<number, Buffer>();
  readonly events: KvEvents;
  #arrived = new Map<number, Buffer>();
  #left = new Set<number>();
  #turns: (() => void)[] = [];
  #nextSlot = 0;

  constructor(limits: { readonly maxBatches: number; readonly maxBytes?: number }) {
    this.events = new KvEvents(
      { form: 'array', rank: 0, maxBytes: 1e9, ...OPTIONS, ...limits },
      {
        feed: {
          hasChanged: () => this.#arrived.size + this.#left.size > 0,
          take: (_, to: ResidencyEvents) => {
            for (const slot of this.#left) to.onLeft(slot);
            for (const [slot, key] of this.#arrived) to.onArrived(slot, key);
            this.#left = new Set();
            this.#arrived = new Map();
            return true;
          },
        },
        publish: (batch) => this.batches.push(batch),
        timeS: () => 0,
        defer: (callback) => {
          this.#turns.push(callback);
        },
      },
    );
  }

  arrive(hash: Buffer): void {
    const key = Buffer.concat([hash, Buffer.alloc(4)]);
    this.resident.set(this.#nextSlot, hash);
    this.#arrived.set(this.#nextSlot++, key);
    this.events.onProgress();
  }

  leave(slot: number): void {
    this.resident.delete(slot);
    // Came and went between two looks: nobody saw it.
    if (!this.#arrived.delete(slot)) this.#left.add(slot);
    this.events.onProgress();
  }

  describe(chain: number, i: number): void {
    this.events.describe(Buffer.concat([hashOf(chain, i), Buffer.alloc(4)]), blockOf(chain, i));
  }

  run(): void {
    while (this.#turns.length > 0) for (const turn of this.#turns.splice(0)) turn();
  }
}

describe('the numbering of batches', () => {
  it('begins with AllBlocksCleared and goes up by one', () => {
    const node = new Scripted({ maxBatches: 1000 });
    node.describe(0, 0);
    node.arrive(hashOf(0, 0));
    node.run();
    expect(node.batches.map(({ sequence }) => sequence)).toEqual([0, 1]);
    expect(node.batches[0].payload.includes('AllBlocksCleared')).toBe(true);
    expect(node.events.replay(0)).toEqual(node.batches);
    expect(node.events.replay(1)).toEqual([node.batches[1]]);
    expect(node.events.replay(7)).toEqual([]);
  });

  it('begins again at its bound with what is resident, in one go with the batch that reached it', () => {
    const node = new Scripted({ maxBatches: 16 });
    for (let i = 0; i < 40; i += 1) {
      node.describe(i, 0);
      node.arrive(hashOf(i, 0));
      node.run();
      if (i % 2 === 0) node.leave(i);
      node.run();
    }
    const numbers = node.batches.map(({ sequence }) => sequence);
    const steps = numbers.flatMap((sequence, at) => (sequence === 0 && at > 0 ? [numbers[at - 1]] : []));
    expect(steps.length).toBeGreaterThan(1);
    expect(Math.min(...steps)).toBeGreaterThanOrEqual(15);
    expect(node.events.counts.restarts).toBe(steps.length);
    expect(node.events.replay(0)[0].payload.includes('AllBlocksCleared')).toBe(true);
    expect(node.events.buffered.batches).toBe(node.events.replay(0).length);
  });

  it('does not begin again at once when what is resident takes more than the bound', () => {
    const numbering = new Numbering({ batches: 4, bytes: 1e9 });
    for (let i = 0; i < 10; i += 1) numbering.append(Buffer.alloc(1));
    expect(numbering.isFull).toBe(false);
    numbering.onRestated();
    for (let i = 10; i < 20; i += 1) {
      expect(numbering.isFull).toBe(false);
      numbering.append(Buffer.alloc(1));
    }
    expect(numbering.isFull).toBe(true);
  });

  it('answers who met a gap at the end of the former numbering from that, until the present one is as long', () => {
    const numbering = new Numbering({ batches: 100, bytes: 1e9 });
    for (let i = 0; i < 8; i += 1) numbering.append(Buffer.of(i));
    numbering.restart();
    for (let i = 0; i < 2; i += 1) numbering.append(Buffer.of(100 + i));
    const payloadsFrom = (sequence: number): number[] =>
      numbering.from(sequence).map(({ payload }) => payload[0]);
    expect(payloadsFrom(3)).toEqual([3, 4, 5, 6, 7]);
    expect(payloadsFrom(0)).toEqual([100, 101]);
    expect(payloadsFrom(1)).toEqual([101]);
    expect(payloadsFrom(8)).toEqual([]);
    for (let i = 2; i < 8; i += 1) numbering.append(Buffer.of(100 + i));
    expect(payloadsFrom(7)).toEqual([107]);
    expect(payloadsFrom(8)).toEqual([]);
  });

  it('ends with AllBlocksCleared and publishes nothing afterwards', () => {
    const node = new Scripted({ maxBatches: 1000 });
    node.describe(0, 0);
    node.arrive(hashOf(0, 0));
    node.events.close();
    node.run();
    node.events.restart();
    expect(node.batches.map(({ payload }) => payload.includes('AllBlocksCleared'))).toEqual([true, true]);
  });

  it('leaves blocks of other cache groups out: they share their hash with a block of the first', () => {
    const node = new Scripted({ maxBatches: 1000 });
    node.events.describe(Buffer.concat([hashOf(0, 0), Buffer.from([0, 0, 0, 1])]), blockOf(0, 0));
    node.run();
    expect(node.events.counts).toMatchObject({ otherGroups: 1, stored: 0 });
  });
});

describe('a router', () => {
  it('knows exactly the resident blocks of known tokens, after any history', () => {
    const at = fc.tuple(fc.nat({ max: 3 }), fc.nat({ max: 5 }));
    const step = fc.oneof(
      { weight: 3, arbitrary: at.map((describe) => ({ describe })) },
      { weight: 4, arbitrary: at.map((arrive) => ({ arrive })) },
      { weight: 2, arbitrary: fc.nat().map((leave) => ({ leave })) },
      { weight: 2, arbitrary: fc.nat({ max: 3 }).map((take) => ({ take })) },
      { weight: 1, arbitrary: fc.constant({ restart: true }) },
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 80 }), (steps) => {
        const catalog = new BlockCatalog(OPTIONS);
        const router = new RouterIndex();
        const here = new Map<string, readonly [number, number]>();
        const told = new Set<string>();
        for (const one of steps) {
          if ('describe' in one) {
            catalog.describe(hashOf(...one.describe), blockOf(...one.describe));
            told.add(one.describe.join());
          } else if ('arrive' in one) {
            if (here.has(one.arrive.join())) continue;
            catalog.arrived(hashOf(...one.arrive));
            here.set(one.arrive.join(), one.arrive);
          } else if ('leave' in one) {
            const found = [...here].at(one.leave % Math.max(1, here.size));
            if (found === undefined) continue;
            const [name, place] = found;
            here.delete(name);
            catalog.left(hashOf(...place));
          } else if ('take' in one) {
            router.take(catalog.takeEvents(one.take));
          } else {
            router.take([{ kind: 'cleared' }]);
            catalog.announceAll();
          }
        }
        while (catalog.hasNews) router.take(catalog.takeEvents(2));
        const known = [...here.values()].filter(([chain, last]) =>
          Array.from({ length: last + 1 }, (_, i) => `${chain},${i}`).every((name) => told.has(name)),
        );
        expect(router.hashes()).toEqual(known.map((place) => nameOf(hashOf(...place))).toSorted());
        for (const [chain, i] of known) {
          expect(router.tokensOf(nameOf(hashOf(chain, i)))).toBe(blockOf(chain, i).tokenIds.join());
        }
        expect(catalog.counts().announced).toBe(known.length);
      }),
      { numRuns: 500 },
    );
  });
});
