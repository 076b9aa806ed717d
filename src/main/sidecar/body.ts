// Reads a request's body as a whole, for the legs that must be rewritten.

import type { IncomingMessage } from 'node:http';

/** Memory is copied once at most: with a known length into place. */
export async function readBody(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return chunks.length === 1 ? chunks[0] : Buffer.concat(chunks);
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
