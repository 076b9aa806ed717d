// What zeromq.js alone costs: takes a lookup and sends as many bytes as its answer has. Nothing is read, nothing is
// looked up.

import { DEFAULT_LIMITS } from '../../src/main/protocol/limits.js';
import { HIT } from '../../src/main/protocol/messages.js';
import { scan } from '../../src/main/protocol/scan.js';
import { writeLookupResp } from '../../src/main/protocol/write.js';
import { serveCalls } from '../support/child.js';
import type { CpuTimes } from '../support/cpu.js';
import { cpuTimes } from '../support/cpu.js';
import { PlainProducer } from '../support/plain-producer.js';

/** The methods that the parent calls. */
export class Echo {
  /** By the length of the lookup; made once, for its size. */
  readonly #answers = new Map<number, Buffer>();
  readonly #producer = new PlainProducer((payload, reply) => {
    let answer = this.#answers.get(payload.length);
    if (answer === undefined) {
      answer = answerTo(payload);
      this.#answers.set(payload.length, answer);
    }
    reply(answer);
  });

  start(): Promise<string> {
    return this.#producer.start();
  }

  cpu(): CpuTimes {
    return cpuTimes();
  }
}

function answerTo(payload: Buffer): Buffer {
  const message = scan(payload, DEFAULT_LIMITS);
  if (message.type !== 'lookup') throw new Error(`an echo of ${message.type}`);
  const { kvRequestId, keys, lookupSeq } = message;
  const nobody = '-'.repeat(kvRequestId.length);
  return writeLookupResp(nobody, keys, new Uint8Array(keys.count).fill(HIT), { roundSeq: 0, lookupSeq });
}

serveCalls(new Echo());
