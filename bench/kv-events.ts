// What do KV events cost a node whose blocks come and go all the time?
//
// Two nodes take the same stores in turns, one with KV events, a subscriber and tokens for every block, one without. Each
// store evicts as many blocks as it brings, so a block is announced and withdrawn once.

import { Context, Subscriber } from 'zeromq';

import type { Section } from './rows.js';
import type { BenchNode } from './processes/node.js';
import { Child, withChildren } from './support/child.js';
import { PLAIN_NODE } from './support/nodes.js';

const BLOCK_COUNT = 16_384;

interface Measured {
  /** us of the main thread per block. */
  readonly cpuUs: number[];
  readonly perSecond: number[];
}

export const kvEventsBench: Section = {
  group: 'parts',
  title: 'what KV events cost',
  goals: [],
  prefixes: ['events.'],
  async run({ isQuick, profileDir, rows }) {
    const rounds = isQuick ? 4 : 10;
    const nodes = { on: new Child<BenchNode>('node', { profileDir }), off: new Child<BenchNode>('node') };
    const measured: Record<keyof typeof nodes, Measured> = {
      on: { cpuUs: [], perSecond: [] },
      off: { cpuUs: [], perSecond: [] },
    };
    await withChildren(Object.values(nodes), async () => {
      const options = { ...PLAIN_NODE, poolBytes: BLOCK_COUNT * PLAIN_NODE.blockBytes };
      await nodes.off.call('start', options);
      const { kvEventsPort = 0 } = await nodes.on.call('start', {
        ...options,
        kvEventsPort: 0,
        kvEventsReplayPort: 0,
        kvEventsModel: 'm',
        kvEventsSettleMs: 86_400_000,
        kvEventsResubscribeMs: 86_400_000,
      });
      const subscriber = new Subscriber({ context: new Context(), linger: 0, receiveHighWaterMark: 0 });
      subscriber.connect(`tcp://127.0.0.1:${kvEventsPort}`);
      subscriber.subscribe('kv@');
      const reading = (async () => {
        for await (const frames of subscriber) if (frames.length !== 3) throw new Error('no batch');
      })();
      try {
        let next = 0;
        const round = async (name: keyof typeof nodes): Promise<void> => {
          const before = await nodes[name].call('cpu');
          const startMs = performance.now();
          await nodes[name].call('storeDescribed', next, BLOCK_COUNT);
          const elapsedMs = performance.now() - startMs;
          const after = await nodes[name].call('cpu');
          measured[name].cpuUs.push((after.mainNs - before.mainNs) / 1000 / BLOCK_COUNT);
          measured[name].perSecond.push((BLOCK_COUNT * 1000) / elapsedMs);
        };
        for (let i = -2; i < rounds; i += 1) {
          for (const name of i % 2 === 0 ? (['on', 'off'] as const) : (['off', 'on'] as const))
            await round(name);
          next += BLOCK_COUNT;
          // The first two fill the pools and warm up.
          if (i < 0)
            for (const { cpuUs, perSecond } of Object.values(measured)) cpuUs.length = perSecond.length = 0;
        }
      } finally {
        subscriber.close();
        await reading;
      }
    });
    const { on, off } = measured;
    rows.measured(
      'events.mainCpuUs',
      on.cpuUs.map((us, i) => us - off.cpuUs[i]),
      'us',
    );
    rows.measured('events.mainCpuOffUs', off.cpuUs, 'us');
    rows.measured(
      'events.rateOnOff',
      on.perSecond.map((rate, i) => rate / off.perSecond[i]),
      'x',
    );
    rows.measured('events.perSecond', on.perSecond, '1/s');
  },
};
