// Where does a fetch's time go at the producer? Each step by itself, hot, on real messages, a real index and real NIXL.
//
//     fetch -> parse (main) -> resolve, build (worker: slots by the lease, sorted pairs) -> post, poll (NIXL) -> answer (main)

import { DEFAULT_LIMITS } from '../src/main/protocol/limits.js';
import { scan } from '../src/main/protocol/scan.js';
import { writeFetch, writeTransferDone } from '../src/main/protocol/write.js';
import { REPLAY_KEY_BYTES } from '../src/main/cli/replay/keys.js';
import type { Load } from './processes/load.js';
import type { Writer } from './processes/writer.js';
import type { Bench, Section } from './rows.js';
import { nanosecondsOf } from './rows.js';
import { blockShape } from './serve.js';
import type { ShapeName } from './serve.js';
import { Child, withChildren } from './support/child.js';
import { KEY_BYTES, benchKeys } from './support/keys.js';
import { SmallPool } from './support/small-pool.js';

const SHAPES: readonly ShapeName[] = ['512x64k', '64x1m', '4096x4k'];
const CALLS = 50;

const callsUs = (rounds: number, call: () => void): number[] =>
  Array.from({ length: rounds }, () => {
    const ns = nanosecondsOf(() => {
      for (let i = 0; i < CALLS; i++) call();
    });
    return ns / 1000 / CALLS;
  });

function onMain({ rows }: Bench, name: ShapeName, rounds: number): void {
  const { blockCount } = blockShape(name);
  const indexes = Int32Array.from({ length: blockCount }, (_, i) => i);
  const frame = writeFetch('split', benchKeys(0, blockCount), KEY_BYTES, indexes, 0);
  callsUs(5, () => scan(frame, DEFAULT_LIMITS));
  const parseUs = callsUs(rounds, () => scan(frame, DEFAULT_LIMITS));
  rows.measured(`fetch.split.${name}.parseUs`, parseUs, 'us');
  const pool = new SmallPool(4 * blockCount, 2);
  const keys = new Uint8Array(blockCount * REPLAY_KEY_BYTES);
  const words = new Int32Array(keys.buffer);
  for (let i = 0; i < blockCount; i++) words[(i * REPLAY_KEY_BYTES) / 4] = i + 1;
  pool.request(keys, blockCount);
  const resolveUs = pool.resolveNs(keys, blockCount, 10 * rounds).map((ns) => ns / 1000);
  rows.measured(`fetch.split.${name}.resolveUs`, resolveUs, 'us');
}

export const serveSplitBench: Section = {
  group: 'serve',
  title: 'the steps of a fetch at the producer',
  goals: [],
  prefixes: ['fetch.split.'],
  async run(bench) {
    const { rows, isQuick } = bench;
    const rounds = isQuick ? 5 : 15;
    rows.measured(
      'fetch.split.answerUs',
      callsUs(rounds, () => writeTransferDone('split', true, 0)),
      'us',
    );
    for (const name of isQuick ? SHAPES.slice(0, 1) : SHAPES) {
      onMain(bench, name, rounds);
      const { blockCount: numBlocks, blockBytes } = blockShape(name);
      const client = new Child<Load>('load');
      const writer = new Child<Writer>('writer');
      await withChildren([client, writer], async () => {
        const { metadata, baseAddr } = await client.call('openMemory', { numBlocks, blockBytes });
        await writer.call('start', { numBlocks, blockBytes });
        await writer.call('addPeer', metadata, baseAddr, numBlocks);
        for (const order of ['scattered', 'consecutive'] as const) {
          await writer.call('write', numBlocks, order, 3);
          const split = await writer.call('split', numBlocks, order, 3 * rounds);
          for (const [step, us] of Object.entries(split))
            rows.figure(`fetch.split.${name}.${order}.${step}`, us as number, 'us', 3 * rounds);
        }
      });
    }
  },
};
