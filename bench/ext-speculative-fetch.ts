// What does it bring to fetch blocks without a lookup before, when the caller knows that the source holds them?
//
// Two consumers pull the same blocks from one source in turns: one does not announce the extension and looks up first.
// Half held: the source has the first half of the blocks only, and the other half is asked for, and reserved, in vain.

import { FEATURES } from '../src/main/protocol/messages.js';
import type { BenchNode } from './processes/node.js';
import type { Section } from './rows.js';
import { quantile } from './stats.js';
import { Child, withChildren } from './support/child.js';
import { poolBytesFor } from './support/nodes.js';

const FORMS = ['without', 'with'] as const;
type Form = (typeof FORMS)[number];

const BLOCK_BYTES = 64 * 1024;
const HELD = 1024;
const COUNTS = [1, 16, 128, 512] as const;
const QUANTILES = { p50: 0.5, p99: 0.99 } as const;

export const speculativeFetchBench: Section = {
  group: 'ext',
  title: 'fetches without a lookup before',
  goals: [],
  prefixes: ['ext.speculativeFetch.'],
  async run({ isQuick, rows }) {
    const rounds = isQuick ? 5 : 9;
    const source = new Child<BenchNode>('node');
    const consumers = { with: new Child<BenchNode>('node'), without: new Child<BenchNode>('node') };
    await withChildren([source, ...Object.values(consumers)], async () => {
      const options = {
        dataPlane: 'nixl',
        blockBytes: BLOCK_BYTES,
        peerPinShare: 1,
        allPeersPinShare: 1,
        poolBytes: poolBytesFor(HELD, BLOCK_BYTES),
      } as const;
      const { address } = await source.call('start', options);
      await source.call('store', 0, HELD);
      for (const form of FORMS) {
        const features = FEATURES.filter((feature) => form === 'with' || feature !== 'speculative_fetch');
        await consumers[form].call('start', { ...options, features });
        await consumers[form].call('connect', address);
      }
      for (const blockCount of COUNTS) {
        for (const share of blockCount === 1 ? (['all'] as const) : (['all', 'half'] as const)) {
          const heldCount = share === 'all' ? blockCount : blockCount / 2;
          const pull = (form: Form, count: number): Promise<Float64Array> =>
            consumers[form].call('pulls', {
              ...{ source: address, first: HELD - heldCount, blockCount, heldCount, rounds: count },
              expectsHeld: form === 'with',
            });
          const perRound = Math.ceil((isQuick ? 2_000 : 6_000) / (100 + 2 * blockCount));
          const all: Record<Form, number[]> = { with: [], without: [] };
          const ratios: number[] = [];
          for (const form of FORMS) await pull(form, perRound);
          for (let round = 0; round < rounds; round++) {
            const medians: Partial<Record<Form, number>> = {};
            for (const form of round % 2 === 0 ? FORMS : [...FORMS].reverse()) {
              const times = await pull(form, perRound);
              all[form].push(...times);
              medians[form] = quantile(times, 0.5);
            }
            ratios.push((medians.with ?? NaN) / (medians.without ?? NaN));
          }
          const prefix = `ext.speculativeFetch.${blockCount}x64k.${share}`;
          for (const form of FORMS) {
            for (const [name, q] of Object.entries(QUANTILES)) {
              rows.figure(`${prefix}.${name}.${form}Ms`, quantile(all[form], q), 'ms', all[form].length);
            }
          }
          rows.measured(`${prefix}.vsWithout`, ratios);
        }
      }
    });
  },
};
