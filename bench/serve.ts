// How fast do blocks get from one node's pool into another's memory, against NIXL without kvpeer and a raw copy?
//
// A bare client fetches from a kvpeer node; in turns with it a process that does nothing but NIXL writes the same
// blocks into the same memory. Places are scattered on both sides, so both write the same number of descriptors.

import type { Load } from './processes/load.js';
import type { BenchNode } from './processes/node.js';
import type { Writer } from './processes/writer.js';
import type { Bench, Section } from './rows.js';
import { median, quantile } from './stats.js';
import { cProgram, jsonOf } from './support/c-program.js';
import { Child, withChildren } from './support/child.js';
import { poolBytesFor } from './support/nodes.js';

export interface BlockShape {
  readonly blockCount: number;
  readonly blockBytes: number;
}

const SHAPES = {
  '512x64k': { blockCount: 512, blockBytes: 64 * 1024 },
  '64x1m': { blockCount: 64, blockBytes: 1024 * 1024 },
  '4096x4k': { blockCount: 4096, blockBytes: 4096 },
} as const satisfies Readonly<Record<string, BlockShape>>;
export type ShapeName = keyof typeof SHAPES;

export function blockShape(name: ShapeName): BlockShape {
  return SHAPES[name];
}

/** What both sides of a transfer may use; `default` is what a node chooses by itself. */
const TRANSPORTS = {
  default: {},
  tcp: { UCX_TLS: 'tcp,self' },
  shm: { UCX_TLS: 'tcp,posix,cma,self' },
} as const satisfies Readonly<Record<string, Readonly<Record<string, string>>>>;
type TransportName = keyof typeof TRANSPORTS;

interface Times {
  /** ms per round, medians. */
  readonly fetchMs: number[];
  /** From first post to last completion. */
  readonly dataMs: number[];
  readonly nixlMs: number[];
  readonly allMs: number[];
  /** Places that follow each other on both sides, ms per round. */
  readonly consecutiveMs: number[];
  /** Of the producer's process, ms per fetch. */
  readonly cpuMs: number[];
}

async function measureShape(
  bench: Bench,
  name: ShapeName,
  transport: TransportName,
  afterRound: () => Promise<void> = () => Promise.resolve(),
): Promise<Times> {
  const { isQuick, rows, profileDir } = bench;
  const shape = SHAPES[name];
  const rounds = isQuick ? 5 : 9;
  const perRound = isQuick ? 5 : 12;
  const env = TRANSPORTS[transport];
  const producer = new Child<BenchNode>('node', { env, profileDir });
  const client = new Child<Load>('load', { env });
  const writer = new Child<Writer>('writer', { env });
  const times: Times = { fetchMs: [], dataMs: [], nixlMs: [], allMs: [], consecutiveMs: [], cpuMs: [] };
  await withChildren([producer, client, writer], async () => {
    const { address } = await producer.call('start', {
      dataPlane: 'nixl',
      blockBytes: shape.blockBytes,
      peerPinShare: 1,
      allPeersPinShare: 1,
      poolBytes: poolBytesFor(shape.blockCount * 2, shape.blockBytes),
    });
    await producer.call('store', 0, shape.blockCount);
    const memory = { numBlocks: shape.blockCount, blockBytes: shape.blockBytes };
    const { metadata, baseAddr } = await client.call('openMemory', memory);
    await client.call('connect', address);
    await writer.call('start', memory);
    await writer.call('addPeer', metadata, baseAddr, shape.blockCount);
    const fetch = { blockCount: shape.blockCount, order: 'scattered', rounds: perRound } as const;
    for (let round = -1; round < rounds; round++) {
      const before = (await producer.call('stats')).served.writeMs;
      const cpuBefore = await producer.call('cpu');
      const fetched = await client.call('fetchLoop', fetch);
      const cpuAfter = await producer.call('cpu');
      const data = (await producer.call('stats')).served.writeMs - before;
      const inOrder = await client.call('fetchLoop', { ...fetch, order: 'consecutive', rounds: 5 });
      const bare = await writer.call('write', shape.blockCount, 'scattered', perRound);
      if (round < 0) continue;
      times.fetchMs.push(median(fetched));
      times.dataMs.push(data / perRound);
      times.nixlMs.push(median(bare));
      times.allMs.push(...fetched);
      times.consecutiveMs.push(median(inOrder));
      times.cpuMs.push((cpuAfter.processUs - cpuBefore.processUs) / 1000 / perRound);
      await afterRound();
    }
  });
  const gigabytes = (shape.blockCount * shape.blockBytes) / 1e9;
  const prefix = `fetch.${name}.${transport}`;
  const perSecond = (ms: readonly number[]): number[] => ms.map((one) => (gigabytes * 1000) / one);
  rows.measured(`${prefix}.gbPerS`, perSecond(times.fetchMs), 'GB/s');
  rows.measured(`${prefix}.nixlGbPerS`, perSecond(times.nixlMs), 'GB/s');
  rows.measured(`${prefix}.consecutive.gbPerS`, perSecond(times.consecutiveMs), 'GB/s');
  rows.measured(`${prefix}.producerCpuMs`, times.cpuMs, 'ms per fetch and its lookup');
  rows.figure(`${prefix}.p50Ms`, quantile(times.allMs, 0.5), 'ms', times.allMs.length);
  rows.figure(`${prefix}.p99Ms`, quantile(times.allMs, 0.99), 'ms', times.allMs.length);
  return times;
}

