// What does a producer do under load, by index size and share of hits: as fast as it can (closed loop, 16 outstanding), and
// at a fixed rate (open loop: each lookup counts from when it should have gone, however late the one before it was)?

import type { Load, LookupTimes } from './processes/load.js';
import type { BenchNode } from './processes/node.js';
import type { RowBook, Section } from './rows.js';
import { quantile } from './stats.js';
import { Child, withChildren } from './support/child.js';
import { PLAIN_NODE, poolBytesFor } from './support/nodes.js';

const KEYS = 1024;
const OUTSTANDING = 16;
const OPEN_PER_SECOND = 400;

const INDEXES = [
  ['64k', 65_536],
  ['1m', 1_000_000],
] as const;

/** Rows of one loop. A share of the samples has a row when at least ten lie beyond it. */
function report(rows: RowBook, name: string, { latencyUs, elapsedMs }: LookupTimes): void {
  const count = latencyUs.length;
  rows.figure(`${name}.p50Us`, quantile(latencyUs, 0.5), 'us', count);
  if (count >= 1000) rows.figure(`${name}.p99Us`, quantile(latencyUs, 0.99), 'us', count);
  if (count >= 10_000) rows.figure(`${name}.p999Us`, quantile(latencyUs, 0.999), 'us', count);
  rows.figure(`${name}.perSecond`, (count * 1000) / elapsedMs, '1/s', count);
}

export const lookupLoadBench: Section = {
  group: 'lookup',
  title: 'lookups of 1,024 keys, closed and open loop, by index size and share of hits',
  goals: [],
  prefixes: ['lookup.load.'],
  async run({ isQuick, rows, profileDir }) {
    for (const [name, blockCount] of isQuick ? INDEXES.slice(0, 1) : INDEXES) {
      const producer = new Child<BenchNode>('node', { profileDir });
      const client = new Child<Load>('load');
      await withChildren([producer, client], async () => {
        const { address } = await producer.call('start', {
          ...PLAIN_NODE,
          poolBytes: poolBytesFor(blockCount, PLAIN_NODE.blockBytes),
        });
        await producer.call('store', 0, blockCount);
        await client.call('connect', address);
        for (const hitShare of isQuick ? [1] : [1, 0.5, 0]) {
          const keys = { keyCount: KEYS, heldCount: blockCount, hitShare };
          const prefix = `lookup.load.${name}.hits${hitShare * 100}`;
          const closed = { ...keys, outstanding: OUTSTANDING, lookupsPerRequest: 8 };
          await client.call('closedLoop', { ...closed, lookupCount: 500 });
          const before = await producer.call('cpu');
          const lookupCount = isQuick ? 1000 : 10_000;
          const times = await client.call('closedLoop', { ...closed, lookupCount });
          const after = await producer.call('cpu');
          report(rows, `${prefix}.closed`, times);
          rows.figure(
            `${prefix}.closed.mainCpuUs`,
            (after.mainNs - before.mainNs) / 1000 / lookupCount,
            'us',
            lookupCount,
          );
          await producer.call('startLoopDelay');
          const seconds = isQuick ? 1 : 4;
          const open = { ...keys, perSecond: OPEN_PER_SECOND, seconds };
          report(rows, `${prefix}.open`, await client.call('openLoop', open));
          const delayMs = await producer.call('stopLoopDelay');
          rows.figure(`${prefix}.open.loopDelayMs`, delayMs, 'ms');
        }
      });
    }
  },
};
