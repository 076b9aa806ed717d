// Connections to model servers: one undici pool per origin, without time-outs on answers, and one call that sends a leg.

import { lookup as resolve, type LookupAddress } from 'node:dns';
import type { LookupFunction } from 'node:net';
import type { Duplex, Readable } from 'node:stream';
import { Pool, type Dispatcher } from 'undici';
import { headerLines, type RawHeaders } from './headers.js';

export interface UpstreamOptions {
  /** `--tls-insecure-skip-verify`. */
  readonly isVerified: boolean;
  /** `--max-idle-conns-per-host`: connections to one origin that are kept for later legs. */
  readonly maxIdlePerOrigin: number;
}

/** One origin's connections. */
interface Origin {
  readonly pool: Pool;
  runningCount: number;
}

export interface LegRequest {
  /** `http://host:port`. */
  readonly origin: string;
  readonly method: string;
  /** Path and query. */
  readonly path: string;
  readonly headers: string[];
  /** A stream without `contentLength` is sent chunked. */
  readonly body: Buffer | Readable | null;
  readonly contentLength?: string | undefined;
  /** Asks for another protocol on the connection, such as `websocket`. */
  readonly upgrade?: string | undefined;
}

/** What comes back. Exactly one of `onEnd`, `onError` and `onUpgrade` is called, last. */
export interface LegEvents {
  /** @param resume to be called after `onData` returned false */
  onHead(status: number, headers: RawHeaders, resume: () => void): void;
  /** @returns false to pause */
  onData(chunk: Buffer): boolean;
  onEnd(trailers: RawHeaders): void;
  onError(error: Error): void;
  onUpgrade?(status: number, headers: RawHeaders, socket: Duplex): void;
}

export interface RunningLeg {
  /** Ends the leg; its connection is closed. `onError` follows unless it had ended. */
  abort(): void;
}

/** Origins that are kept; the one that was used least recently goes. */
const MAX_ORIGINS = 1024;
const CONNECT_MS = 10_000;
/** Less than the 5 s after which uvicorn, which serves vLLM, closes an idle connection. */
const IDLE_MS = 4_000;
const MAX_HEAD_BYTES = 1 << 20;

const LOOPBACK: readonly LookupAddress[] = [
  { address: '127.0.0.1', family: 4 },
  { address: '::1', family: 6 },
];

/**
 * The model server of this host is found without asking anybody: names are resolved in the few threads that Node has for
 * it, and headers that name slow ones can keep them all busy.
 */
const lookup: LookupFunction = (hostname, options, callback) => {
  if (hostname !== 'localhost') resolve(hostname, options, callback);
  else if (options.all === true) callback(null, [...LOOPBACK]);
  else callback(null, LOOPBACK[0].address, LOOPBACK[0].family);
};

/** Pools by origin. */
export class Upstreams {
  readonly #origins = new Map<string, Origin>();
  readonly #options: UpstreamOptions;

  constructor(options: UpstreamOptions) {
    this.#options = options;
  }

  /** Sends a leg. Errors come through `events`, also those of connecting. */
  send(leg: LegRequest, events: LegEvents): RunningLeg {
    let origin: Origin;
    try {
      origin = this.#originOf(leg.origin);
    } catch (error) {
      const failed = new LegHandler(events, () => undefined);
      failed.onError(asError(error));
      return failed;
    }
    // A leg takes a free connection, and opens one only when all are busy: those that are kept are never more than the
    // legs that ran when the last of them began.
    const isKept = origin.runningCount++ < this.#options.maxIdlePerOrigin;
    const handler = new LegHandler(events, () => origin.runningCount--);
    const headers =
      leg.contentLength === undefined || leg.body === null || Buffer.isBuffer(leg.body)
        ? leg.headers
        : [...leg.headers, 'content-length', leg.contentLength];
    const options: Dispatcher.DispatchOptions = {
      path: leg.path,
      method: leg.method as Dispatcher.HttpMethod,
      headers,
      body: leg.body,
      ...(leg.upgrade === undefined ? {} : { upgrade: leg.upgrade }),
      ...(isKept || leg.upgrade !== undefined ? {} : { reset: true }),
    };
    try {
      origin.pool.dispatch(options, handler);
    } catch (error) {
      handler.onError(asError(error));
    }
    return handler;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#origins.values()].map(({ pool }) => pool.destroy()));
    this.#origins.clear();
  }

