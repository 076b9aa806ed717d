// What does a partial fetch bring, when the source has lost some of the blocks between a lookup and its fetch?
//
// The lease of the lookup lapses, the source evicts blocks, then the fetch comes. With the extension the others arrive.
// Without it the fetch fails, and the engine recomputes all blocks, or somebody looks again and fetches what is left
// (`again`). Peers that load do the first; the second is the least that it would cost to get the same blocks.

import { setTimeout as delay } from 'node:timers/promises';

import { FEATURES } from '../src/main/protocol/messages.js';
import type { BenchNode } from './processes/node.js';
import type { Section } from './rows.js';
import { median } from './stats.js';
import { Child, withChildren } from './support/child.js';
import { poolBytesFor } from './support/nodes.js';

const FORMS = ['with', 'without', 'again'] as const;
type Form = (typeof FORMS)[number];

const BLOCKS = 512;
const BLOCK_BYTES = 64 * 1024;
/** Short, so that a round does not take 30 s; twice what a load takes. */
const LEASE_MS = 40;
const LOST = [1, 16] as const;
/** Pulls of a round in which nothing is lost. */
const WHOLE_PULLS = 10;

export const partialFetchBench: Section = {
  group: 'ext',
  title: 'fetches of which the source has lost some blocks',
  goals: [],
  prefixes: ['ext.partialFetch.'],
  async run({ isQuick, rows }) {
    const rounds = isQuick ? 5 : 11;
    const source = new Child<BenchNode>('node');
    const withIt = new Child<BenchNode>('node');
    const withoutIt = new Child<BenchNode>('node');
    const consumers = { with: withIt, without: withoutIt, again: withoutIt };
    await withChildren([source, withIt, withoutIt], async () => {
      const options = {
        dataPlane: 'nixl',
        blockBytes: BLOCK_BYTES,
        peerPinShare: 1,
        allPeersPinShare: 1,
        poolBytes: poolBytesFor(BLOCKS, BLOCK_BYTES),
      } as const;
      const { address } = await source.call('start', { ...options, leaseMs: LEASE_MS });
      await withIt.call('start', options);
      const features = FEATURES.filter((feature) => feature !== 'partial_fetch');
      await withoutIt.call('start', { ...options, features });
      for (const consumer of [withIt, withoutIt]) await consumer.call('connect', address);

      const once = async (form: Form, lostCount: number): Promise<{ ms: number; blocks: number }> => {
        const consumer = consumers[form];
        await source.call('store', 0, BLOCKS);
        await consumer.call('lookFor', address, 0, BLOCKS);
        while ((await source.call('stats')).pins > 0) await delay(LEASE_MS / 4);
        await source.call('evict', 0, lostCount);
        return consumer.call('loadLooked', 0, BLOCKS, form === 'again');
      };
      // When nothing is lost it may cost nothing.
      await source.call('store', 0, BLOCKS);
      const whole: Record<'with' | 'without', number[]> = { with: [], without: [] };
      const pull = { source: address, first: 0, blockCount: BLOCKS, heldCount: BLOCKS, expectsHeld: false };
      for (let round = -1; round < rounds; round++) {
        for (const form of round % 2 === 0
          ? (['with', 'without'] as const)
          : (['without', 'with'] as const)) {
          const times = await consumers[form].call('pulls', { ...pull, rounds: WHOLE_PULLS });
          if (round >= 0) whole[form].push(median(times));
        }
      }
      for (const form of ['with', 'without'] as const) {
        rows.measured(`ext.partialFetch.lost0.${form}Ms`, whole[form], 'ms');
      }
      rows.measured(
        'ext.partialFetch.lost0.vsWithout',
        whole.with.map((value, i) => value / whole.without[i]),
      );
      for (const lostCount of LOST) {
        const ms: Record<Form, number[]> = { with: [], without: [], again: [] };
        const blocks: Record<Form, number[]> = { with: [], without: [], again: [] };
        for (let round = -1; round < rounds; round++) {
          for (const form of round % 2 === 0 ? FORMS : [...FORMS].reverse()) {
            const result = await once(form, lostCount);
            if (round < 0) continue;
            ms[form].push(result.ms);
            blocks[form].push(result.blocks);
          }
        }
        const prefix = `ext.partialFetch.lost${lostCount}`;
        for (const form of FORMS) {
          rows.measured(`${prefix}.${form}Ms`, ms[form], 'ms');
          rows.measured(`${prefix}.${form}Blocks`, blocks[form], 'blocks');
        }
        const ratios = ms.with.map((value, i) => value / ms.again[i]);
        rows.measured(`${prefix}.vsAgain`, ratios);
      }
    });
  },
};
