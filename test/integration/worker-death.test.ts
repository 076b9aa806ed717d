// A shard worker dies at the worst moments: what it had recorded stands, the rest ends as lost, nothing is leaked.

import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { Opcode, PositionStatus } from '../../src/shared/operations.js';
import { packageRoot } from '../../src/shared/nixl-dir.js';
import type { SlotSet } from '../../src/main/shards/shard-client.js';
import type { StartedShards } from '../../src/main/shards/start.js';
import { FaultKind, FaultWord } from '../fixtures/faulty-shard.js';
import {
  type Ended,
  ended,
  keysOf,
  ok,
  poolState,
  quiet,
  range,
  startTestShards,
  store,
} from '../helpers/running-shards.js';

const workerFile = join(packageRoot, 'dist', 'test', 'fixtures', 'faulty-shard.js');

let shards: StartedShards | undefined;
let fault: Int32Array<SharedArrayBuffer>;
let log: string[];

async function start(blocks: number): Promise<StartedShards> {
  fault = new Int32Array(new SharedArrayBuffer(FaultWord.Words * 4));
  log = [];
  shards = await startTestShards({
    blocks,
    log,
    workerFile,
    fault: fault.buffer,
    resourceLimits: { maxOldGenerationSizeMb: 32 },
  });
  return shards;
}

/** The next operation with this code on this shard meets the fault. */
function breakAt(shard: number, opcode: number, kind: number): void {
  fault[FaultWord.Shard] = shard;
  fault[FaultWord.Opcode] = opcode;
  Atomics.store(fault, FaultWord.Kind, kind);
}

afterEach(async () => {
  await shards?.close();
  shards = undefined;
});

const match = ({ client }: StartedShards, ids: readonly number[]): Promise<Ended<SlotSet | undefined>> =>
  ended((done) => {
    client.match(keysOf(ids), {}, done);
  });
const reserve = ({ client }: StartedShards, ids: readonly number[]): Promise<Ended<SlotSet | undefined>> =>
  ended((done) => {
    client.reserve(keysOf(ids), done);
  });

/** A reservation after the worker is back: waits for the replacement by itself. */
async function worksAgain(node: StartedShards, firstId: number): Promise<void> {
  await store(node, range(firstId, 40));
  const { result } = await match(node, range(firstId, 40));
  expect(result?.pinnedCount).toBe(40);
  if (result !== undefined) node.client.release(result);
  await quiet(node);
}