  #originOf(address: string): Origin {
    const known = this.#origins.get(address);
    if (known !== undefined) {
      this.#origins.delete(address);
      this.#origins.set(address, known);
      return known;
    }
    const pool = new Pool(address, {
      pipelining: 1,
      // A prefill may take minutes, and so may the pause between two tokens: only the client decides how long it waits.
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: IDLE_MS,
      maxHeaderSize: MAX_HEAD_BYTES,
      connect: {
        ...{ timeout: CONNECT_MS, rejectUnauthorized: this.#options.isVerified, lookup },
        // An address of this host where nobody listens says so at once; one that is slow to accept is the right one.
        ...(new URL(address).hostname === 'localhost' ? { autoSelectFamilyAttemptTimeout: CONNECT_MS } : {}),
      },
    });
    const origin = { pool, runningCount: 0 };
    this.#origins.set(address, origin);
    if (this.#origins.size > MAX_ORIGINS) this.#dropOldest();
    return origin;
  }

  #dropOldest(): void {
    const [[address, { pool }]] = this.#origins;
    this.#origins.delete(address);
    // Waits for its running requests.
    void pool.close();
  }
}

/** undici's handler for one leg. Guards against events after the end: an abort can cross an answer. */
class LegHandler implements Dispatcher.DispatchHandlers, RunningLeg {
  readonly #events: LegEvents;
  readonly #ended: () => void;
  #abort: (() => void) | undefined;
  #isAborted = false;
  #isOver = false;

  constructor(events: LegEvents, ended: () => void) {
    this.#events = events;
    this.#ended = ended;
  }

  abort(): void {
    this.#isAborted = true;
    this.#abort?.();
  }

  onConnect(abort: () => void): void {
    this.#abort = abort;
    if (this.#isAborted) abort();
  }

  onHeaders(status: number, headers: Buffer[], resume: () => void): boolean {
    // Informational answers are for us, not for the client: `expect` was answered here.
    if (status < 200) return true;
    const lines = textOf(headers);
    this.#events.onHead(status, lines, resume);
    if (hasNoBody(status) && announcesBody(lines)) {
      this.onComplete(null);
      this.abort();
    }
    return true;
  }

  onData(chunk: Buffer): boolean {
    return this.#events.onData(chunk);
  }

  onComplete(trailers: string[] | null): void {
    if (this.#end()) this.#events.onEnd(trailers === null ? [] : textOf(trailers));
  }

  onError(error: Error): void {
    if (this.#end()) this.#events.onError(error);
  }

  onUpgrade(status: number, headers: Buffer[] | string[] | null, socket: Duplex): void {
    if (this.#end()) this.#events.onUpgrade?.(status, textOf(headers ?? []), socket);
  }

  /** @returns false when it had ended before */
  #end(): boolean {
    if (this.#isOver) return false;
    this.#isOver = true;
    this.#ended();
    return true;
  }
}

/** Whatever its head says (RFC 9112, section 6.3): a 304 may well have the length of what it does not send. */
export function hasNoBody(status: number): boolean {
  return status === 204 || status === 304;
}

/** undici would wait for that body, and keep the connection for it. */
function announcesBody(headers: RawHeaders): boolean {
  return (
    headerLines(headers, 'transfer-encoding').length > 0 ||
    headerLines(headers, 'content-length').some((length) => length !== '0')
  );
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}

/** undici gives header lines as bytes; Node's server takes text of one byte per character. */
function textOf(headers: readonly (Buffer | string)[]): string[] {
  return headers.map((part) => (typeof part === 'string' ? part : part.toString('latin1')));
}

/** Whether nobody listens at the address, as the model server does while it starts. */
export function isRefused(error: unknown): boolean {
  if (error instanceof AggregateError) return error.errors.some(isRefused);
  return error instanceof Error && 'code' in error && error.code === 'ECONNREFUSED';
}
