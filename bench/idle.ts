// What does a node cost that has nothing to do, and how long does it take to be there?

import type { Load } from './processes/load.js';
import type { BenchNode } from './processes/node.js';
import type { Companions } from './processes/companions.js';
import type { Bench, Section } from './rows.js';
import { Child, withChildren } from './support/child.js';
import { cpuPercent } from './support/cpu.js';
import { poolBytesFor } from './support/nodes.js';

const SESSIONS = 8;
const BLOCK_BYTES = 65_536;
/** Over TCP: a write by CMA completes although its target is stopped. */
const TCP = { UCX_TLS: 'tcp,self' };

const pause = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    setTimeout(resolve, ms);
  });

async function idleNode({ isQuick, rows }: Bench): Promise<void> {
  const spanMs = isQuick ? 1500 : 5000;
  const rounds = isQuick ? 3 : 5;
  const node = new Child<BenchNode>('node', { env: TCP });
  const companions = new Child<Companions>('companions', { env: TCP });
  const frozen = new Child<Load>('load', { env: TCP });
  await withChildren([node, companions, frozen], async () => {
    const { address } = await node.call('start', {
      dataPlane: 'nixl',
      blockBytes: BLOCK_BYTES,
      poolBytes: poolBytesFor(4096, BLOCK_BYTES),
      peerPinShare: 1,
      allPeersPinShare: 1,
    });
    await node.call('store', 0, 1024);
    await companions.call('start', address, SESSIONS, BLOCK_BYTES);
    const percents = async (): Promise<number[]> => {
      const samples: number[] = [];
      for (let round = 0; round < rounds; round++) {
        const before = await node.call('cpu');
        await pause(spanMs);
        samples.push(cpuPercent(before, await node.call('cpu')));
      }
      return samples;
    };
    await pause(1000);
    const idle = await percents();
    rows.measured('idle.cpuPercent', idle);
    await frozen.call('openMemory', { numBlocks: 1024, blockBytes: BLOCK_BYTES });
    await frozen.call('connect', address);
    await frozen.call('fetchAndFreeze', 1024);
    await pause(1000);
    const withFrozen = await percents();
    frozen.process.kill('SIGCONT');
    rows.measured(
      'idle.frozenWritePercent',
      withFrozen.map((percent, i) => Math.max(0, percent - idle[i])),
    );
  });
}

async function startUp({ isQuick, rows }: Bench): Promise<void> {
  const samples: number[] = [];
  for (let round = 0; round < (isQuick ? 3 : 5); round++) {
    const node = new Child<BenchNode>('node');
    await withChildren([node], async () => {
      const { readyMs } = await node.call('start', { dataPlane: 'nixl', poolBytes: 2 ** 30 });
      samples.push(readyMs);
    });
  }
  rows.measured('start.readyMs', samples);
}

export const idleBench: Section = {
  group: 'serve',
  title: 'an idle node, a frozen write, the start of a node',
  goals: ['idle.cpuPercent', 'idle.frozenWritePercent', 'start.readyMs'],
  prefixes: ['idle.', 'start.'],
  async run(bench) {
    await startUp(bench);
    await idleNode(bench);
  },
};