const over = (above: readonly number[], below: readonly number[]): number[] =>
  above.map((value, i) => value / below[i]);

async function tcpAgainstRaw(bench: Bench): Promise<void> {
  const raw = await cProgram('copy_limits');
  const rawMs: number[] = [];
  const times = await measureShape(bench, '512x64k', 'tcp', async () => {
    if (raw.kind === 'missing') return;
    const { fetches } = (await jsonOf(raw.path, ['tcp', bench.isQuick ? '25' : '60'])) as {
      fetches: { blocks: number; p50_ms: number }[];
    };
    rawMs.push(fetches.find(({ blocks }) => blocks === 512)?.p50_ms ?? NaN);
  });
  if (raw.kind === 'missing') {
    bench.rows.skip('fetch.512x64k.tcpVsRaw', raw.reason);
    return;
  }
  bench.rows.measured('fetch.512x64k.tcpVsRaw', over(rawMs, times.fetchMs));
}

async function manyAtOnce({ rows }: Bench, transport: TransportName): Promise<void> {
  const { blockCount, blockBytes } = SHAPES['512x64k'];
  const env = TRANSPORTS[transport];
  const producer = new Child<BenchNode>('node', { env });
  const client = new Child<Load>('load', { env });
  await withChildren([producer, client], async () => {
    const { address } = await producer.call('start', {
      dataPlane: 'nixl',
      blockBytes,
      peerPinShare: 1,
      allPeersPinShare: 1,
      poolBytes: poolBytesFor(blockCount * 2, blockBytes),
    });
    await producer.call('store', 0, blockCount);
    await client.call('openMemory', { numBlocks: 16 * blockCount, blockBytes });
    await client.call('connect', address);
    for (const lanes of [1, 2, 4, 8, 16]) {
      const perLane = Math.ceil(32 / lanes);
      const samples: number[] = [];
      for (let round = 0; round < 5; round++) {
        const startMs = performance.now();
        await client.call('fetchLoop', { blockCount, order: 'consecutive', rounds: perLane, lanes });
        samples.push((lanes * perLane * blockCount * blockBytes) / 1e6 / (performance.now() - startMs));
      }
      rows.measured(`fetch.512x64k.${transport}.at${lanes}.gbPerS`, samples, 'GB/s');
    }
  });
}

export const serveBench: Section = {
  group: 'serve',
  title: 'fetches against a bare NIXL loop and a raw copy',
  goals: ['fetch.512x64k.dataVsNixl', 'fetch.512x64k.vsNixl', 'fetch.64x1m.vsNixl', 'fetch.512x64k.tcpVsRaw'],
  prefixes: ['fetch.'],
  async run(bench) {
    const { rows, isQuick } = bench;
    const small = await measureShape(bench, '512x64k', 'default');
    rows.measured('fetch.512x64k.dataVsNixl', over(small.nixlMs, small.dataMs));
    rows.measured('fetch.512x64k.vsNixl', over(small.nixlMs, small.fetchMs));
    const large = await measureShape(bench, '64x1m', 'default');
    rows.measured('fetch.64x1m.vsNixl', over(large.nixlMs, large.fetchMs));
    await tcpAgainstRaw(bench);
    if (isQuick) return;
    await measureShape(bench, '4096x4k', 'default');
    for (const name of ['512x64k', '64x1m', '4096x4k'] as const) await measureShape(bench, name, 'shm');
    for (const name of ['64x1m', '4096x4k'] as const) await measureShape(bench, name, 'tcp');
    for (const transport of ['default', 'tcp'] as const) await manyAtOnce(bench, transport);
  },
};
