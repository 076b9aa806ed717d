// Answers replays: one ROUTER, every client by itself, so that a flood or a frozen client costs nobody else anything.

import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

import type { Logger } from 'pino';
import type { Router } from 'zeromq';

import type { NumberedBatch } from './numbering.js';

/** The ROUTER as far as an answer needs it. Beyond a client's high-water mark `send` rejects with EAGAIN. */
export type ReplaySocket = Pick<Router, 'send'> & AsyncIterable<Buffer[]>;

export interface ReplaysOptions {
  readonly topic: Buffer;
  readonly log: Logger;
  /** Batches from a number on; the list does not change afterwards. */
  readonly replay: (from: number) => readonly NumberedBatch[];
  readonly nowMs?: () => number;
  /** Waits while no client takes anything. */
  readonly pause?: (ms: number) => Promise<unknown>;
}

/** A router asks when it connects and after a gap: so many in a burst, then so many a second, each client by itself. */
const CLIENT_BURST = 8;
const CLIENT_PER_SECOND = 1;
/** Clients whose requests are counted; then the one that asked longest ago is forgotten. */
const MAX_CLIENTS = 1024;
/** Answers under way at the same time. */
const MAX_ANSWERS = 64;
/** Batches of one answer before it is the next one's turn, and of all answers before it is the event loop's. */
const BATCHES_PER_ANSWER = 32;
const BATCHES_PER_TURN = 128;
/** A client that takes nothing for so long has given up: llm-d's router waits 2 s, three times. */
const STALLED_MS = 10_000;
/** Between two looks at clients that all have full queues. */
const FULL_PAUSE_MS = 5;
const SEQUENCE_BYTES = 8;
/** A number of -1 and an empty payload end a replay. */
const END_OF_REPLAY = Buffer.alloc(SEQUENCE_BYTES, 0xff);
const EMPTY = Buffer.alloc(0);

interface Client {
  tokens: number;
  refilledMs: number;
  /** Asked for while an answer is under way: it comes next. */
  next: number | undefined;
  isAnswered: boolean;
}

interface Answer {
  readonly name: string;
  readonly identity: Buffer;
  readonly client: Client;
  batches: readonly NumberedBatch[];
  sent: number;
  progressMs: number;
}

type Sent = 'sent' | 'full' | 'gone';

export class Replays {
  readonly #socket: ReplaySocket;
  readonly #options: ReplaysOptions;
  readonly #nowMs: () => number;
  readonly #pause: (ms: number) => Promise<unknown>;
  readonly #clients = new Map<string, Client>();
  readonly #answers: Answer[] = [];
  #sending: Promise<void> | undefined;
  #isClosed = false;
  #answeredCount = 0;
  #refusedCount = 0;
  #abandonedCount = 0;

  constructor(socket: ReplaySocket, options: ReplaysOptions) {
    this.#socket = socket;
    this.#options = options;
    this.#nowMs = options.nowMs ?? ((): number => performance.now());
    this.#pause = options.pause ?? ((ms) => sleep(ms, undefined, { ref: false }));
  }

  /** Requests that were taken. */
  get answeredCount(): number {
    return this.#answeredCount;
  }

  /** Requests that were malformed or too many. */
  get refusedCount(): number {
    return this.#refusedCount;
  }

  /** Answers that their client did not read to the end. */
  get abandonedCount(): number {
    return this.#abandonedCount;
  }

  /** Until the socket is closed. */
  async run(): Promise<void> {
    let handled = 0;
    for await (const frames of this.#socket) {
      this.#request(frames);
      handled += 1;
      // What has arrived is delivered without a turn of the event loop.
      if (handled % BATCHES_PER_TURN === 0) await nextTurn();
    }
  }

