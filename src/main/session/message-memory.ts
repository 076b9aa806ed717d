// Memory of messages that have arrived, given back as soon as they have been dealt with.
//
// zeromq.js hands a message over as memory of libzmq and reports its length to V8, which counts it once more: without
// this, 400 lookups of 1,024 keys bring on a full garbage collection, 5 to 15 ms of the main thread each.

import { loadNative } from '../../../native/index.js';

/** Smaller messages go with the next collection of the young generation. */
const MIN_BYTES = 4096;

/** The message is not used any more, and neither is any view of it: they are all empty afterwards. */
export function freeMessage(payload: Uint8Array): void {
  const { buffer } = payload;
  if (payload.length < MIN_BYTES || payload.length !== buffer.byteLength) return;
  if (buffer instanceof ArrayBuffer) loadNative().freeBytes(buffer);
}
