// A peer made of two raw sockets: speaks the wire well or badly, as a test likes.

import { decode, encode } from '@msgpack/msgpack';
import { Dealer, Router } from 'zeromq';

import { freePort } from '../../helpers/free-port.js';

export type WireMessage = Readonly<Record<string, unknown>>;

/** What a `connect` must say beside the addresses; metadata that NIXL takes, from a node that lives. */
export interface WireIdentity {
  readonly agentMetadata: Uint8Array;
  readonly baseAddr: number;
  readonly numBlocks: number;
}

export class WirePeer {
  readonly address: string;
  readonly received: WireMessage[] = [];
  readonly #router: Router;
  readonly #dealer: Dealer;
  readonly #waiters = new Set<() => void>();
  readonly #pump: Promise<void>;

  static async open(target?: string): Promise<WirePeer> {
    const port = await freePort();
    const router = new Router({ handover: true, linger: 0 });
    await router.bind(`tcp://127.0.0.1:${port}`);
    const peer = new WirePeer(router, `127.0.0.1:${port}`);
    if (target !== undefined) peer.#dealer.connect(`tcp://${target}`);
    return peer;
  }

  private constructor(router: Router, address: string) {
    this.address = address;
    this.#router = router;
    this.#dealer = new Dealer({ routingId: address, linger: 0, sendHighWaterMark: 0 });
    this.#pump = this.#receive();
  }

  async send(message: WireMessage | Uint8Array): Promise<void> {
    await this.#dealer.send(message instanceof Uint8Array ? message : encode(message));
  }

  /** The first message, of those that came or come, for which the check holds. */
  async message(holds: (message: WireMessage) => boolean, timeoutMs = 10_000): Promise<WireMessage> {
    const end = performance.now() + timeoutMs;
    for (;;) {
      const found = this.received.find(holds);
      if (found) return found;
      const restMs = end - performance.now();
      if (restMs <= 0)
        throw new Error(`no such message; got ${this.received.map((m) => String(m.type)).join()}`);
      await new Promise<void>((resolve) => {
        const wake = (): void => {
          clearTimeout(timer);
          this.#waiters.delete(wake);
          resolve();
        };
        const timer = setTimeout(wake, restMs);
        this.#waiters.add(wake);
      });
    }
  }

  answer(type: string, kvRequestId: string): Promise<WireMessage> {
    return this.message((message) => message.type === type && message.kv_request_id === kvRequestId);
  }

  connectMessage({ agentMetadata, baseAddr, numBlocks }: WireIdentity): WireMessage {
    return {
      type: 'connect',
      peer_id: this.address,
      agent_metadata: agentMetadata,
      base_addr: baseAddr,
      num_blocks: numBlocks,
      block_len: 4096,
      config_fingerprint: '',
      hash_seed: 'vllm-none-hash',
    };
  }

  async handshake(identity: WireIdentity): Promise<void> {
    await this.send(this.connectMessage(identity));
    await this.message(({ type }) => type === 'connect_ack');
    await this.send({ type: 'connect_ack', peer_id: this.address });
  }

  async close(): Promise<void> {
    this.#dealer.close();
    this.#router.close();
    await this.#pump;
  }

  async #receive(): Promise<void> {
    for (;;) {
      try {
        const [, payload] = await this.#router.receive();
        this.received.push(decode(payload) as WireMessage);
      } catch (error) {
        if (this.#router.closed) return;
        throw error;
      }
      for (const wake of [...this.#waiters]) wake();
    }
  }
}
