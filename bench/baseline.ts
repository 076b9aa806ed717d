// kvpeer as one of the baselines: speaks the line protocol of ../shared/baselines/run.py on standard input and output.
//
// A consumer and a producer for each block size, each in a process of its own, on the one-host transports of the
// baselines it is compared with. Lookups go over ZeroMQ, blocks by NIXL, as between any two kvpeers.

import { createInterface } from 'node:readline';

import type { Load } from './processes/load.js';
import type { BenchNode, StartedNode } from './processes/node.js';
import type { ShapeName } from './serve.js';
import { blockShape } from './serve.js';
import { median, quantile } from './stats.js';
import { Child } from './support/child.js';
import { poolBytesFor } from './support/nodes.js';

const KEY_COUNTS = [1, 16, 128, 1024, 8192] as const;
const SHAPE_NAMES: readonly ShapeName[] = ['512x64k', '64x1m', '4096x4k'];
const ENV = { UCX_TLS: process.env.UCX_TLS ?? 'tcp,posix,cma,self' };
/** Longer than the pauses in which this program is stopped. */
const PATIENT = {
  heartbeatMs: 60_000,
  heartbeatTimeoutMs: 300_000,
  leaseMs: 300_000,
  lookupMs: 60_000,
  holdMs: 30_000,
};

function say(message: object): void {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

interface LookupRow {
  readonly keys: number;
  readonly n: number;
  readonly p50_us: number;
  readonly p99_us: number;
  readonly per_s: number;
}

class Pair {
  readonly producer = new Child<BenchNode>('node', { env: ENV });
  readonly client = new Child<Load>('load', { env: ENV });

  constructor(readonly shape: ShapeName) {}

  async start(): Promise<StartedNode> {
    const { blockCount, blockBytes } = blockShape(this.shape);
    const started = await this.producer.call('start', {
      ...PATIENT,
      dataPlane: 'nixl',
      blockBytes,
      peerPinShare: 1,
      allPeersPinShare: 1,
      poolBytes: poolBytesFor(blockCount * 2, blockBytes),
    });
    await this.producer.call('store', 0, blockCount);
    await this.client.call('openMemory', { numBlocks: blockCount, blockBytes });
    await this.client.call('connect', started.address);
    await this.client.call('fetchLoop', { blockCount, order: 'consecutive', rounds: 3 });
    return started;
  }

  async fetches(ms: number): Promise<object> {
    const { blockCount, blockBytes } = blockShape(this.shape);
    const times: number[] = [];
    const endMs = performance.now() + ms;
    while (times.length < 3 || performance.now() < endMs) {
      times.push(...(await this.client.call('fetchLoop', { blockCount, order: 'consecutive', rounds: 3 })));
    }
    const p50 = median(times);
    return {
      blocks: blockCount,
      block_bytes: blockBytes,
      n: times.length,
      p50_ms: p50,
      p99_ms: quantile(times, 0.99),
      gb_s: (blockCount * blockBytes) / 1e6 / p50,
    };
  }

  async end(): Promise<void> {
    await Promise.all([this.producer.end(), this.client.end()]);
  }
}

/** Lookups are asked by a kvpeer, as an engine would. */
class LookupPair {
  readonly producer = new Child<BenchNode>('node');
  readonly consumer = new Child<BenchNode>('node');
  #source = '';
  readonly #heldCount = 16_384;

  async start(): Promise<void> {
    const common = { ...PATIENT, dataPlane: 'none', blockBytes: 4096 } as const;
    const { address } = await this.producer.call('start', {
      ...common,
      peerPinShare: 1,
      allPeersPinShare: 1,
      poolBytes: poolBytesFor(this.#heldCount * 2, 4096),
    });
    this.#source = address;
    await this.producer.call('store', 0, this.#heldCount);
    await this.consumer.call('start', { ...common, poolBytes: 16 * 2 ** 20 });
    await this.consumer.call('connect', address);
    for (const keyCount of KEY_COUNTS) await this.#ask(keyCount, 1000);
  }

  async lookups(ms: number): Promise<LookupRow[]> {
    const rows: LookupRow[] = [];
    for (const keys of KEY_COUNTS) {
      const times: number[] = [];
      const startMs = performance.now();
      while (times.length < 20 || performance.now() < startMs + ms)
        times.push(...(await this.#ask(keys, 20)));
      const elapsedS = (performance.now() - startMs) / 1000;
      rows.push({
        keys,
        n: times.length,
        p50_us: median(times),
        p99_us: quantile(times, 0.99),
        per_s: times.length / elapsedS,
      });
    }
    return rows;
  }

  async end(): Promise<void> {
    await Promise.all([this.producer.end(), this.consumer.end()]);
  }

  #ask(keyCount: number, count: number): Promise<Float64Array> {
    return this.consumer.call('lookups', {
      source: this.#source,
      keyCount,
      heldCount: this.#heldCount,
      count,
    });
  }
}

async function main(): Promise<void> {
  const pairs = SHAPE_NAMES.map((shape) => new Pair(shape));
  const lookups = new LookupPair();
  try {
    let version = '';
    try {
      for (const pair of pairs) version = (await pair.start()).dataPlane;
      await lookups.start();
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      say({ event: 'skip', reason: text.split('\n', 1)[0] });
      return;
    }
    say({ event: 'ready', version: `NIXL ${version}` });
    for await (const line of createInterface({ input: process.stdin })) {
      const ms = Number(/^round (\d+)/.exec(line)?.[1]);
      if (Number.isNaN(ms)) continue;
      const fetches: object[] = [];
      for (const pair of pairs) fetches.push(await pair.fetches(ms));
      say({ event: 'round', lookups: await lookups.lookups(ms), fetches });
    }
  } finally {
    await Promise.all([...pairs, lookups].map((pair) => pair.end()));
  }
}

await main();
