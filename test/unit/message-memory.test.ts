// Memory of messages is given back by hand: all of it, once, and nobody else's.

import { expect, test } from 'vitest';
import { loadNative } from '../../native/index.js';
import { freePayload } from '../../src/main/protocol/message-memory.js';

test('a message with memory of its own is empty afterwards, and doing it again does no harm', () => {
  const payload = Buffer.from(new ArrayBuffer(8192));
  freePayload(payload);
  expect(payload).toHaveLength(0);
  freePayload(payload);
});

test('a part of a larger buffer, a small message and shared memory are left alone', () => {
  const whole = Buffer.from(new ArrayBuffer(16_384));
  freePayload(whole.subarray(0, 8192));
  freePayload(whole.subarray(8192));
  expect(whole).toHaveLength(16_384);
  const small = Buffer.from(new ArrayBuffer(100));
  freePayload(small);
  expect(small).toHaveLength(100);
  const shared = new Uint8Array(new SharedArrayBuffer(8192));
  freePayload(shared);
  expect(shared).toHaveLength(8192);
});

test('natively, what is no ArrayBuffer is refused', () => {
  const native = loadNative();
  for (const value of [undefined, null, 1, 'x', {}, new Uint8Array(8), new SharedArrayBuffer(8)]) {
    expect(() => {
      native.freeBytes(value as ArrayBuffer);
    }).toThrow('freeBytes: buffer must be an ArrayBuffer');
  }
});
