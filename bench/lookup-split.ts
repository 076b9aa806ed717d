// Where does a lookup's time on the producer's main thread go? Each step by itself, on real messages and real workers.
//
//     receive (ZeroMQ) -> scan -> copy into the arena, ring -> [worker: match] -> completion -> answer -> send (ZeroMQ)
//
// `receive` and `send` together are `lookup.cpu.1024.echoUs`.

import { loadNative } from '../native/index.js';
import { DEFAULT_LIMITS } from '../src/main/protocol/limits.js';
import { HIT } from '../src/main/protocol/messages.js';
import type { LookupMessage } from '../src/main/protocol/messages.js';
import { scan } from '../src/main/protocol/scan.js';
import { writeLookup, writeLookupResp } from '../src/main/protocol/write.js';
import { createLogger } from '../src/main/observe/log.js';
import { submitForResult } from '../src/main/shards/promises.js';
import type { KeySpan, SlotSet } from '../src/main/shards/shard-client.js';
import { startShards } from '../src/main/shards/start.js';
import { validateOptions } from '../src/main/options.js';
import type { Section } from './rows.js';
import { KEY_BYTES, benchKeys, randomKeys } from './support/keys.js';
import { PLAIN_NODE, poolBytesFor } from './support/nodes.js';

const KEYS = 1024;
const OUTSTANDING = 16;

/** us of this thread's CPU per call, by round. */
function cpuUsOf(rounds: number, callsPerRound: number, call: (i: number) => void): number[] {
  const native = loadNative();
  return Array.from({ length: rounds + 1 }, () => {
    const start = native.threadCpuNs();
    for (let i = 0; i < callsPerRound; i++) call(i);
    return (native.threadCpuNs() - start) / 1000 / callsPerRound;
  }).slice(1);
}

export const lookupSplitBench: Section = {
  group: 'lookup',
  title: 'the steps of a lookup on the main thread',
  goals: [],
  prefixes: ['lookup.split.'],
  async run({ isQuick, rows }) {
    const blockCount = isQuick ? 65_536 : 262_144;
    const rounds = isQuick ? 5 : 15;
    const calls = 500;
    const frames = Array.from({ length: 64 }, (_, i) =>
      writeLookup(`split-${i}`, randomKeys(i + 1, KEYS, blockCount), KEY_BYTES, 0, { ttlMs: 8000 }),
    );
    const messages = frames.map(lookupOf);
    const hits = new Uint8Array(KEYS).fill(HIT);
    rows.measured(
      'lookup.split.scanUs',
      cpuUsOf(rounds, calls, (i) => scan(frames[i & 63], DEFAULT_LIMITS)),
      'us',
    );
    rows.measured(
      'lookup.split.answerUs',
      cpuUsOf(rounds, calls, (i) => {
        const { kvRequestId, keys } = messages[i & 63];
        writeLookupResp(kvRequestId, keys, hits, { roundSeq: 0 });
      }),
      'us',
    );

    const options = validateOptions({
      ...PLAIN_NODE,
      poolBytes: poolBytesFor(blockCount, PLAIN_NODE.blockBytes),
    });
    const shards = await startShards({ ...options, arenaBytes: undefined }, createLogger('error'));
    try {
      const { client } = shards;
      for (let first = 0; first < blockCount; first += 4096) {
        const bytes = benchKeys(first, 4096);
        const set = await submitForResult<SlotSet>('store', (done) => {
          client.reserve({ bytes, first: 0, stride: KEY_BYTES, count: 4096 }, done);
        });
        await new Promise<void>((resolve) => {
          client.publish(set, { keepPins: false }, () => {
            resolve();
          });
        });
      }
      /** Matches and releases, 16 under way. @returns us of this thread per match */
      const matches = async (count: number, spans: readonly KeySpan[]): Promise<number> => {
        const native = loadNative();
        const start = native.threadCpuNs();
        await new Promise<void>((resolve, reject) => {
          let asked = 0;
          let ended = 0;
          const next = (): void => {
            if (asked === count) return;
            client.match(spans[asked++ & 63], {}, (failure, set) => {
              if (failure !== undefined || set === undefined) {
                reject(new Error(`a match failed: ${failure?.code ?? ''}`));
                return;
              }
              client.release(set);
              ended += 1;
              if (ended === count) resolve();
              else next();
            });
          };
          for (let i = 0; i < OUTSTANDING; i++) next();
        });
        return (native.threadCpuNs() - start) / 1000 / count;
      };
      for (const [name, spans] of [
        ['lookup.split.matchAndReleaseUs', messages.map(({ keys }) => keys)],
        ['lookup.split.match16AndReleaseUs', messages.map(({ keys }) => ({ ...keys, count: 16 }))],
      ] as const) {
        await matches(calls, spans);
        const samples: number[] = [];
        for (let round = 0; round < rounds; round++) samples.push(await matches(calls * 2, spans));
        rows.measured(name, samples, 'us');
      }
    } finally {
      await shards.close();
    }
  },
};

function lookupOf(frame: Buffer): LookupMessage {
  const message = scan(frame, DEFAULT_LIMITS);
  if (message.type !== 'lookup') throw new Error('a lookup does not scan');
  return message;
}
