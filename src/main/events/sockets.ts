// The two sockets of KV events: the publisher that every router dials, and the ROUTER that answers replays.

import { isIPv6 } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';

import type { Logger } from 'pino';
import { Context, Router, XPublisher } from 'zeromq';

import { KvpeerError } from '../errors.js';
import type { NumberedBatch } from './numbering.js';

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

/** Batches that wait for a subscriber which reads slowly; beyond that it misses some, as with vLLM's publisher. */
const SEND_HIGH_WATER_MARK = 100_000;
/** Time for what is sent last, when the node closes. */
const LINGER_MS = 200;
/** Batches of a replay sent before the event loop gets its turn. */
const REPLAY_TURN = 256;
/** Replays answered in a burst, and so many a second: a router asks when it connects and after a gap. */
const REPLAY_BURST = 64;
const REPLAYS_PER_SECOND = 4;
const SUBSCRIBE = 1;
const SEQUENCE_BYTES = 8;
/** A number of -1 and an empty payload end a replay. */
const END_OF_REPLAY = Buffer.alloc(SEQUENCE_BYTES, 0xff);
const EMPTY = Buffer.alloc(0);

export class EventSockets {
  readonly #options: EventSocketsOptions;
  readonly #context = new Context();
  /** On the wire a PUB; it also tells when a router subscribes. */
  readonly #publisher: XPublisher;
  readonly #replies: Router | undefined;
  readonly #topic: Buffer;
  readonly #unsent: NumberedBatch[] = [];
  readonly #pumps: Promise<void>[] = [];
  #sending: Promise<void> | undefined;
  #isClosed = false;
  #replayCount = 0;
  #refusedReplayCount = 0;
  #replayTokens = REPLAY_BURST;
  #refilledMs = performance.now();

  constructor(options: EventSocketsOptions) {
    this.#options = options;
    this.#topic = Buffer.from(options.topic);
    const common = { context: this.#context, ipv6: isIPv6(options.host), tcpKeepalive: 1 };
    this.#publisher = new XPublisher({
      ...common,
      linger: LINGER_MS,
      sendHighWaterMark: SEND_HIGH_WATER_MARK,
      verbosity: 'allSubs',
      maxMessageSize: 1024,
    });
    if (options.replayPort !== undefined) {
      // Without a limit of its own: a ROUTER drops beyond it in silence, and a replay with a hole counts as none.
      this.#replies = new Router({
        ...common,
        linger: LINGER_MS,
        sendHighWaterMark: 0,
        maxMessageSize: 1024,
      });
    }
  }

  get replayCount(): number {
    return this.#replayCount;
  }

  get refusedReplayCount(): number {
    return this.#refusedReplayCount;
  }

  /** @returns the bound ports @throws KVPEER_BIND */
  async bind(): Promise<{ readonly port: number; readonly replayPort: number | undefined }> {
    const { port, replayPort } = this.#options;
    const bound = await this.#bind(this.#publisher, port, '--kv-events-port');
    this.#pumps.push(this.#watchSubscriptions());
    if (this.#replies === undefined || replayPort === undefined)
      return { port: bound, replayPort: undefined };
    const boundReplay = await this.#bind(this.#replies, replayPort, '--kv-events-replay-port');
    this.#pumps.push(this.#answerReplays(this.#replies));
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
    await Promise.all(this.#pumps);
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

  async #watchSubscriptions(): Promise<void> {
    for await (const [frame] of this.#publisher) {
      if (frame.length > 0 && frame[0] === SUBSCRIBE) this.#options.onSubscribed();
    }
  }

  async #answerReplays(socket: Router): Promise<void> {
    for await (const [identity, ...rest] of socket) {
      const start = rest.at(-1);
      if (rest.length > 2 || start?.length !== SEQUENCE_BYTES || !this.#mayReplay()) {
        this.#refusedReplayCount += 1;
        continue;
      }
      this.#replayCount += 1;
      try {
        await this.#answer(socket, identity, Number(start.readBigUInt64BE()));
      } catch (err) {
        if (this.#isClosed) return;
        this.#options.log.warn({ err }, 'a replay of KV events could not be sent');
      }
    }
  }

  async #answer(socket: Router, identity: Buffer, from: number): Promise<void> {
    let count = 0;
    for (const { sequence, payload } of this.#options.replay(from)) {
      await socket.send([identity, EMPTY, this.#topic, sequenceFrame(sequence), payload]);
      count += 1;
      if (count % REPLAY_TURN === 0) await nextTurn();
    }
    await socket.send([identity, EMPTY, EMPTY, END_OF_REPLAY, EMPTY]);
  }

  #mayReplay(): boolean {
    const nowMs = performance.now();
    const refill = ((nowMs - this.#refilledMs) / 1000) * REPLAYS_PER_SECOND;
    this.#replayTokens = Math.min(REPLAY_BURST, this.#replayTokens + refill);
    this.#refilledMs = nowMs;
    if (this.#replayTokens < 1) return false;
    this.#replayTokens -= 1;
    return true;
  }
}

function sequenceFrame(sequence: number): Buffer {
  const frame = Buffer.alloc(SEQUENCE_BYTES);
  frame.writeBigUInt64BE(BigInt(sequence));
  return frame;
}
