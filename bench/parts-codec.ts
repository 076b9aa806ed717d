// What does it cost to read a lookup and to write its answer: kvpeer's scanner and writer, @msgpack/msgpack, msgpackr?

import { decode, encode } from '@msgpack/msgpack';
import { Packr } from 'msgpackr';

import { loadNative } from '../native/index.js';
import { DEFAULT_LIMITS } from '../src/main/protocol/limits.js';
import { HIT } from '../src/main/protocol/messages.js';
import { scan } from '../src/main/protocol/scan.js';
import { writeLookup, writeLookupResp } from '../src/main/protocol/write.js';
import type { Section } from './rows.js';
import { KEY_BYTES, benchKeys } from './support/keys.js';

interface DecodedLookup {
  readonly kv_request_id: string;
  readonly keys: readonly Uint8Array[];
  readonly round_seq: number;
}

export const codecBench: Section = {
  group: 'parts',
  title: 'codec of lookups',
  goals: [],
  prefixes: ['codec.'],
  run({ isQuick, rows }) {
    const native = loadNative();
    const packr = new Packr({ useRecords: false });
    const rounds = isQuick ? 5 : 11;
    for (const keyCount of isQuick ? [1024] : [16, 128, 1024, 8192]) {
      const frame = writeLookup('codec-1', benchKeys(0, keyCount), KEY_BYTES, 0, { ttlMs: 8000 });
      const message = scan(frame, DEFAULT_LIMITS);
      if (message.type !== 'lookup') throw new Error('a lookup does not scan');
      const flags = new Uint8Array(keyCount).fill(HIT);
      const decoded = decode(frame) as DecodedLookup;
      const { kv_request_id, keys, round_seq } = decoded;
      const answer = { type: 'lookup_resp', kv_request_id, keys, hits: keys.map(() => true), round_seq };
      const works: Readonly<Record<string, () => unknown>> = {
        'read.kvpeer': () => scan(frame, DEFAULT_LIMITS),
        'read.msgpack': () => decode(frame),
        'read.msgpackr': () => packr.unpack(frame) as unknown,
        'answer.kvpeer': () => writeLookupResp('codec-1', message.keys, flags, { roundSeq: 0 }),
        'answer.msgpack': () => encode(answer),
        'answer.msgpackr': () => packr.pack(answer),
      };
      const calls = Math.max(40, Math.round(200_000 / keyCount));
      const samples = new Map<string, number[]>(Object.keys(works).map((name) => [name, []]));
      for (let round = -3; round < rounds; round++) {
        for (const [name, work] of Object.entries(works)) {
          const start = native.threadCpuNs();
          for (let i = 0; i < calls; i++) work();
          if (round >= 0) samples.get(name)?.push((native.threadCpuNs() - start) / 1000 / calls);
        }
      }
      for (const [name, us] of samples) rows.measured(`codec.${keyCount}.${name}Us`, us, 'us');
    }
  },
};
