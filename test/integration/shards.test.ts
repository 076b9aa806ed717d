// Real workers behind the real client: blocks are found, pinned, shared between loads, evicted and given back.

import { afterEach, describe, expect, it } from 'vitest';
import { Counter } from '../../src/shared/counters.js';
import { PositionStatus } from '../../src/shared/operations.js';
import { adoptMemory, mapMemory } from '../../src/main/shards/memory.js';
import type { SlotSet } from '../../src/main/shards/shard-client.js';
import type { StartedShards } from '../../src/main/shards/start.js';
import {
  BLOCK_BYTES,
  KEY_BYTES,
  ended,
  keysOf,
  ok,
  okSet,
  poolState,
  quiet,
  range,
  startTestShards,
  store,
} from '../helpers/running-shards.js';

let shards: StartedShards | undefined;

async function start(options: Parameters<typeof startTestShards>[0]): Promise<StartedShards> {
  shards = await startTestShards(options);
  return shards;
}

afterEach(async () => {
  await shards?.close();
  shards = undefined;
});

const match = ({ client }: StartedShards, ids: readonly number[]): Promise<SlotSet> =>
  okSet((done) => {
    client.match(keysOf(ids), {}, done);
  });
const reserve = ({ client }: StartedShards, ids: readonly number[]): Promise<SlotSet> =>
  okSet((done) => {
    client.reserve(keysOf(ids), done);
  });

