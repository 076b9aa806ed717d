// What do keys in one bin bring, against a list of bins?
//
// One producer, asked in turns by clients of either kind: what a lookup costs its main thread. And the round trip between
// two nodes: one consumer uses the extension, the other does not announce it.

import { FEATURES } from '../src/main/protocol/messages.js';
import type { Load } from './processes/load.js';
import type { BenchNode } from './processes/node.js';
import type { Section } from './rows.js';
import { quantile } from './stats.js';
import { Child, withChildren } from './support/child.js';
import { PLAIN_NODE, poolBytesFor } from './support/nodes.js';

const FORMS = ['list', 'packed'] as const;
type Form = (typeof FORMS)[number];

const BLOCKS = 262_144;
const OUTSTANDING = 16;
/** What is outstanding must not pin more than there is. */
const PER_REQUEST = 8;
const KEY_COUNTS = [128, 1024, 8192] as const;

export const packedKeysBench: Section = {
  group: 'ext',
  title: 'keys in one bin against a list of them',
  goals: [],
  prefixes: ['ext.packedKeys.'],
  async run({ isQuick, rows }) {
    const rounds = isQuick ? 5 : 9;
    const producer = new Child<BenchNode>('node');
    const consumers = { list: new Child<BenchNode>('node'), packed: new Child<BenchNode>('node') };
    const loads = { list: new Child<Load>('load'), packed: new Child<Load>('load') };
    const children = [producer, ...Object.values(consumers), ...Object.values(loads)];
    await withChildren(children, async () => {
      const poolBytes = poolBytesFor(BLOCKS, PLAIN_NODE.blockBytes);
      const { address: source } = await producer.call('start', { ...PLAIN_NODE, poolBytes });
      await producer.call('store', 0, BLOCKS);
      for (const form of FORMS) {
        const features = FEATURES.filter((feature) => form === 'packed' || feature !== 'packed_keys');
        await consumers[form].call('start', { ...PLAIN_NODE, poolBytes: 16 * 2 ** 20, features });
        await consumers[form].call('connect', source);
        await loads[form].call('connect', source, 1, form);
      }

      const mainCpuUs = async (form: Form, lookupCount: number): Promise<number> => {
        const before = await producer.call('cpu');
        const { hitShare } = await loads[form].call('closedLoop', {
          keyCount: 1024,
          heldCount: BLOCKS,
          lookupCount,
          outstanding: OUTSTANDING,
          lookupsPerRequest: PER_REQUEST,
        });
        if (hitShare !== 1) throw new Error(`${hitShare} of the keys were found`);
        return ((await producer.call('cpu')).mainNs - before.mainNs) / 1000 / lookupCount;
      };
      const perRound = isQuick ? 1000 : 2000;
      const cpu: Record<Form, number[]> = { list: [], packed: [] };
      for (const form of FORMS) await mainCpuUs(form, perRound);
      for (let round = 0; round < rounds; round++) {
        for (const form of inTurn(round)) cpu[form].push(await mainCpuUs(form, perRound));
      }
      for (const form of FORMS) rows.measured(`ext.packedKeys.1024.mainCpu.${form}Us`, cpu[form], 'us');
      rows.measured('ext.packedKeys.1024.mainCpu.vsList', ratios(cpu));

      for (const keyCount of KEY_COUNTS) {
        const p50: Record<Form, number[]> = { list: [], packed: [] };
        const ask = async (form: Form, count: number): Promise<number> =>
          quantile(
            await consumers[form].call('lookups', { source, keyCount, heldCount: BLOCKS, count }),
            0.5,
          );
        const count = Math.round(200_000 / (400 + keyCount));
        for (const form of FORMS) await ask(form, count * 2);
        for (let round = 0; round < rounds; round++) {
          for (const form of inTurn(round)) p50[form].push(await ask(form, count));
        }
        for (const form of FORMS) rows.measured(`ext.packedKeys.${keyCount}.p50.${form}Us`, p50[form], 'us');
        rows.measured(`ext.packedKeys.${keyCount}.p50.vsList`, ratios(p50));
      }
    });
  },
};

function inTurn(round: number): readonly Form[] {
  return round % 2 === 0 ? FORMS : [...FORMS].reverse();
}

function ratios({ list, packed }: Record<Form, readonly number[]>): number[] {
  return packed.map((value, i) => value / list[i]);
}
