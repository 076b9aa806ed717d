// The socket side of a producer without kvpeer: a ROUTER, a DEALER per client, the handshake. What it answers to a
// lookup is up to the benchmark.

import { Context, Dealer, Router } from 'zeromq';

import { makeIncarnation } from '../../src/main/identity.js';
import { WIRE_VERSION } from '../../src/main/protocol/messages.js';
import { writeConnect, writeConnectAck } from '../../src/main/protocol/write.js';
import { SendQueue } from './send-queue.js';

/** `type` is the first field of what our clients send: its value begins at this byte of the message. */
const TYPE_AT = 7;
const LOOKUP = Buffer.from('lookup');
const CONNECT_ACK = Buffer.from('connect_ack');
const CONNECT = Buffer.from('connect');

export type Reply = (frame: Buffer) => void;

export class PlainProducer {
  readonly #context = new Context({ maxSockets: 4096 });
  readonly #router = new Router({ context: this.#context, linger: 0, handover: true });
  readonly #replies = new Map<string, Reply>();
  readonly #onLookup: (payload: Buffer, reply: Reply) => void;
  #address = '';

  constructor(onLookup: (payload: Buffer, reply: Reply) => void) {
    this.#onLookup = onLookup;
  }

  async start(): Promise<string> {
    await this.#router.bind('tcp://127.0.0.1:*');
    this.#address = (this.#router.lastEndpoint ?? '').replace('tcp://', '');
    void this.#receive();
    return this.#address;
  }

  async #receive(): Promise<void> {
    for (;;) {
      const [identity, payload] = await this.#router.receive();
      const from = identity.toString('latin1');
      const reply = this.#replies.get(from);
      if (reply !== undefined && isType(payload, LOOKUP)) this.#onLookup(payload, reply);
      else if (isType(payload, CONNECT) && !isType(payload, CONNECT_ACK)) this.#welcome(from);
    }
  }

  #welcome(from: string): void {
    const dealer = new Dealer({ context: this.#context, linger: 0, routingId: this.#address });
    dealer.connect(`tcp://${from}`);
    const queue = new SendQueue(dealer);
    queue.send(
      writeConnect({
        peerId: this.#address,
        agentMetadata: Buffer.from('none'),
        baseAddr: 0,
        numBlocks: 1,
        blockLen: 4096,
        configFingerprint: '',
        hashSeed: 'vllm-none-hash',
        kvpeer: { version: WIRE_VERSION, incarnation: makeIncarnation(), features: ['round_seq'] },
      }),
    );
    queue.send(writeConnectAck(this.#address));
    this.#replies.set(from, (frame) => {
      queue.send(frame);
    });
  }
}

function isType(payload: Buffer, type: Buffer): boolean {
  return payload.compare(type, 0, type.length, TYPE_AT, TYPE_AT + type.length) === 0;
}