describe('shards with real workers', () => {
  it('find what was stored, with the right bytes, and leave no pin behind', async () => {
    const node = await start({ blocks: 512 });
    await store(node, range(0, 200));
    const found = await match(node, [...range(0, 200), 999]);
    expect(found.pinnedCount).toBe(200);
    expect(found.leadingCount).toBe(200);
    expect(found.statuses[200]).toBe(PositionStatus.Miss);
    const { mismatchCount } = await ok<{ readonly mismatchCount: number }>((done) => {
      node.client.verify(found, done);
    });
    expect(mismatchCount).toBe(0);
    expect(poolState(node).pins).toBe(200);
    node.client.release(found);
    await quiet(node);
    expect(poolState(node)).toMatchObject({
      pins: 0,
      clientPins: 0,
      gaugesAgree: true,
      phases: { ready: 200, writing: 0 },
    });
  });

  it('match a short list on the main thread while they have nothing in hand, a longer one if none came just before', async () => {
    const node = await start({ blocks: 512 });
    await store(node, range(0, 200));
    await quiet(node);
    const matchedByWorkers = (): number => node.counter(Counter.MatchedKeys);
    const before = matchedByWorkers();
    let hasReturned = false;
    const short = await okSet((done) => {
      node.client.match(keysOf([...range(0, 40), 999]), {}, (failure, set) => {
        expect(hasReturned, 'the answer came from inside the call').toBe(true);
        done(failure, set);
      });
      hasReturned = true;
    });
    expect([short.pinnedCount, short.leadingCount, short.statuses[40]]).toEqual([
      40,
      40,
      PositionStatus.Miss,
    ]);
    expect(matchedByWorkers() - before).toBe(0);
    const lastMs = performance.now();
    while (performance.now() - lastMs < 1) await new Promise(setImmediate);
    const medium = await match(node, range(0, 200));
    expect(matchedByWorkers() - before).toBe(0);
    const long = await match(node, range(0, 1_025));
    expect(matchedByWorkers() - before).toBe(1_025);
    // Behind one that a worker has in hand, even the shortest goes to a worker.
    const behind = match(node, range(0, 1_025));
    const last = match(node, [1]);
    const others = [await behind, await last];
    expect(matchedByWorkers() - before).toBe(2 * 1_025 + 1);
    for (const set of [short, medium, long, ...others]) node.client.release(set);
    await quiet(node);
    expect(poolState(node)).toMatchObject({ pins: 0, clientPins: 0 });
  });

  it('are not woken for pins that are given back while matches come one by one, nor busy with more of them', async () => {
    const node = await start({ blocks: 2_048 });
    await store(node, range(0, 1_100));
    await quiet(node);
    const afterAWhile = async (): Promise<void> => {
      const lastMs = performance.now();
      while (performance.now() - lastMs < 1) await new Promise(setImmediate);
    };
    const usual = await match(node, range(0, 1_024));
    node.client.release(usual);
    expect(poolState(node)).toMatchObject({ pins: 0, clientPins: 0 });
    await afterAWhile();
    const long = await match(node, range(0, 1_100));
    await afterAWhile();
    const before = node.counter(Counter.MatchedKeys);
    node.client.release(long);
    const next = await match(node, range(0, 200));
    expect(node.counter(Counter.MatchedKeys) - before).toBe(0);
    node.client.release(next);
    await quiet(node);
    expect(poolState(node)).toMatchObject({ pins: 0, clientPins: 0 });
  });

  it('tell a changed block from its key', async () => {
    const node = await start({ blocks: 64 });
    await store(node, [1, 2]);
    const found = await match(node, [1, 2]);
    new Uint8Array(node.pool, found.slots[1] * BLOCK_BYTES, BLOCK_BYTES)[1234] ^= 1;
    const { mismatchCount } = await ok<{ readonly mismatchCount: number }>((done) => {
      node.client.verify(found, done);
    });
    expect(mismatchCount).toBe(1);
    node.client.release(found);
  });

  it('copy a block of the caller to the position of its key', async () => {
    const node = await start({ blocks: 64 });
    const set = await reserve(node, [5, 6, 7]);
    const blocks = new Uint8Array(3 * BLOCK_BYTES).map((_, i) => 1 + Math.floor(i / BLOCK_BYTES));
    await ok<undefined>((done) => {
      node.client.copyIn(set, blocks, done);
    });
    for (const [i, slot] of set.slots.entries()) {
      expect(new Uint8Array(node.pool, slot * BLOCK_BYTES, BLOCK_BYTES).every((b) => b === i + 1)).toBe(true);
    }
    await ok<undefined>((done) => {
      node.client.abandon(set, { quarantine: false }, done);
    });
    expect(poolState(node)).toMatchObject({ pins: 0, phases: { free: 64 } });
  });

  it('give back slots whose bytes do not fit their checksums, with a publish or without', async () => {
    const node = await start({ blocks: 128 });
    const expected = new Uint8Array(20 * 8);
    for (const how of ['publish', 'abandon', 'quarantine'] as const) {
      const set = await reserve(node, range(0, 20));
      await ok<undefined>((done) => {
        node.client.fill(set, done);
      });
      await ok<undefined>((done) => {
        node.client.checksum(set, done);
      });
      expected.set(node.client.checksumsOf(set));
      for (const slot of set.slots.subarray(3, 6)) new Uint8Array(node.pool)[slot * BLOCK_BYTES + 77] ^= 1;
      const { damagedCount } = await ok<{ readonly damagedCount: number }>((done) => {
        node.client.verifyChecksums(set, expected, done);
      });
      expect([damagedCount, set.reservedCount]).toEqual([3, 17]);
      expect(() => {
        node.client.release(set);
      }).toThrow();
      await ok<undefined>((done) => {
        if (how === 'publish') node.client.publish(set, { keepPins: false }, done);
        else node.client.abandon(set, { quarantine: how === 'quarantine' }, done);
      });
      if (how === 'quarantine') {
        expect(poolState(node).phases.quarantined).toBe(20);
        await ok<undefined>((done) => {
          node.client.unquarantine(set, done);
        });
      }
      await quiet(node);
      const { phases, pins } = poolState(node);
      expect([phases.ready, phases.writing, phases.quarantined, pins]).toEqual([
        how === 'publish' ? 17 : 0,
        0,
        0,
        0,
      ]);
      await ok<{ readonly evictedCount: number }>((done) => {
        node.client.evict(keysOf(range(0, 20)), done);
      });
    }
  });

  it('let one of four loads of the same keys write them, and tell the others when they are there', async () => {
    const node = await start({ blocks: 256 });
    const ids = range(0, 100);
    const sets = await Promise.all([1, 2, 3, 4].map(() => reserve(node, ids)));
    const writers = sets.filter((set) => set.reservedCount > 0);
    const total = sets.reduce((sum, set) => sum + set.reservedCount, 0);
    expect(total).toBe(100);
    for (const set of sets) expect(set.reservedCount + set.pendingCount).toBe(100);
    const lookup = await match(node, ids);
    expect(lookup.pendingCount).toBe(100);
    expect(node.client.isStillWriting(lookup.slots[0], lookup.generations[0])).toBe(true);
    const settled: SlotSet[] = [];
    node.client.onSettled = (set) => settled.push(set);
    for (const set of writers) {
      await ok<undefined>((done) => {
        node.client.publish(set, { keepPins: true }, done);
      });
    }
    expect(settled).toEqual(writers);
    expect(node.client.isStillWriting(lookup.slots[0], lookup.generations[0])).toBe(false);
    const again = await match(node, ids);
    expect(again.pinnedCount).toBe(100);
    for (const set of [...sets, lookup, again]) node.client.release(set);
    await quiet(node);
    expect(poolState(node)).toMatchObject({ pins: 0, gaugesAgree: true, phases: { ready: 100 } });
  });

  it('keep a quarantined reservation out of use until it is ended', async () => {
    const node = await start({ blocks: 4 });
    const set = await reserve(node, [1, 2, 3, 4]);
    const taken = set.reservedCount;
    expect(taken).toBeGreaterThan(0);
    await ok<undefined>((done) => {
      node.client.abandon(set, { quarantine: true }, done);
    });
    expect(poolState(node).phases.quarantined).toBe(taken);
    expect(() => {
      node.client.release(set);
    }).toThrow(/quarantined/);
    const miss = await match(node, [1, 2, 3, 4]);
    expect(miss.pinnedCount + miss.pendingCount).toBe(0);
    node.client.release(miss);
    await ok<undefined>((done) => {
      node.client.unquarantine(set, done);
    });
    expect(poolState(node).phases).toEqual({ free: 4, writing: 0, ready: 0, quarantined: 0 });
  });

  it('evict unpinned blocks to make room, and pinned ones never', async () => {
    const node = await start({ blocks: 128 });
    await store(node, range(0, 64));
    const kept = await match(node, range(0, 10));
    for (let first = 1000; first < 2000; first += 50) await store(node, range(first, 50));
    expect(node.counter(Counter.Evictions)).toBeGreaterThan(500);
    const again = await match(node, range(0, 10));
    expect(again.pinnedCount).toBe(10);
    expect([...again.slots]).toEqual([...kept.slots]);
    node.client.release(kept);
    node.client.release(again);
    const { evictedCount } = await ok<{ readonly evictedCount: number }>((done) => {
      node.client.evict(keysOf([0, 1, 2, 5000]), done);
    });
    expect(evictedCount).toBe(3);
    await quiet(node);
    expect(poolState(node)).toMatchObject({ pins: 0, gaugesAgree: true });
  });

  it('pin at most as many blocks as allowed, in the order of the keys', async () => {
    const node = await start({ blocks: 64 });
    await store(node, range(0, 20));
    const set = await okSet((done) => {
      node.client.match(keysOf(range(0, 20)), { pinLimit: 7 }, done);
    });
    expect(set.pinnedCount).toBe(7);
    expect(set.leadingCount).toBe(7);
    const probe = await okSet((done) => {
      node.client.match(keysOf(range(0, 20)), { pin: false }, done);
    });
    expect([probe.pinnedCount, probe.leadingCount]).toEqual([0, 20]);
    node.client.release(probe);
    node.client.release(set);
  });

  it('read keys of a foreign length as misses', async () => {
    const node = await start({ blocks: 64 });
    await store(node, [1, 2, 3]);
    const set = await okSet((done) => {
      node.client.match({ ...keysOf([1, 2, 3]), foreign: Uint8Array.of(0b010) }, {}, done);
    });
    expect([...set.statuses]).toEqual([PositionStatus.Pinned, PositionStatus.Miss, PositionStatus.Pinned]);
    expect(set.slots[1]).toBe(-1);
    node.client.release(set);
  });

  it('answer a list that is cut over several workers as if one had done it', async () => {
    const node = await start({ blocks: 32_768 });
    const ids = range(0, 20_000);
    await store(node, ids);
    const set = await match(node, ids);
    expect([set.pinnedCount, set.leadingCount]).toEqual([20_000, 20_000]);
    const { mismatchCount } = await ok<{ readonly mismatchCount: number }>((done) => {
      node.client.verify(set, done);
    });
    expect(mismatchCount).toBe(0);
    node.client.release(set);
    await quiet(node);
    expect(poolState(node)).toMatchObject({ pins: 0, clientPins: 0 });
  });

  it('say busy when there is no room within the time, answer everything once, and go on afterwards', async () => {
    const node = await start({ blocks: 512, ringCapacity: 16, arenaBytes: 1024 * 1024, queueMs: 20 });
    await store(node, range(0, 60));
    const held: SlotSet[] = [];
    let busy = 0;
    let calls = 0;
    await Promise.all(
      range(0, 3000).map(async () => {
        const { failure, result } = await ended<SlotSet | undefined>((done) => {
          node.client.match(keysOf(range(0, 60)), {}, done);
        });
        calls += 1;
        if (failure === undefined && result !== undefined) held.push(result);
        else if (failure?.code === 'KVPEER_BUSY') busy += 1;
      }),
    );
    expect(calls).toBe(3000);
    expect(busy).toBeGreaterThan(0);
    expect(held.length + busy).toBe(3000);
    for (const set of held) node.client.release(set);
    await quiet(node);
    const after = await match(node, range(0, 60));
    expect(after.pinnedCount).toBe(60);
    node.client.release(after);
    await quiet(node);
    expect(poolState(node)).toMatchObject({ pins: 0, clientPins: 0 });
    expect(node.client.extents.liveCount).toBe(node.shardCount);
  });

  it('end what is open with KVPEER_CLOSED, once, and close without waiting for it', async () => {
    const node = await start({ blocks: 4096 });
    const ends = range(0, 200).map((i) =>
      ended<SlotSet | undefined>((done) => {
        node.client.reserve(keysOf(range(i * 100, 100)), done);
      }),
    );
    await node.close();
    const all = await Promise.all(ends);
    const codes = new Set(all.map(({ failure }) => failure?.code ?? 'ok'));
    for (const code of codes) expect(['ok', 'KVPEER_CLOSED']).toContain(code);
    const late = await ended<SlotSet | undefined>((done) => {
      node.client.match(keysOf([1]), {}, done);
    });
    expect(late.failure?.code).toBe('KVPEER_CLOSED');
  });

  it('take over the blocks of a process that has ended', async () => {
    const memory = await mapMemory({
      poolBytes: 64 * BLOCK_BYTES,
      blockBytes: BLOCK_BYTES,
      keyBytes: KEY_BYTES,
      shardCount: 2,
      sharedDirectory: '/dev/shm',
    });
    if (memory.files === undefined) throw new Error('no files');
    try {
      const before = await start({ blocks: 64, memory });
      await store(before, range(0, 20));
      const pinned = await match(before, range(0, 5));
      expect(pinned.pinnedCount).toBe(5);
      await reserve(before, [100, 101]);
      await before.close();
      const after = await start({ blocks: 64, memory: await adoptMemory(memory.files) });
      expect(poolState(after)).toMatchObject({
        pins: 0,
        gaugesAgree: true,
        phases: { ready: 20, writing: 0 },
      });
      const found = await match(after, [...range(0, 20), 100]);
      expect(found.pinnedCount).toBe(20);
      const { mismatchCount } = await ok<{ readonly mismatchCount: number }>((done) => {
        after.client.verify(found, done);
      });
      expect(mismatchCount).toBe(0);
      after.client.release(found);
    } finally {
      memory.removeFiles();
    }
  });

  it('name size, place and remedy when the memory cannot be had', async () => {
    const wanted = { poolBytes: 2 ** 44, blockBytes: 2 ** 21, keyBytes: KEY_BYTES, shardCount: 2 };
    await expect(mapMemory(wanted)).rejects.toMatchObject({ code: 'KVPEER_MEMORY' });
    await expect(mapMemory({ ...wanted, poolBytes: 4096 })).rejects.toMatchObject({
      code: 'KVPEER_INVALID_OPTION',
    });
  });
});
