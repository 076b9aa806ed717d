// Serves through the whole lower half: two nodes with pools, workers and NIXL agents of their own, in one process.

import { afterEach, describe, expect, it } from 'vitest';
import { positionsOf } from '../../src/shared/bitmap.js';
import { Outcome, PositionStatus } from '../../src/shared/operations.js';
import type { DataPeer, ServeResult, SlotSet } from '../../src/main/shards/shard-client.js';
import type { StartedShards } from '../../src/main/shards/start.js';
import {
  type Ended,
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

process.env.UCX_TLS = 'tcp,self';

const nodes: StartedShards[] = [];

async function pair(
  blocks: number,
): Promise<{ producer: StartedShards; consumer: StartedShards; peer: DataPeer }> {
  const producer = await startTestShards({ blocks, dataPlane: 'nixl' });
  nodes.push(producer);
  const consumer = await startTestShards({ blocks, dataPlane: 'nixl' });
  nodes.push(consumer);
  const { result } = await addPeer(producer, consumer);
  if (result === undefined) throw new Error('the peer was refused');
  return { producer, consumer, peer: result };
}

function addPeer(from: StartedShards, to: StartedShards): Promise<Ended<DataPeer | undefined>> {
  return ended((done) => {
    from.client.addPeer(
      {
        agentMetadata: to.dataPlane.metadata(),
        baseAddr: to.dataPlane.baseAddr,
        numBlocks: to.client.numBlocks,
        hasScratch: true,
      },
      done,
    );
  });
}

/** Destination slots at the consumer, poisoned. */
async function destinations(consumer: StartedShards, ids: readonly number[]): Promise<SlotSet> {
  const set = await okSet((done) => {
    consumer.client.reserve(keysOf(ids), done);
  });
  expect(set.reservedCount).toBe(ids.length);
  await ok<undefined>((done) => {
    consumer.client.poison(set, done);
  });
  return set;
}

async function verified(node: StartedShards, set: SlotSet): Promise<number> {
  await ok<undefined>((done) => {
    node.client.publish(set, { keepPins: true }, done);
  });
  const { mismatchCount } = await ok<{ readonly mismatchCount: number }>((done) => {
    node.client.verify(set, done);
  });
  return mismatchCount;
}

afterEach(async () => {
  for (const node of nodes.splice(0)) await node.close();
});

describe('a serve', () => {
  it('writes the pinned blocks of a lease to the places that the fetch names, and every byte is right', async () => {
    const { producer, consumer, peer } = await pair(1024);
    const ids = range(0, 500);
    await store(producer, ids);
    const lease = await okSet((done) => {
      producer.client.match(keysOf(ids), {}, done);
    });
    const target = await destinations(consumer, ids);
    const { blockCount, bytes } = await ok<{ readonly blockCount: number; readonly bytes: number }>(
      (done) => {
        producer.client.serve(
          { peer, indexes: target.slots.slice(), byLease: { keys: keysOf(ids), leases: [lease] } },
          done,
        );
      },
    );
    expect([blockCount, bytes]).toEqual([500, 500 * 4096]);
    expect(await verified(consumer, target)).toBe(0);
    producer.client.release(lease);
    consumer.client.release(target);
    await quiet(producer);
    await quiet(consumer);
    expect(poolState(producer).pins + poolState(consumer).pins).toBe(0);
    expect(producer.stats().nixlPeers).toBe(1);
  });

  it('writes what a match of the fetch itself has pinned', async () => {
    const { producer, consumer, peer } = await pair(256);
    await store(producer, range(0, 40));
    const target = await destinations(consumer, range(0, 40));
    const indexes = target.slots.slice();
    const resolved = await okSet((done) => {
      producer.client.match(
        keysOf(range(0, 40)),
        { destinations: { indexes, numBlocks: peer.numBlocks } },
        done,
      );
    });
    expect(resolved.pinnedCount).toBe(40);
    await ok((done) => {
      producer.client.serve({ peer, indexes, resolved }, done);
    });
    expect(await verified(consumer, target)).toBe(0);
    producer.client.release(resolved);
    consumer.client.release(target);
  });

  it('writes the leased keys of a partial fetch, says which, and leaves the other places alone', async () => {
    const { producer, consumer, peer } = await pair(256);
    await store(producer, range(0, 40));
    const lease = await okSet((done) => {
      producer.client.match(keysOf(range(10, 20)), {}, done);
    });
    const asked = range(5, 20);
    const target = await destinations(consumer, asked);
    const result = await ok<ServeResult>((done) => {
      producer.client.serve(
        {
          peer,
          indexes: target.slots.slice(),
          byLease: { keys: keysOf(asked), leases: [lease], isPartial: true },
        },
        done,
      );
    });
    expect(result).toMatchObject({ blockCount: 15, bytes: 15 * 4096 });
    const { written } = result;
    if (written === undefined) throw new Error('the serve does not say what it wrote');
    expect([...positionsOf(written, 20, true)]).toEqual(range(5, 15));
    consumer.client.markUnwritten(target, positionsOf(written, 20, false));
    expect(await verified(consumer, target)).toBe(0);
    expect(target.pinnedCount).toBe(15);
    producer.client.release(lease);
    consumer.client.release(target);
    await quiet(consumer);
    expect(poolState(consumer)).toMatchObject({
      phases: { ready: 15, writing: 0 },
      pins: 0,
      gaugesAgree: true,
    });
  });

  it('gives up every slot of a partial fetch that wrote nothing', async () => {
    const { producer, consumer, peer } = await pair(64);
    await store(producer, range(0, 4));
    const lease = await okSet((done) => {
      producer.client.match(keysOf([0]), {}, done);
    });
    const target = await destinations(consumer, [2, 3]);
    const { blockCount, written } = await ok<ServeResult>((done) => {
      const byLease = { keys: keysOf([2, 3]), leases: [lease], isPartial: true };
      producer.client.serve({ peer, indexes: target.slots.slice(), byLease }, done);
    });
    expect([blockCount, [...(written ?? [])]]).toEqual([0, [0]]);
    consumer.client.markUnwritten(target, Int32Array.of(0, 1));
    await ok<undefined>((done) => {
      consumer.client.abandon(target, { quarantine: false }, done);
    });
    await quiet(consumer);
    expect(poolState(consumer)).toMatchObject({ phases: { ready: 0, writing: 0 }, gaugesAgree: true });
    producer.client.release(lease);
  });

  it('refuses keys outside of the lease, places outside of the peer, and places or keys given twice', async () => {
    const { producer, peer } = await pair(64);
    await store(producer, range(0, 4));
    const lease = await okSet((done) => {
      producer.client.match(keysOf([0, 1]), {}, done);
    });
    const serve = async (ids: readonly number[], indexes: readonly number[]): Promise<unknown> => {
      const { failure } = await ended((done) => {
        producer.client.serve(
          { peer, indexes: Int32Array.from(indexes), byLease: { keys: keysOf(ids), leases: [lease] } },
          done,
        );
      });
      return failure?.code === 'outcome' ? failure.outcome : failure?.code;
    };
    expect(await serve([0, 2], [0, 1])).toBe(Outcome.NotInLease);
    expect(await serve([0, 1], [0, 64])).toBe(Outcome.BadDestination);
    expect(await serve([0, 1], [5, 5])).toBe(Outcome.BadDestination);
    expect(await serve([0, 0], [5, 6])).toBe(Outcome.BadDestination);
    expect(await serve([0, 1], [5, 6])).toBeUndefined();
    producer.client.release(lease);
  });

  it('is not possible to a peer that was removed, or whose metadata was refused', async () => {
    const { producer, consumer, peer } = await pair(64);
    const garbage = await ended<DataPeer | undefined>((done) => {
      producer.client.addPeer(
        { agentMetadata: new Uint8Array(64), baseAddr: 0, numBlocks: 1, hasScratch: false },
        done,
      );
    });
    expect(garbage.failure).toEqual({ code: 'outcome', outcome: Outcome.BadMetadata });
    await ok<undefined>((done) => {
      producer.client.removePeer(peer, done);
    });
    await store(producer, [1]);
    const lease = await okSet((done) => {
      producer.client.match(keysOf([1]), {}, done);
    });
    const request = { indexes: Int32Array.of(0), byLease: { keys: keysOf([1]), leases: [lease] } };
    const refused = await ended((done) => {
      producer.client.serve({ peer, ...request }, done);
    });
    expect(refused.failure).toEqual({ code: 'outcome', outcome: Outcome.UnknownPeer });
    const again = await addPeer(producer, consumer);
    if (again.result === undefined) throw new Error('the peer was refused');
    const readded = again.result;
    await ok((done) => {
      producer.client.serve({ peer: readded, ...request }, done);
    });
    producer.client.release(lease);
  });

  it('ends before a hard stop of its peer does, and the peer can be served again at once', async () => {
    const { producer, consumer, peer } = await pair(2048);
    const ids = range(0, 1500);
    await store(producer, ids);
    const lease = await okSet((done) => {
      producer.client.match(keysOf(ids), {}, done);
    });
    const target = await destinations(consumer, ids);
    const order: string[] = [];
    const indexes = target.slots.slice();
    const request = { peer, indexes, byLease: { keys: keysOf(ids), leases: [lease] } };
    const served = ended((done) => {
      producer.client.serve(request, done);
    }).then(({ failure }) => {
      order.push('serve');
      return failure;
    });
    const stopped = ok<undefined>((done) => {
      producer.client.hardStop(peer, done);
    }).then(() => order.push('stop'));
    const failure = await served;
    await stopped;
    expect(order).toEqual(['serve', 'stop']);
    if (failure !== undefined) expect(failure).toEqual({ code: 'outcome', outcome: Outcome.Stopped });
    await ok((done) => {
      producer.client.serve(request, done);
    });
    expect(await verified(consumer, target)).toBe(0);
    producer.client.release(lease);
    consumer.client.release(target);
  });

  it('goes on after its mover died: the peer is loaded again by itself, the open serve ends as lost or done', async () => {
    const { producer, consumer, peer } = await pair(2048);
    const ids = range(0, 1500);
    await store(producer, ids);
    const lease = await okSet((done) => {
      producer.client.match(keysOf(ids), {}, done);
    });
    const target = await destinations(consumer, ids);
    const request = {
      peer,
      indexes: target.slots.slice(),
      byLease: { keys: keysOf(ids), leases: [lease] },
    };
    const open = ended((done) => {
      producer.client.serve(request, done);
    });
    await producer.workers.kill(1);
    const { failure } = await open;
    if (failure !== undefined) expect(failure).toEqual({ code: 'KVPEER_WORKER_LOST' });
    await ok((done) => {
      producer.client.serve(request, done);
    });
    expect(await verified(consumer, target)).toBe(0);
    expect(new Set(lease.statuses)).toEqual(new Set([PositionStatus.Pinned]));
    producer.client.release(lease);
    await quiet(producer);
    expect(poolState(producer).pins).toBe(0);
  });
});

describe('a node without a data plane', () => {
  it('accepts any peer and ends every serve with that outcome', async () => {
    const node = await startTestShards({ blocks: 64 });
    nodes.push(node);
    const { result } = await addPeer(node, node);
    if (result === undefined) throw new Error('the peer was refused');
    await store(node, [1]);
    const lease = await okSet((done) => {
      node.client.match(keysOf([1]), {}, done);
    });
    const { failure } = await ended((done) => {
      node.client.serve(
        { peer: result, indexes: Int32Array.of(0), byLease: { keys: keysOf([1]), leases: [lease] } },
        done,
      );
    });
    expect(failure).toEqual({ code: 'outcome', outcome: Outcome.NoDataPlane });
    await ok<undefined>((done) => {
      node.client.hardStop(result, done);
    });
    await ok<undefined>((done) => {
      node.client.removePeer(result, done);
    });
    node.client.release(lease);
  });
});