describe('the death of a shard worker', () => {
  it('asleep: pins, reservations and quarantines of others live on, and are ended at its replacement', async () => {
    const node = await start(256);
    await store(node, range(0, 50));
    const lease = (await match(node, range(0, 50))).result;
    const load = (await reserve(node, range(100, 50))).result;
    const lost = (await reserve(node, range(200, 50))).result;
    if (lease === undefined || load === undefined || lost === undefined) throw new Error('no sets');
    await ok<undefined>((done) => {
      node.client.abandon(lost, { quarantine: true }, done);
    });
    const before = poolState(node);
    await node.workers.kill(0);
    // The other shard goes on meanwhile: a match needs no owner.
    expect((await match(node, range(0, 50))).result?.pinnedCount).toBe(50);
    await worksAgain(node, 1000);
    expect(node.restartCount).toBe(1);
    const after = poolState(node);
    expect(after.gaugesAgree).toBe(true);
    expect(after.phases.writing).toBe(before.phases.writing);
    expect(after.phases.quarantined).toBe(before.phases.quarantined);
    expect(after.pins).toBe(100);
    await ok<undefined>((done) => {
      node.client.publish(load, { keepPins: true }, done);
    });
    expect(load.pinnedCount).toBe(50);
    await ok<undefined>((done) => {
      node.client.unquarantine(lost, done);
    });
    node.client.release(load);
    node.client.release(lease);
    await quiet(node);
    expect(poolState(node)).toMatchObject({
      pins: 50,
      gaugesAgree: true,
      phases: { quarantined: 0, writing: 0 },
    });
  });

  it.each([
    ['by leaving', FaultKind.Exit],
    ['by a throw out of its loop', FaultKind.Throw],
    ['by running out of memory', FaultKind.OutOfMemory],
  ])('%s before a reservation: it ends as lost, what the other owner did is undone', async (_how, kind) => {
    const node = await start(256);
    await store(node, range(0, 20));
    breakAt(1, Opcode.Reserve, kind);
    const { failure, result } = await reserve(node, range(0, 60));
    expect(failure).toEqual({ code: 'KVPEER_WORKER_LOST' });
    expect(result).toBeUndefined();
    await worksAgain(node, 1000);
    expect(poolState(node)).toMatchObject({
      pins: 0,
      clientPins: 0,
      gaugesAgree: true,
      phases: { writing: 0 },
    });
    expect(poolState(node).phases.ready).toBe(60);
    expect(node.restartCount).toBe(1);
    expect(node.client.extents.liveCount).toBe(node.shardCount);
  });

  it('before a publish: the replacement does what is left, and the load succeeds', async () => {
    const node = await start(256);
    const load = (await reserve(node, range(0, 60))).result;
    if (load === undefined) throw new Error('no set');
    breakAt(0, Opcode.Publish, FaultKind.Exit);
    await ok<undefined>((done) => {
      node.client.publish(load, { keepPins: true }, done);
    });
    expect(load.pinnedCount).toBe(60);
    expect(new Set(load.statuses)).toEqual(new Set([PositionStatus.Pinned]));
    const { result } = await match(node, range(0, 60));
    expect(result?.pinnedCount).toBe(60);
    if (result !== undefined) node.client.release(result);
    node.client.release(load);
    await quiet(node);
    expect(poolState(node)).toMatchObject({ pins: 0, gaugesAgree: true, phases: { ready: 60 } });
  });

  it('with matches, reservations, block work and releases open: each ends once, no slot or pin is lost', async () => {
    const node = await start(2048);
    await store(node, range(0, 500));
    for (let round = 0; round < 4; round += 1) {
      const victim = round % 2;
      const kind = round < 2 ? FaultKind.Exit : FaultKind.ExitAfter;
      const work: Promise<unknown>[] = [];
      const sets: SlotSet[] = [];
      const keep = ({ result }: Ended<SlotSet | undefined>): void => {
        if (result !== undefined) sets.push(result);
      };
      const lease = (await match(node, range(0, 100))).result;
      breakAt(victim, round % 2 === 0 ? Opcode.Reserve : Opcode.Match, kind);
      for (let i = 0; i < 30; i += 1) {
        work.push(match(node, range(i * 10, 60)).then(keep));
        work.push(reserve(node, range(3000 + round * 1000 + i * 7, 20)).then(keep));
      }
      if (lease !== undefined) node.client.release(lease);
      await Promise.all(work);
      for (const set of sets) {
        if (set.reservedCount > 0) {
          work.push(
            ended<undefined>((done) => {
              node.client.fill(set, done);
            }).then(() =>
              ended<undefined>((done) => {
                node.client.abandon(set, { quarantine: false }, done);
              }),
            ),
          );
        } else {
          node.client.release(set);
        }
      }
      await Promise.all(work);
      await worksAgain(node, 20_000 + round * 100);
      expect(poolState(node)).toMatchObject({
        pins: 0,
        clientPins: 0,
        gaugesAgree: true,
        phases: { writing: 0 },
      });
      expect(node.client.extents.liveCount).toBe(node.shardCount);
    }
    expect(node.restartCount).toBeGreaterThanOrEqual(3);
  });

  it('at any moment of a large reservation: what survives is whole, and nothing is claimed by nobody', async () => {
    const node = await start(40_000);
    for (let round = 0; round < 4; round += 1) {
      const pending = reserve(node, range(round * 30_000, 15_000));
      for (let turn = 0; turn < round * 3; turn += 1) await new Promise((resolve) => setImmediate(resolve));
      await node.workers.kill(round % 2);
      const { failure, result } = await pending;
      if (result !== undefined) {
        expect(failure).toBeUndefined();
        await ok<undefined>((done) => {
          node.client.abandon(result, { quarantine: false }, done);
        });
      } else {
        expect(failure).toEqual({ code: 'KVPEER_WORKER_LOST' });
      }
      await worksAgain(node, 500_000 + round * 100);
      expect(poolState(node)).toMatchObject({
        pins: 0,
        clientPins: 0,
        gaugesAgree: true,
        phases: { writing: 0 },
      });
    }
  });

  it('again and again is reported as fatal instead of being repeated for ever', async () => {
    const node = await start(64);
    for (let death = 0; death < 5; death += 1) {
      await node.workers.kill(0);
      if (death < 4) await worksAgain(node, death * 100);
    }
    while (node.troubles().length === 0 || !log.some((line) => line.includes('cannot go on'))) {
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(node.troubles().join()).toContain('died 5 times');
  });

  it('is not needed for a fault inside one operation: that one fails, the worker goes on', async () => {
    const node = await start(64);
    await store(node, range(0, 10));
    const { result } = await match(node, range(0, 10));
    if (result === undefined) throw new Error('no set');
    // Unpinned behind its back: the release of its pins must fail natively.
    const words = new Int32Array(node.memory.control);
    const { recordsOffset, recordBytes } = node.memory.layout;
    for (const slot of result.slots) Atomics.sub(words, (recordsOffset + slot * recordBytes) / 4, 1);
    const other = await ended<undefined>((done) => {
      node.client.fill(result, done);
    });
    expect(other.failure).toBeUndefined();
    expect(() => {
      node.client.release(result);
    }).toThrow(/pin/);
    expect((await match(node, range(0, 10))).result?.pinnedCount).toBe(10);
    expect(node.restartCount).toBe(0);
  });
});
