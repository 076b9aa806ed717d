// How many leading blocks of a request are still there in a small pool? The policy of the workers, run on the real index
// and slots, beside others and beside one that knows the future, on the traces of ../shared/traces.

import { createReadStream, existsSync } from 'node:fs';

import { keysOf } from '../src/main/cli/replay/keys.js';
import { readTrace, reusableBlocks } from '../src/main/cli/replay/trace.js';
import { packageRoot } from '../src/shared/nixl-dir.js';
import type { Bench, Section } from './rows.js';
import { median } from './stats.js';
import { Arc, Clairvoyant, Clock, Fifo, Lru, S3Fifo, Sieve, leadingHitsOf } from './support/policies.js';
import type { Policy } from './support/policies.js';
import { SmallPool } from './support/small-pool.js';

type Requests = readonly (readonly number[])[];

const TRACES = ['conversation', 'synthetic'] as const;
/** Per cent of the distinct blocks. */
const SIZES = [1, 5, 10, 25] as const;
const SHARDS = 2;
/** Of the index's hash: which keys share a shard, a bucket, a ghost's place. */
const SEEDS = [1n, 2n, 3n] as const;

const OTHERS: Readonly<Record<string, (size: number, requests: Requests) => Policy>> = {
  fifo: (size) => new Fifo(size),
  clock: (size) => new Clock(size),
  arc: (size) => new Arc(size),
  s3fifo: (size) => new S3Fifo(size),
  sieve: (size) => new Sieve(size),
  clairvoyant: (size, requests) => new Clairvoyant(size, requests),
};

export const evictionBench: Section = {
  group: 'eviction',
  title: `leading hits: kvpeer, LRU, ${Object.keys(OTHERS).join(', ')}; all touched from the tail of a chain to its head; ${SHARDS} shards, seeds ${SEEDS.join(', ')}`,
  goals: ['evict.conversation5', 'evict.synthetic5', 'evict.worst'],
  prefixes: ['evict.'],
  async run(bench) {
    const folder = process.env.KVPEER_TRACES_DIR ?? `${packageRoot}/../shared/traces`;
    const perBlockNs: number[] = [];
    let worst = Infinity;
    for (const trace of TRACES) {
      const file = `${folder}/${trace}_trace.jsonl`;
      if (!existsSync(file)) {
        const reason = `no trace at ${file}; KVPEER_TRACES_DIR names its folder`;
        bench.rows.skipMissing(this.goals, reason.replace(packageRoot, '.'));
        return;
      }
      const requests = await requestsOf(file);
      worst = Math.min(worst, measureTrace(bench, trace, requests, perBlockNs));
    }
    bench.rows.measured('evict.nsPerBlock', perBlockNs, 'ns');
    if (bench.isQuick) bench.rows.skip('evict.worst', 'left out of --quick');
    else bench.rows.figure('evict.worst', worst);
  },
};

/** @returns the least ratio to LRU */
function measureTrace(
  { rows, isQuick }: Bench,
  trace: (typeof TRACES)[number],
  requests: Requests,
  perBlockNs: number[],
): number {
  const distinct = new Set(requests.flat()).size;
  const blockCount = requests.reduce((sum, ids) => sum + ids.length, 0);
  const keys = requests.map(keysOf);
  let worst = Infinity;
  for (const percent of isQuick ? ([5] as const) : SIZES) {
    const size = Math.floor((distinct * percent) / 100);
    const lru = leadingHitsOf(new Lru(size), requests);
    const ratios = SEEDS.map((seed) => {
      const pool = new SmallPool(size, SHARDS, seed);
      const startMs = performance.now();
      let hits = 0;
      requests.forEach((ids, i) => {
        hits += pool.request(keys[i], ids.length);
      });
      perBlockNs.push(((performance.now() - startMs) * 1e6) / blockCount);
      return hits / lru;
    });
    worst = Math.min(worst, median(ratios));
    rows.measured(`evict.${trace}${percent}`, ratios, 'x LRU');
    rows.figure(`evict.${trace}${percent}.lruShare`, lru / blockCount, 'of all blocks', requests.length);
    if (isQuick) continue;
    for (const [name, make] of Object.entries(OTHERS)) {
      const ratio = leadingHitsOf(make(size, requests), requests) / lru;
      rows.figure(`evict.${trace}${percent}.${name}`, ratio, 'x LRU', requests.length);
    }
  }
  return worst;
}

async function requestsOf(file: string): Promise<Requests> {
  const requests: (readonly number[])[] = [];
  const options = { strict: true, onBadLine: () => undefined };
  for await (const record of readTrace(createReadStream(file), options)) {
    const ids = reusableBlocks(record);
    if (ids.length > 0) requests.push(ids);
  }
  return requests;
}
