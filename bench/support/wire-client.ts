// A consumer on the wire and nothing else: it shakes hands, sends frames and tells what came back. It costs little, so
// that what is measured is the producer.

import type { Context } from 'zeromq';
import { Dealer, Router } from 'zeromq';

import { makeIncarnation } from '../../src/main/identity.js';
import { DEFAULT_LIMITS } from '../../src/main/protocol/limits.js';
import type { ScanResult } from '../../src/main/protocol/messages.js';
import { WIRE_VERSION } from '../../src/main/protocol/messages.js';
import { scan } from '../../src/main/protocol/scan.js';
import { writeConnect, writeConnectAck, writeDisconnect } from '../../src/main/protocol/write.js';
import { SendQueue } from './send-queue.js';

/** What the client announces as its memory. */
export interface AnnouncedMemory {
  readonly agentMetadata: Uint8Array;
  readonly baseAddr: number;
  readonly numBlocks: number;
  readonly blockBytes: number;
}

/** For producers with --data-plane none, and lookups only. */
export const NO_MEMORY: AnnouncedMemory = {
  agentMetadata: Buffer.from('none'),
  baseAddr: 0,
  numBlocks: 1,
  blockBytes: 4096,
};

const HANDSHAKE_MS = 20_000;
/** Longer than any pause in which the client is stopped. */
const HEARTBEAT = { heartbeatInterval: 10_000, heartbeatTimeout: 120_000, heartbeatTimeToLive: 120_000 };

export class WireClient {
  readonly address: string;
  /** The target takes keys in one bin. */
  packsKeys = false;
  /** Every message after the handshake. */
  onMessage: (message: ScanResult) => void = () => undefined;
  readonly #router: Router;
  readonly #dealer: Dealer;
  readonly #queue: SendQueue;
  readonly #ready: Promise<void>;
  #resolveReady: () => void = () => undefined;

  /** @param target host:port of the producer */
  static async connect(
    context: Context,
    target: string,
    memory: AnnouncedMemory = NO_MEMORY,
  ): Promise<WireClient> {
    const router = new Router({ context, linger: 0 });
    await router.bind('tcp://127.0.0.1:*');
    const client = new WireClient(context, router, target, memory);
    const timer = setTimeout(() => {
      throw new Error(`no handshake with ${target} within ${HANDSHAKE_MS} ms`);
    }, HANDSHAKE_MS);
    await client.#ready;
    clearTimeout(timer);
    return client;
  }

  private constructor(context: Context, router: Router, target: string, memory: AnnouncedMemory) {
    this.address = (router.lastEndpoint ?? '').replace('tcp://', '');
    this.#router = router;
    this.#dealer = new Dealer({ context, linger: 0, routingId: this.address, ...HEARTBEAT });
    this.#dealer.connect(`tcp://${target}`);
    this.#queue = new SendQueue(this.#dealer);
    this.#ready = new Promise((resolve) => {
      this.#resolveReady = resolve;
    });
    void this.#receive();
    const { agentMetadata, baseAddr, numBlocks, blockBytes } = memory;
    this.send(
      writeConnect({
        peerId: this.address,
        agentMetadata,
        baseAddr,
        numBlocks,
        blockLen: blockBytes,
        configFingerprint: '',
        hashSeed: 'vllm-none-hash',
        kvpeer: {
          version: WIRE_VERSION,
          incarnation: makeIncarnation(),
          keyBytes: DEFAULT_LIMITS.keyBytes,
          features: ['round_seq', 'ttl_ms', 'lookup_seq', 'packed_keys'],
        },
      }),
    );
  }

  send(frame: Buffer): void {
    this.#queue.send(frame);
  }

  async close(): Promise<void> {
    this.send(writeDisconnect());
    await this.#queue.whenEmpty();
    this.#dealer.close();
    this.#router.close();
  }

  async #receive(): Promise<void> {
    for await (const parts of this.#router) {
      const message = scan(parts[1], DEFAULT_LIMITS);
      if (message.type === 'connect') {
        this.packsKeys = message.kvpeer?.features.includes('packed_keys') === true;
        this.send(writeConnectAck(this.address));
      } else if (message.type === 'connect_ack') this.#resolveReady();
      else this.onMessage(message);
    }
  }
}