  /** After the socket was closed. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#sending;
  }

  #request([identity, ...rest]: readonly Buffer[]): void {
    const start = rest.at(-1);
    const isWellFormed = rest.length <= 2 && start?.length === SEQUENCE_BYTES;
    if (!isWellFormed) {
      this.#refusedCount += 1;
      return;
    }
    const name = identity.toString('latin1');
    const client = this.#clientOf(name);
    const isTooMany = client.isAnswered ? client.next !== undefined : this.#answers.length >= MAX_ANSWERS;
    if (isTooMany || !this.#mayAsk(client)) {
      this.#refusedCount += 1;
      return;
    }
    this.#answeredCount += 1;
    const from = Number(start.readBigUInt64BE());
    if (client.isAnswered) client.next = from;
    else this.#begin({ name, identity, client }, from);
  }

  #clientOf(name: string): Client {
    const known = this.#clients.get(name);
    const client = known ?? {
      tokens: CLIENT_BURST,
      refilledMs: this.#nowMs(),
      next: undefined,
      isAnswered: false,
    };
    this.#clients.delete(name);
    this.#clients.set(name, client);
    for (const [oldest, { isAnswered }] of this.#clients) {
      if (this.#clients.size <= MAX_CLIENTS) break;
      if (!isAnswered) this.#clients.delete(oldest);
    }
    return client;
  }

  #mayAsk(client: Client): boolean {
    const nowMs = this.#nowMs();
    const refill = ((nowMs - client.refilledMs) / 1000) * CLIENT_PER_SECOND;
    client.tokens = Math.min(CLIENT_BURST, client.tokens + refill);
    client.refilledMs = nowMs;
    if (client.tokens < 1) return false;
    client.tokens -= 1;
    return true;
  }

  #begin(to: Pick<Answer, 'name' | 'identity' | 'client'>, from: number): void {
    to.client.isAnswered = true;
    this.#answers.push({ ...to, batches: this.#options.replay(from), sent: 0, progressMs: this.#nowMs() });
    this.#sending ??= this.#sendAll();
  }

  /** A piece of each answer in turn, until none is left. */
  async #sendAll(): Promise<void> {
    let count = 0;
    /** Answers in a row whose client takes nothing. */
    let fullCount = 0;
    for (;;) {
      const answer = this.#answers.shift();
      if (answer === undefined || this.#isClosed) {
        // In the same breath: a request that comes next begins anew.
        this.#sending = undefined;
        return;
      }
      this.#answers.push(answer);
      const sent = await this.#sendPiece(answer);
      count += sent;
      fullCount = sent === 0 ? fullCount + 1 : 0;
      if (fullCount >= this.#answers.length) {
        await this.#pause(FULL_PAUSE_MS);
        fullCount = 0;
      } else if (count >= BATCHES_PER_TURN) {
        await nextTurn();
        count = 0;
      }
    }
  }

  /** @returns messages that were sent */
  async #sendPiece(answer: Answer): Promise<number> {
    const { batches } = answer;
    let count = 0;
    for (; count < BATCHES_PER_ANSWER; count += 1) {
      const batch = batches.at(answer.sent);
      const sent = await this.#send(answer.identity, batch);
      if (sent === 'gone') {
        this.#end(answer, true);
        return count;
      }
      if (sent === 'full') break;
      answer.progressMs = this.#nowMs();
      if (batch === undefined) {
        this.#end(answer, false);
        return count + 1;
      }
      answer.sent += 1;
    }
    if (count === 0 && this.#nowMs() - answer.progressMs > STALLED_MS) this.#end(answer, true);
    return count;
  }

  /** @param batch undefined: the end mark */
  async #send(identity: Buffer, batch: NumberedBatch | undefined): Promise<Sent> {
    const { topic, log } = this.#options;
    const frames =
      batch === undefined
        ? [identity, EMPTY, EMPTY, END_OF_REPLAY, EMPTY]
        : [identity, EMPTY, topic, sequenceFrame(batch.sequence), batch.payload];
    try {
      await this.#socket.send(frames);
      return 'sent';
    } catch (err) {
      const code = err instanceof Error && 'code' in err ? err.code : undefined;
      if (code === 'EAGAIN') return 'full';
      if (code !== 'EHOSTUNREACH' && !this.#isClosed)
        log.warn({ err }, 'a replay of KV events could not be sent');
      return 'gone';
    }
  }

  #end(answer: Answer, isAbandoned: boolean): void {
    const { client } = answer;
    this.#answers.splice(this.#answers.indexOf(answer), 1);
    client.isAnswered = false;
    const next = client.next;
    client.next = undefined;
    if (isAbandoned) this.#abandonedCount += 1;
    else if (next !== undefined) this.#begin(answer, next);
  }
}

/** The middle frame: an unsigned 64-bit number, big-endian. */
export function sequenceFrame(sequence: number): Buffer {
  const frame = Buffer.alloc(SEQUENCE_BYTES);
  frame.writeBigUInt64BE(BigInt(sequence));
  return frame;
}
