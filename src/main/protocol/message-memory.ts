// Memory of messages, given back as soon as they have been dealt with: of those that have arrived, and of lookups that
// were answered.
//
// V8 learns the length of a message that JavaScript reads as memory outside of its heap: without this, a few hundred
// long ones bring on a full garbage collection, 5 to 15 ms of the main thread each.

import { loadNative } from '../../../native/index.js';
import type { IncomingMessage, KeyList } from './messages.js';
import { ReceivedKeys } from './received.js';

/** Smaller messages go with the next collection of the young generation. */
const MIN_BYTES = 4096;

/** The message of these keys is not used any more, and neither is any view of it: they are all empty afterwards. */
export function freeMessageOf(keys: KeyList): void {
  if (keys instanceof ReceivedKeys) keys.free();
  else freePayload(keys.payload);
}

/** A message that nobody will deal with. */
export function dropMessage(message: IncomingMessage): void {
  if (message.type === 'lookup') freeMessageOf(message.keys);
}

/** Its memory, if it has some of its own. */
export function freePayload(payload: Uint8Array): void {
  const { buffer } = payload;
  if (payload.length < MIN_BYTES || payload.length !== buffer.byteLength) return;
  if (buffer instanceof ArrayBuffer) loadNative().freeBytes(buffer);
}
