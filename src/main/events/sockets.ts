// The two sockets of KV events: the publisher that every router dials, and the ROUTER that answers replays.

import { isIPv6 } from 'node:net';

import type { Logger } from 'pino';
import { Context, Router, XPublisher } from 'zeromq';

import { KvpeerError } from '../errors.js';
import type { NumberedBatch } from './numbering.js';
import { Replays, sequenceFrame } from './replays.js';

export interface EventSocketsOptions {
  readonly host: string;
  /** 0 takes a free one. */
  readonly port: number;
  /** Undefined: no replay. */
  readonly replayPort: number | undefined;
  readonly topic: string;
  readonly log: Logger;
  /** A router has subscribed. */
  readonly onSubscribed: () => void;
  /** Batches of a replay, from a number on. */
  readonly replay: (from: number) => readonly NumberedBatch[];
}

/**
 * Batches that wait for a subscriber which reads slowly, and for a client of a replay. Beyond the first a subscriber
 * misses some, as with vLLM's publisher, and sees the gap in the numbers; beyond the second an answer waits.
 */
const SEND_HIGH_WATER_MARK = 10_000;
const REPLAY_HIGH_WATER_MARK = 256;
/**
 * A connection over which nothing was taken for so long ends, and what waits for it is freed: a subscriber that stood
 * still dials again when it goes on, and is told what is here, by replay or by the numbering that begins again.
 */
const UNREAD_MS = 30_000;
/** Time for what is sent last, when the node closes. */
const LINGER_MS = 200;
const SUBSCRIBE = 1;

export class EventSockets {
  readonly #options: EventSocketsOptions;
  readonly #context = new Context();
  /** On the wire a PUB; it also tells when a router subscribes. */
  readonly #publisher: XPublisher;
  readonly #replies: Router | undefined;
  readonly #replays: Replays | undefined;
  readonly #topic: Buffer;
  readonly #unsent: NumberedBatch[] = [];
  readonly #pumps: Promise<void>[] = [];
  #sending: Promise<void> | undefined;
  #isClosed = false;

  constructor(options: EventSocketsOptions) {
    this.#options = options;
    this.#topic = Buffer.from(options.topic);
    const common = {
      context: this.#context,
      ipv6: isIPv6(options.host),
      tcpKeepalive: 1,
      tcpMaxRetransmitTimeout: UNREAD_MS,
      // Never throttled: see control/router.ts on what libzmq 4.3.5 does when a throttled connection breaks.
      receiveHighWaterMark: 0,
    };
    this.#publisher = new XPublisher({
      ...common,
      linger: LINGER_MS,
      sendHighWaterMark: SEND_HIGH_WATER_MARK,
      verbosity: 'allSubs',
      maxMessageSize: 1024,
    });
    if (options.replayPort !== undefined) {
      // A ROUTER drops beyond its mark in silence, and a replay with a hole counts as none: this one says so instead.
      this.#replies = new Router({
        ...common,
        linger: LINGER_MS,
        mandatory: true,
        sendTimeout: 0,
        sendHighWaterMark: REPLAY_HIGH_WATER_MARK,
        maxMessageSize: 1024,
      });
      const { log, replay } = options;
      this.#replays = new Replays(this.#replies, { topic: this.#topic, log, replay });
    }
  }

  get replayCount(): number {
    return this.#replays?.answeredCount ?? 0;
  }

  get refusedReplayCount(): number {
    return this.#replays?.refusedCount ?? 0;
  }

  get abandonedReplayCount(): number {
    return this.#replays?.abandonedCount ?? 0;
  }

  /** @returns the bound ports @throws KVPEER_BIND */
  async bind(): Promise<{ readonly port: number; readonly replayPort: number | undefined }> {
    const { port, replayPort } = this.#options;
    const bound = await this.#bind(this.#publisher, port, '--kv-events-port');
    this.#pumps.push(this.#watchSubscriptions());
    if (this.#replies === undefined || this.#replays === undefined || replayPort === undefined)
      return { port: bound, replayPort: undefined };
    const boundReplay = await this.#bind(this.#replies, replayPort, '--kv-events-replay-port');
    this.#pumps.push(this.#replays.run());
    return { port: bound, replayPort: boundReplay };
  }

  /** Three frames: topic, number, payload. Never waits for a subscriber. */
  publish(batch: NumberedBatch): void {
    if (this.#isClosed) return;
    this.#unsent.push(batch);
    this.#sending ??= this.#send();
  }

  async close(): Promise<void> {
    await this.#sending;
    this.#isClosed = true;
    this.#publisher.close();
    this.#replies?.close();
    await Promise.all([...this.#pumps, this.#replays?.close()]);
  }

  async #bind(socket: XPublisher | Router, port: number, flag: string): Promise<number> {
    const { host } = this.#options;
    const name = host === 'localhost' ? '127.0.0.1' : isIPv6(host) ? `[${host}]` : host;
    try {
      await socket.bind(`tcp://${name}:${port}`);
    } catch (cause) {
      const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'unknown';
      throw new KvpeerError(
        'KVPEER_BIND',
        `KV events cannot listen at ${name}:${port} (${code}); choose another ${flag} or --kv-events-host`,
        { cause },
      );
    }
    return Number(/:(\d+)$/.exec(socket.lastEndpoint ?? '')?.[1] ?? port);
  }

  async #send(): Promise<void> {
    try {
      for (let batch = this.#unsent.shift(); batch !== undefined; batch = this.#unsent.shift()) {
        await this.#publisher.send([this.#topic, sequenceFrame(batch.sequence), batch.payload]);
      }
    } catch (err) {
      if (!this.#isClosed) this.#options.log.error({ err }, 'KV events could not be sent');
    } finally {
      this.#sending = undefined;
    }
  }

  /** What subscribes to something else is no router of ours, and hears nothing. */
  #isOurs(prefix: Buffer): boolean {
    return this.#topic.subarray(0, prefix.length).equals(prefix);
  }

  async #watchSubscriptions(): Promise<void> {
    for await (const [frame] of this.#publisher) {
      if (frame[0] === SUBSCRIBE && this.#isOurs(frame.subarray(1))) this.#options.onSubscribed();
    }
  }
}
