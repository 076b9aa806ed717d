// What happens to lookups, and to the event loop, when there is a lot to do: many sessions, long lists, serves beside
// them. Open loop: lookups go out at fixed times, and their time counts from when they should have gone.

import { blockShape } from './serve.js';
import type { Load, LookupTimes } from './processes/load.js';
import type { BenchNode } from './processes/node.js';
import type { Bench, Section } from './rows.js';
import { quantile } from './stats.js';
import { Child, withChildren } from './support/child.js';
import { PLAIN_NODE, poolBytesFor } from './support/nodes.js';

const p99 = ({ latencyUs }: LookupTimes): number => quantile(latencyUs, 0.99);

async function manySessions({ isQuick, rows }: Bench): Promise<void> {
  const blockCount = 65_536;
  const rounds = isQuick ? 5 : 9;
  const load = { keyCount: 128, heldCount: blockCount, perSecond: 500, seconds: isQuick ? 0.6 : 2 };
  const counts = isQuick ? [1, 256] : [1, 16, 64, 256];
  const producer = new Child<BenchNode>('node');
  const loads = counts.map(() => new Child<Load>('load'));
  await withChildren([producer, ...loads], async () => {
    const { address } = await producer.call('start', {
      ...PLAIN_NODE,
      maxPeers: 1000,
      poolBytes: poolBytesFor(blockCount, PLAIN_NODE.blockBytes),
    });
    await producer.call('store', 0, blockCount);
    for (const [i, count] of counts.entries()) await loads[i].call('connect', address, count);
    const results = counts.map((): number[] => []);
    for (const client of loads) await client.call('openLoop', { ...load, seconds: 0.3 });
    for (let round = 0; round < rounds; round++) {
      for (const [i, client] of loads.entries()) results[i].push(p99(await client.call('openLoop', load)));
    }
    for (const [i, count] of counts.entries())
      rows.measured(`lookup.sessions${count}.p99Us`, results[i], 'us');
    const one = results[0];
    rows.measured(
      'lookup.sessions256.p99VsOne',
      (results.at(-1) ?? []).map((us, i) => us / one[i]),
    );
  });
}

async function longLists({ isQuick, rows }: Bench): Promise<void> {
  const blockCount = isQuick ? 65_536 : 262_144;
  const producer = new Child<BenchNode>('node');
  const client = new Child<Load>('load');
  await withChildren([producer, client], async () => {
    const { address } = await producer.call('start', {
      ...PLAIN_NODE,
      poolBytes: poolBytesFor(blockCount, PLAIN_NODE.blockBytes),
    });
    await producer.call('store', 0, blockCount);
    await client.call('connect', address);
    const load = { keyCount: 10_000, heldCount: blockCount, perSecond: 50, seconds: isQuick ? 1 : 4 };
    await client.call('openLoop', { ...load, seconds: 0.5 });
    const delays: number[] = [];
    for (let round = 0; round < 5; round++) {
      await producer.call('startLoopDelay');
      await client.call('openLoop', load);
      delays.push(await producer.call('stopLoopDelay'));
    }
    rows.measured('lookup.10000x50.loopDelayMs', delays);
    const idle: number[] = [];
    for (let round = 0; round < 3; round++) {
      await producer.call('startLoopDelay');
      await new Promise((resolve) => setTimeout(resolve, isQuick ? 500 : 2000));
      idle.push(await producer.call('stopLoopDelay'));
    }
    rows.measured('lookup.idle.loopDelayMs', idle, 'ms');
  });
}

interface Side {
  readonly shards: 1 | 2;
  readonly producer: Child<BenchNode>;
  readonly puller: Child<Load>;
  readonly client: Child<Load>;
}

/** Lookups while the node serves: with a worker of their own (two shards), and with one worker for both. */
async function whileServing({ isQuick, rows }: Bench): Promise<void> {
  const shape = blockShape('512x64k');
  const rounds = isQuick ? 5 : 9;
  const results: Record<1 | 2, number[]> = { 1: [], 2: [] };
  /** Below 1 when the machine was so slow that lookups met the limits on pins: their times are of shorter answers. */
  const hitShares: Record<1 | 2, number[]> = { 1: [], 2: [] };
  const side = (shards: 1 | 2): Side => ({
    shards,
    producer: new Child<BenchNode>('node'),
    puller: new Child<Load>('load'),
    client: new Child<Load>('load'),
  });
  const sides = [side(1), side(2)];
  const children = sides.map(({ producer, puller, client }) => ({
    end: async () => {
      await Promise.all([producer.end(), puller.end(), client.end()]);
    },
  }));
  await withChildren(children, async () => {
    for (const { shards, producer, puller, client } of sides) {
      const { address } = await producer.call('start', {
        dataPlane: 'nixl',
        shards,
        blockBytes: shape.blockBytes,
        peerPinShare: 1,
        allPeersPinShare: 1,
        // Room for the pins of many lookups at once: a limit of pins is not what is measured.
        poolBytes: poolBytesFor(16_384, shape.blockBytes),
      });
      await producer.call('store', 0, 2048);
      await puller.call('openMemory', { numBlocks: shape.blockCount, blockBytes: shape.blockBytes });
      await client.call('openMemory', { numBlocks: 1, blockBytes: shape.blockBytes });
      await puller.call('connect', address);
      await client.call('connect', address);
    }
    const load = { keyCount: 1024, heldCount: 2048, perSecond: 200, seconds: isQuick ? 0.6 : 2 };
    for (let round = -1; round < rounds; round++) {
      for (const { shards, puller, client } of sides) {
        const pulling = puller.call('fetchFor', { ...shape, order: 'scattered', ms: load.seconds * 1000 });
        const [times, { fetchCount }] = await Promise.all([client.call('openLoop', load), pulling]);
        if (fetchCount === 0) throw new Error('nothing was served beside the lookups');
        if (round < 0) continue;
        results[shards].push(p99(times));
        hitShares[shards].push(times.hitShare);
      }
    }
  });
  rows.measured('lookup.serving.ownWorker.p99Us', results[2], 'us');
  rows.measured('lookup.serving.oneWorker.p99Us', results[1], 'us');
  rows.measured('lookup.serving.ownWorker.hitShare', hitShares[2], 'of the keys');
  rows.measured('lookup.serving.oneWorker.hitShare', hitShares[1], 'of the keys');
  rows.measured(
    'lookup.1024.p99WhileServing',
    results[2].map((us, i) => us / results[1][i]),
  );
}

export const lookupTailBench: Section = {
  group: 'lookup',
  title: 'lookups under load: sessions, long lists, serves beside them',
  goals: ['lookup.sessions256.p99VsOne', 'lookup.10000x50.loopDelayMs', 'lookup.1024.p99WhileServing'],
  prefixes: [
    'lookup.sessions',
    'lookup.10000x50.',
    'lookup.idle.',
    'lookup.serving.',
    'lookup.1024.p99WhileServing',
  ],
  async run(bench) {
    await manySessions(bench);
    await longLists(bench);
    await whileServing(bench);
  },
};
