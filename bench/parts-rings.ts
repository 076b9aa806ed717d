// What does it cost the main thread to have a worker do something: rings, piscina.run, postMessage?
//
// The work is one native match of 16 keys in shared memory in every case; only the way there and back differs.

import { Worker } from 'node:worker_threads';
import { Piscina } from 'piscina';

import { loadNative, unpackMatch } from '../native/index.js';
import { createLogger } from '../src/main/observe/log.js';
import { validateOptions } from '../src/main/options.js';
import type { StartedShards } from '../src/main/shards/start.js';
import { startShards } from '../src/main/shards/start.js';
import { Opcode } from '../src/shared/operations.js';
import type { Section } from './rows.js';
import { median, quantile } from './stats.js';
import { KEY_BYTES, benchKeys } from './support/keys.js';
import { PLAIN_NODE } from './support/nodes.js';

const KEYS = 16;
const WINDOW = 64;

/** Does the work on this extent in a worker and tells when it is done. */
export type Way = (extent: number, done: (matched: number) => void) => void;

/** `count` requests, `window` of them under way. @returns us of this thread's CPU and of the clock, per request */
export async function drive(
  way: Way,
  extents: readonly number[],
  count: number,
  window: number,
): Promise<{ cpuUs: number; us: number }> {
  const native = loadNative();
  const startMs = performance.now();
  const startNs = native.threadCpuNs();
  await new Promise<void>((resolve) => {
    let asked = 0;
    let ended = 0;
    const next = (): void => {
      if (asked === count) return;
      way(extents[asked++ % extents.length], () => {
        if (++ended === count) resolve();
        else next();
      });
    };
    for (let i = 0; i < window; i++) next();
  });
  return {
    cpuUs: (native.threadCpuNs() - startNs) / 1000 / count,
    us: ((performance.now() - startMs) * 1000) / count,
  };
}

export function ringWay({ client }: StartedShards): Way {
  return (extent, done) => {
    client.inFlight.submit(
      {
        opcode: Opcode.Match,
        extent,
        arg0: 0,
        arg1: -1,
        arg2: 0,
        onWorkerLost: 'fail',
        done: (_outcome, hitCount) => {
          done(hitCount);
        },
      },
      1,
    );
  };
}

/** Lists of keys that are not there, each in an extent of its own. */
export function ringExtents(shards: StartedShards, count: number): number[] {
  return Array.from({ length: count }, (_, i) => {
    const keys = { bytes: benchKeys(2 ** 30 + i * KEYS, KEYS), first: 0, stride: KEY_BYTES, count: KEYS };
    const set = shards.client.extents.make({ count: KEYS, keys, flags: 0, pinLimit: 0, peerNumBlocks: 0 });
    if (set === undefined) throw new Error('the arena is full');
    return set.extent;
  });
}

export const ringsBench: Section = {
  group: 'parts',
  title: 'rings against piscina.run and postMessage',
  goals: ['ring.mainCpuVsPiscina'],
  prefixes: ['ring.'],
  async run({ isQuick, rows }) {
    const rounds = isQuick ? 5 : 15;
    const count = isQuick ? 2000 : 10_000;
    const options = validateOptions({ ...PLAIN_NODE, shards: 1, poolBytes: 4096 * 4096 });
    const shards = await startShards({ ...options, arenaBytes: undefined }, createLogger('error'));
    const { control } = shards.memory;
    const pool = new Piscina({
      filename: new URL('./processes/piscina-match.js', import.meta.url).href,
      minThreads: 1,
      maxThreads: 1,
      idleTimeout: Infinity,
      workerData: { control },
    });
    const worker = new Worker(new URL('./processes/message-match.js', import.meta.url), {
      workerData: { control },
    });
    try {
      const extents = ringExtents(shards, WINDOW);
      const messages: ((matched: number) => void)[] = [];
      worker.on('message', (packed: number) => {
        messages.shift()?.(unpackMatch(packed).hitCount);
      });
      const ways: Readonly<Record<'ring' | 'piscina' | 'postMessage', Way>> = {
        ring: ringWay(shards),
        piscina: (extent, done) => {
          void pool.run(extent).then((packed: number) => {
            done(unpackMatch(packed).hitCount);
          });
        },
        postMessage: (extent, done) => {
          messages.push(done);
          worker.postMessage(extent);
        },
      };
      const names = ['ring', 'piscina', 'postMessage'] as const;
      const cpuUs: Record<(typeof names)[number], number[]> = { ring: [], piscina: [], postMessage: [] };
      const perSecond: typeof cpuUs = { ring: [], piscina: [], postMessage: [] };
      const roundTripUs: typeof cpuUs = { ring: [], piscina: [], postMessage: [] };
      for (let round = -2; round < rounds; round++) {
        for (const name of names) {
          const loaded = await drive(ways[name], extents, count, WINDOW);
          const single = await drive(ways[name], extents, count / 10, 1);
          if (round < 0) continue;
          cpuUs[name].push(loaded.cpuUs);
          perSecond[name].push(1e6 / loaded.us);
          roundTripUs[name].push(single.us);
        }
      }
      rows.measured(
        'ring.mainCpuVsPiscina',
        cpuUs.ring.map((us, i) => us / cpuUs.piscina[i]),
      );
      for (const name of names) {
        rows.measured(`ring.${name}.mainCpuUs`, cpuUs[name], 'us');
        rows.measured(`ring.${name}.perSecond`, perSecond[name], '1/s');
        rows.figure(`ring.${name}.roundTripUs`, median(roundTripUs[name]), 'us', rounds);
      }
      rows.figure('ring.ring.roundTripP90Us', quantile(roundTripUs.ring, 0.9), 'us', rounds);
    } finally {
      await worker.terminate();
      await pool.destroy();
      await shards.close();
    }
  },
};
