// What a leg sends in place of the client's body, with a length where the client's had one.

import type { IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import { isChunked, joined, type Body, type JsonBody } from './body.js';
import { editJson, type JsonEdits } from './json-edit.js';
import { ParamsFilter } from './params-filter.js';

/** Without a length it is sent chunked, unless it is a buffer. */
export type LegBody = readonly [body: Buffer | Readable, contentLength?: string];

/** Larger bodies are sent in the pieces in which they came, instead of copying them for one write with their head. */
const JOINED_BYTES = 256 * 1024;

export function editedBody(request: IncomingMessage, { body, object }: JsonBody, edits: JsonEdits): LegBody {
  const pieces = editJson(body, object, edits);
  const byteLength = pieces.reduce((sum, { length }) => sum + length, 0);
  const whole = byteLength <= JOINED_BYTES ? [joined(pieces)] : pieces;
  if (isChunked(request)) return [Readable.from(whole)];
  return whole.length === 1 ? [whole[0]] : [Readable.from(whole), String(byteLength)];
}

/**
 * A body that is no JSON to us, filtered like one: engines read more than JSON. The filter keeps its length. The stream
 * fails with UnreadableBody for an encoding in which params could hide.
 */
export function bodyWithoutParams(request: IncomingMessage, body: Body): LegBody {
  const filtered = Readable.from(withoutParams(body));
  return isChunked(request) ? [filtered] : [filtered, String(body.byteLength)];
}

/** Piece by piece, as the leg takes them. */
function* withoutParams(body: Body): Generator<Buffer> {
  const filter = new ParamsFilter();
  for (const piece of body.pieces()) yield* filter.push(Buffer.from(piece));
  yield* filter.end();
}
