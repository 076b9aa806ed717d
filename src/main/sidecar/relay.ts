// Hands a model server's answer to the client: at once where it is a stream, with the client's own pace.

import type { ServerResponse } from 'node:http';
import { responseHeaders, type RawHeaders } from './headers.js';

/**
 * A body of known length that is no event stream is held back until it is complete or so long: when the model server
 * breaks off before that, the client still gets a proper error. The reference does not flush those either.
 */
const HELD_BYTES = 64 * 1024;
/**
 * What may wait for one client. Node's own mark of 16 KiB is less than one read from a model server: each would stop the
 * next until it is written.
 */
const IN_FLIGHT_BYTES = 256 * 1024;
const NO_BYTES = Buffer.alloc(0);

/** One answer on its way to the client. */
export class Relay {
  readonly #response: ServerResponse;
  #held: Buffer[] = [];
  #heldBytes = 0;
  #head: { readonly status: number; readonly headers: string[] } | undefined;
  #resume: () => void = () => undefined;
  #isPaused = false;

  constructor(response: ServerResponse) {
    this.#response = response;
    response.on('drain', () => {
      if (!this.#isPaused) return;
      this.#isPaused = false;
      this.#resume();
    });
  }

  /** True once the client has got a part of the answer. */
  get hasBegun(): boolean {
    return this.#response.headersSent;
  }

  /** @param isClosing the connection is to end with this answer */
  head(status: number, raw: RawHeaders, resume: () => void, isClosing: boolean): void {
    const headers = responseHeaders(raw, status);
    if (isClosing) headers.push('connection', 'close');
    this.#head = { status, headers };
    this.#resume = resume;
    if (!isHeld(headers)) this.#release();
  }

  /** @returns false when the client is slower than the model server */
  data(chunk: Buffer): boolean {
    if (this.hasBegun) return this.#write(chunk);
    this.#held.push(chunk);
    this.#heldBytes += chunk.length;
    return this.#heldBytes < HELD_BYTES || this.#release();
  }

  end(trailers: RawHeaders): void {
    if (!this.hasBegun) this.#release();
    if (trailers.length > 0) this.#response.addTrailers(pairsOf(trailers));
    this.#response.end();
  }

  /** The model server broke off after the client had got a part: the client must not take it for the whole. */
  cut(): void {
    this.#response.destroy();
  }

  #release(): boolean {
    if (this.#head === undefined) return true;
    const { status, headers } = this.#head;
    this.#response.writeHead(status, headers);
    // Sends the head; `flushHeaders` would encode its bytes above 0x7f once more.
    if (this.#held.length === 0) return this.#write(NO_BYTES);
    const body = Buffer.concat(this.#held.splice(0));
    return this.#write(body);
  }

  #write(chunk: Buffer): boolean {
    if (this.#response.write(chunk) || this.#response.writableLength < IN_FLIGHT_BYTES) return true;
    this.#isPaused = true;
    return false;
  }
}

function isHeld(headers: readonly string[]): boolean {
  let hasLength = false;
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const name = headers[i].toLowerCase();
    if (name === 'content-length') hasLength = true;
    else if (name === 'content-type' && /^text\/event-stream\b/i.test(headers[i + 1])) return false;
  }
  return hasLength;
}

function pairsOf(raw: RawHeaders): [string, string][] {
  const pairs: [string, string][] = [];
  for (let i = 0; i + 1 < raw.length; i += 2) pairs.push([raw[i], raw[i + 1]]);
  return pairs;
}
