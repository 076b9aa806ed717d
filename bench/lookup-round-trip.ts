// How long does a lookup take from one kvpeer to another, and what is the floor of ZeroMQ under it?

import { lookupsOfEcho } from './support/echo-floor.js';
import type { BenchNode } from './processes/node.js';
import type { Section } from './rows.js';
import { quantile } from './stats.js';
import { cProgram } from './support/c-program.js';
import { Child, withChildren } from './support/child.js';
import { PLAIN_NODE, poolBytesFor } from './support/nodes.js';

const KEY_COUNTS = [1, 16, 128, 1024, 8192] as const;
const HIT_SHARES = [0.5, 0] as const;

type Rounds = Record<(typeof KEY_COUNTS)[number], number[]>;

function emptyRounds(): Rounds {
  return { 1: [], 16: [], 128: [], 1024: [], 8192: [] };
}

export const lookupRoundTripBench: Section = {
  group: 'lookup',
  title: 'lookup round trip, kvpeer to kvpeer, beside a C libzmq echo',
  goals: ['lookup.1024.vsEcho', 'lookup.8192.vsEcho'],
  prefixes: ['lookup.1024.vsEcho', 'lookup.8192.vsEcho', 'lookup.rtt.', 'lookup.echo.'],
  async run({ isQuick, rows, profileDir }) {
    const blockCount = isQuick ? 65_536 : 1_000_000;
    const rounds = isQuick ? 5 : 9;
    const budgetMs = isQuick ? 40 : 150;
    const counts = isQuick ? ([1, 1024, 8192] as const) : KEY_COUNTS;
    const echo = await cProgram('zmq_echo', ['-lzmq']);
    const producer = new Child<BenchNode>('node', { profileDir });
    const consumer = new Child<BenchNode>('node');
    await withChildren([producer, consumer], async () => {
      const poolBytes = poolBytesFor(blockCount, PLAIN_NODE.blockBytes);
      const { address: source } = await producer.call('start', { ...PLAIN_NODE, poolBytes });
      await producer.call('store', 0, blockCount);
      await consumer.call('start', { ...PLAIN_NODE, poolBytes: 16 * 2 ** 20 });
      await consumer.call('connect', source);
      const p50 = emptyRounds();
      const floor = emptyRounds();
      const all = new Map<number, number[]>(counts.map((keyCount) => [keyCount, []]));
      const ask = (keyCount: number, count: number, hitShare = 1): Promise<Float64Array> =>
        consumer.call('lookups', { source, keyCount, heldCount: blockCount, count, hitShare });
      // Until the compilers have seen enough of it on both sides.
      for (const keyCount of counts) await ask(keyCount, isQuick ? 600 : 2000);
      for (let round = 0; round < rounds; round++) {
        for (const keyCount of counts) {
          const count = Math.max(20, Math.round(budgetMs / (0.3 + keyCount * 0.0005)));
          const times = await ask(keyCount, count);
          p50[keyCount].push(quantile(times, 0.5));
          all.get(keyCount)?.push(...times);
        }
        if (echo.kind === 'ready') {
          for (const { keys, p50Us } of await lookupsOfEcho(echo.path, 'two', budgetMs))
            floor[keys].push(p50Us);
        }
      }
      for (const keyCount of counts) {
        rows.measured(`lookup.rtt.${keyCount}.p50Us`, p50[keyCount], 'us');
        const times = all.get(keyCount) ?? [];
        rows.figure(`lookup.rtt.${keyCount}.p99Us`, quantile(times, 0.99), 'us', times.length);
        if (times.length >= 1000) {
          rows.figure(`lookup.rtt.${keyCount}.p999Us`, quantile(times, 0.999), 'us', times.length);
        }
        if (echo.kind === 'ready') rows.measured(`lookup.echo.${keyCount}.p50Us`, floor[keyCount], 'us');
      }
      for (const keyCount of [1024, 8192] as const) {
        const name = `lookup.${keyCount}.vsEcho` as const;
        if (echo.kind === 'missing') rows.skip(name, echo.reason);
        else {
          rows.measured(
            name,
            p50[keyCount].map((us, i) => us / floor[keyCount][i]),
          );
        }
      }
      for (const hitShare of isQuick ? [] : HIT_SHARES) {
        const times = await ask(1024, 300, hitShare);
        rows.figure(
          `lookup.rtt.1024.hits${hitShare * 100}percent.p50Us`,
          quantile(times, 0.5),
          'us',
          times.length,
        );
      }
    });
  },
};
