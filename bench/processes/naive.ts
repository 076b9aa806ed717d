// The design one would write first: the main thread decodes every message into objects, a worker holds a Map by hex
// key, every lookup is one piscina.run.

import { decode, encode } from '@msgpack/msgpack';
import { Piscina } from 'piscina';

import { serveCalls } from '../support/child.js';
import type { CpuTimes } from '../support/cpu.js';
import { cpuTimes } from '../support/cpu.js';
import type { Reply } from '../support/plain-producer.js';
import { PlainProducer } from '../support/plain-producer.js';

interface DecodedLookup {
  readonly kv_request_id: string;
  readonly keys: Uint8Array[];
  readonly round_seq: number;
}

/** The methods that the parent calls. */
export class Naive {
  readonly #pool = new Piscina({
    filename: new URL('./naive-worker.js', import.meta.url).href,
    minThreads: 1,
    maxThreads: 1,
    idleTimeout: Infinity,
  });
  readonly #producer = new PlainProducer((payload, reply) => void this.#answer(payload, reply));

  async start(blockCount: number): Promise<string> {
    await this.#pool.run(blockCount, { name: 'hold' });
    return this.#producer.start();
  }

  cpu(): CpuTimes {
    return cpuTimes();
  }

  async #answer(payload: Buffer, reply: Reply): Promise<void> {
    const { kv_request_id, keys, round_seq } = decode(payload) as DecodedLookup;
    const hits = (await this.#pool.run(keys, { name: 'find' })) as boolean[];
    const answer = encode({ type: 'lookup_resp', kv_request_id, keys, hits, round_seq });
    reply(Buffer.from(answer.buffer, answer.byteOffset, answer.length));
  }
}

serveCalls(new Naive());
