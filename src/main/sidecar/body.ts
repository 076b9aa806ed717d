// A request's body as a whole, for the legs that must be rewritten: scanned while it arrives, and never copied.

import type { IncomingMessage } from 'node:http';
import { JsonFault, JsonScan, type JsonObject } from './json-scan.js';

/** Bytes in the pieces in which they arrived. What is taken out is borrowed, unless it goes over the end of a piece. */
export class Body {
  readonly #pieces: Buffer[] = [];
  readonly #starts: number[] = [];
  #byteLength = 0;

  static of(...pieces: readonly Buffer[]): Body {
    const body = new Body();
    for (const piece of pieces) body.push(piece);
    return body;
  }

  get byteLength(): number {
    return this.#byteLength;
  }

  push(piece: Buffer): void {
    if (piece.length === 0) return;
    this.#pieces.push(piece);
    this.#starts.push(this.#byteLength);
    this.#byteLength += piece.length;
  }

  pieces(start = 0, end = this.#byteLength): Buffer[] {
    const found: Buffer[] = [];
    for (let i = this.#indexOf(start); i < this.#pieces.length && this.#starts[i] < end; i++) {
      const from = Math.max(0, start - this.#starts[i]);
      const piece = this.#pieces[i].subarray(from, end - this.#starts[i]);
      if (piece.length > 0) found.push(piece);
    }
    return found;
  }

  slice(start: number, end: number): Buffer {
    return joined(this.pieces(start, end));
  }

  text(start: number, end: number): string {
    return this.slice(start, end).toString('utf8');
  }

  /** The piece that has a byte. */
  #indexOf(offset: number): number {
    let low = 0;
    let high = this.#starts.length;
    while (high - low > 1) {
      const middle = (low + high) >>> 1;
      if (this.#starts[middle] <= offset) low = middle;
      else high = middle;
    }
    return low;
  }
}

export function joined(pieces: readonly Buffer[]): Buffer {
  return pieces.length === 1 ? pieces[0] : Buffer.concat(pieces);
}

/** There is nobody to answer. */
export class ClientLeft extends Error {
  override readonly name = 'ClientLeft';

  constructor() {
    super('the client left before its body was complete');
  }
}

export interface JsonBody {
  readonly body: Body;
  readonly object: JsonObject;
}

/** Reads a body that must be one JSON object. @throws JsonFault as soon as it is none, with the rest unread */
export async function readJson(request: IncomingMessage): Promise<JsonBody> {
  const body = new Body();
  const scan = new JsonScan();
  await forEachPiece(request, (piece) => {
    scan.push(piece);
    body.push(piece);
  });
  return { body, object: scan.end() };
}

/** Reads a body of any kind. @returns without an object for what is no JSON object */
export async function readAny(
  request: IncomingMessage,
): Promise<{ readonly body: Body; readonly object: JsonObject | undefined }> {
  const body = new Body();
  let scan: JsonScan | undefined = new JsonScan();
  await forEachPiece(request, (piece) => {
    body.push(piece);
    if (scan !== undefined && faultOf(scan, piece) !== undefined) scan = undefined;
  });
  return { body, object: endOf(scan) };
}

function faultOf(scan: JsonScan, piece: Buffer): JsonFault | undefined {
  try {
    scan.push(piece);
    return undefined;
  } catch (error) {
    if (error instanceof JsonFault) return error;
    throw error;
  }
}

function endOf(scan: JsonScan | undefined): JsonObject | undefined {
  try {
    return scan?.end();
  } catch (error) {
    if (error instanceof JsonFault) return undefined;
    throw error;
  }
}

/** By events: an iterator that is left early would end the connection, and with it the answer. */
function forEachPiece(request: IncomingMessage, take: (piece: Buffer) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const takeOrFail = (piece: Buffer): void => {
      try {
        take(piece);
      } catch (error) {
        request.off('data', takeOrFail);
        reject(error instanceof Error ? error : new Error(String(error)));
      }
    };
    request.on('data', takeOrFail);
    request.once('end', resolve);
    request.once('close', () => {
      reject(new ClientLeft());
    });
  });
}

/** Whether the client announced any body. */
export function hasBody(request: IncomingMessage): boolean {
  const { 'content-length': length, 'transfer-encoding': encoding } = request.headers;
  return encoding !== undefined || (length !== undefined && length !== '0');
}

/** A body that came without a length leaves without one. */
export function isChunked(request: IncomingMessage): boolean {
  return request.headers['transfer-encoding'] !== undefined;
}
