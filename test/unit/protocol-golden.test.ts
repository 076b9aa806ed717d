// Golden bytes: what vLLM 0.33.0's own session classes put on the wire, written and read by our codec.

import { describe, expect, test } from 'vitest';
import { DEFAULT_LIMITS } from '../../src/main/protocol/limits.js';
import { HIT, MISS, type KeyList } from '../../src/main/protocol/messages.js';
import { scan } from '../../src/main/protocol/scan.js';
import {
  writeAbortAck,
  writeAbortFetch,
  writeConnect,
  writeConnectAck,
  writeDisconnect,
  writeFetch,
  writeLookup,
  writeLookupResp,
  writeTransferDone,
} from '../../src/main/protocol/write.js';

const KEY_A = Buffer.concat([Buffer.from(Array.from({ length: 32 }, (_, i) => i)), Buffer.of(0, 0, 0, 0)]);
const KEY_B = Buffer.concat([
  Buffer.from(Array.from({ length: 32 }, (_, i) => 32 + i)),
  Buffer.of(0, 0, 0, 1),
]);
const A = KEY_A.toString('hex');
const B = KEY_B.toString('hex');
const NO_KEYS = Buffer.alloc(0);

const GOLDEN = {
  connect:
    '88a474797065a7636f6e6e656374a7706565725f6964ad31302e302e302e313a35373130ae6167656e745f6d65746164617461c4020102' +
    'a9626173655f61646472cf00007f0000000000aa6e756d5f626c6f636b7310a9626c6f636b5f6c656ecd1000' +
    'b2636f6e6669675f66696e6765727072696e74b030313233343536373839616263646566' +
    'a9686173685f73656564ae766c6c6d2d6e6f6e652d68617368',
  connectAck: '82a474797065ab636f6e6e6563745f61636ba7706565725f6964ad31302e302e302e313a35373130',
  lookup: `84a474797065a66c6f6f6b7570ad6b765f726571756573745f6964a27231a46b65797391c424${A}a9726f756e645f73657100`,
  lookupResp: `84a474797065ab6c6f6f6b75705f72657370ad6b765f726571756573745f6964a27231a46b65797391c424${A}a46869747391c3`,
  fetch:
    `85a474797065a56665746368ad6b765f726571756573745f6964a27231a46b65797391c424${A}` +
    'ad626c6f636b5f696e64657865739107a9726f756e645f73657100',
  emptyFetch:
    '85a474797065a56665746368ad6b765f726571756573745f6964a27232a46b65797390ad626c6f636b5f696e646578657390' +
    'a9726f756e645f73657100',
  transferDone:
    '84a474797065ad7472616e736665725f646f6e65ad6b765f726571756573745f6964a27231a773756363657373c3a9726f756e645f73657100',
  abortFetch: '83a474797065ab61626f72745f6665746368ad6b765f726571756573745f6964a27231a9726f756e645f73657100',
  abortAck: '83a474797065a961626f72745f61636bad6b765f726571756573745f6964a27231a9726f756e645f73657100',
  disconnect: '81a474797065aa646973636f6e6e656374',
  lookupTwo:
    `84a474797065a66c6f6f6b7570ad6b765f726571756573745f6964a57265712d32a46b65797392c424${A}c424${B}` +
    'a9726f756e645f73657100',
  fetchTwo:
    `85a474797065a56665746368ad6b765f726571756573745f6964a57265712d32a46b65797392c424${A}c424${B}` +
    'ad626c6f636b5f696e64657865739207cd012ca9726f756e645f73657100',
  finishAbort:
    '83a474797065ab61626f72745f6665746368ad6b765f726571756573745f6964a57265712d32a9726f756e645f73657100',
  finishFetch:
    '85a474797065a56665746368ad6b765f726571756573745f6964a57265712d32a46b65797390ad626c6f636b5f696e646578657390' +
    'a9726f756e645f73657101',
  lookupRespThree:
    `84a474797065ab6c6f6f6b75705f72657370ad6b765f726571756573745f6964a57265712d33a46b65797393c424${B}c424${A}c424${B}` +
    'a46869747393c2c3c2',
  transferFailed:
    '84a474797065ad7472616e736665725f646f6e65ad6b765f726571756573745f6964a57265712d33a773756363657373c2' +
    'a9726f756e645f736571ccc8',
} as const;

const CONNECT = {
  peerId: '10.0.0.1:5710',
  agentMetadata: Buffer.of(1, 2),
  baseAddr: 0x7f00_0000_0000,
  numBlocks: 16,
  blockLen: 4096,
  configFingerprint: '0123456789abcdef',
  hashSeed: 'vllm-none-hash',
  kvpeer: undefined,
} as const;

function golden(name: keyof typeof GOLDEN): Buffer {
  return Buffer.from(GOLDEN[name], 'hex');
}

/** The keys of a list one by one, in hex; marked ones as undefined. */
function keysOf(list: KeyList): (string | undefined)[] {
  return Array.from({ length: list.count }, (_, i) => {
    if (list.foreign !== undefined && (list.foreign[i >> 3] & (1 << (i & 7))) !== 0) return undefined;
    const at = list.first + i * list.stride;
    return list.bytes.toString('hex', at, at + list.keyBytes);
  });
}

function verbatim(packed: readonly Buffer[]): KeyList {
  const message = scan(writeLookup('any', Buffer.concat(packed), 36, 0));
  if (message.type !== 'lookup') throw new Error('not a lookup');
  return message.keys;
}

describe('the bytes of vLLM 0.33.0 are written', () => {
  const cases: [keyof typeof GOLDEN, () => Buffer][] = [
    ['connect', () => writeConnect(CONNECT)],
    ['connectAck', () => writeConnectAck('10.0.0.1:5710')],
    ['lookup', () => writeLookup('r1', KEY_A, 36, 0)],
    ['lookupResp', () => writeLookupResp('r1', verbatim([KEY_A]), Uint8Array.of(HIT))],
    ['fetch', () => writeFetch('r1', KEY_A, 36, Int32Array.of(7), 0)],
    ['emptyFetch', () => writeFetch('r2', NO_KEYS, 36, new Int32Array(0), 0)],
    ['transferDone', () => writeTransferDone('r1', true, 0)],
    ['abortFetch', () => writeAbortFetch('r1', 0)],
    ['abortAck', () => writeAbortAck('r1', 0)],
    ['disconnect', () => writeDisconnect()],
    ['lookupTwo', () => writeLookup('req-2', Buffer.concat([KEY_A, KEY_B]), 36, 0)],
    ['fetchTwo', () => writeFetch('req-2', Buffer.concat([KEY_A, KEY_B]), 36, Int32Array.of(7, 300), 0)],
    ['finishAbort', () => writeAbortFetch('req-2', 0)],
    ['finishFetch', () => writeFetch('req-2', NO_KEYS, 36, new Int32Array(0), 1)],
    [
      'lookupRespThree',
      () => writeLookupResp('req-3', verbatim([KEY_B, KEY_A, KEY_B]), Uint8Array.of(MISS, HIT, MISS)),
    ],
    ['transferFailed', () => writeTransferDone('req-3', false, 200)],
  ];
  test.each(cases)('%s', (name, write) => {
    expect(write().toString('hex')).toBe(GOLDEN[name]);
  });

  test('every golden message is covered', () => {
    expect(cases.map(([name]) => name).sort()).toEqual(Object.keys(GOLDEN).sort());
  });
});

describe('the bytes of vLLM 0.33.0 are read', () => {
  test('connect', () => {
    expect(scan(golden('connect'))).toEqual({ type: 'connect', ...CONNECT });
  });

  test('connect_ack and disconnect', () => {
    expect(scan(golden('connectAck'))).toEqual({ type: 'connect_ack', peerId: '10.0.0.1:5710' });
    expect(scan(golden('disconnect'))).toEqual({ type: 'disconnect' });
  });

  test('lookup, with offsets into the message and nothing copied', () => {
    const payload = golden('lookupTwo');
    const message = scan(payload);
    if (message.type !== 'lookup') throw new Error(message.type);
    expect(message).toMatchObject({ kvRequestId: 'req-2', roundSeq: 0, ttlMs: undefined });
    expect(message.keys.bytes).toBe(payload);
    expect(message.keys).toMatchObject({
      count: 2,
      stride: 38,
      keyBytes: 36,
      foreign: undefined,
      foreignCount: 0,
    });
    expect(keysOf(message.keys)).toEqual([A, B]);
    const { arrayStart, arrayEnd } = message.keys;
    expect(payload.toString('hex', arrayStart, arrayEnd)).toBe(`92c424${A}c424${B}`);
  });

  test('lookup_resp, order and duplicates kept', () => {
    const message = scan(golden('lookupRespThree'));
    if (message.type !== 'lookup_resp') throw new Error(message.type);
    expect(message).toMatchObject({ kvRequestId: 'req-3', roundSeq: undefined });
    expect(keysOf(message.keys)).toEqual([B, A, B]);
    expect([...message.hits]).toEqual([MISS, HIT, MISS]);
  });

  test('fetch', () => {
    const message = scan(golden('fetchTwo'));
    if (message.type !== 'fetch') throw new Error(message.type);
    expect(message).toMatchObject({ kvRequestId: 'req-2', roundSeq: 0, overRangeCount: 0, ttlMs: undefined });
    expect(keysOf(message.keys)).toEqual([A, B]);
    expect([...message.blockIndexes]).toEqual([7, 300]);
  });

  test('an empty fetch', () => {
    const message = scan(golden('finishFetch'));
    if (message.type !== 'fetch') throw new Error(message.type);
    expect(message).toMatchObject({ kvRequestId: 'req-2', roundSeq: 1 });
    expect(message.keys.count).toBe(0);
    expect(message.blockIndexes).toHaveLength(0);
  });

  test('transfer_done, abort_fetch, abort_ack', () => {
    expect(scan(golden('transferDone'))).toEqual({
      type: 'transfer_done',
      kvRequestId: 'r1',
      success: true,
      roundSeq: 0,
    });
    expect(scan(golden('transferFailed'))).toEqual({
      type: 'transfer_done',
      kvRequestId: 'req-3',
      success: false,
      roundSeq: 200,
    });
    expect(scan(golden('abortFetch'))).toEqual({ type: 'abort_fetch', kvRequestId: 'r1', roundSeq: 0 });
    expect(scan(golden('abortAck'))).toEqual({ type: 'abort_ack', kvRequestId: 'r1', roundSeq: 0 });
  });

  test('every golden message cut at any byte is undecodable', () => {
    for (const hex of Object.values(GOLDEN)) {
      const payload = Buffer.from(hex, 'hex');
      for (let length = 0; length < payload.length; length++) {
        expect(scan(payload.subarray(0, length))).toMatchObject({ reason: 'undecodable', outcome: 'drop' });
      }
    }
  });
});

describe('extensions ride along without changing what comes before them', () => {
  const announcement = {
    version: 1,
    incarnation: {
      id: 'c0ffee',
      pid: 4242,
      startTime: 123_456,
      bootId: '6e1f0d5a-0000-4000-8000-000000000000',
    },
    keyBytes: 36,
    features: ['round_seq', 'ttl_ms', 'packed_keys', 'scratch_page'],
  } as const;

  test('connect with a kvpeer map', () => {
    const payload = writeConnect({ ...CONNECT, kvpeer: announcement });
    expect(payload.toString('hex')).toContain(GOLDEN.connect.slice(2));
    expect(scan(payload)).toEqual({ type: 'connect', ...CONNECT, kvpeer: announcement });
  });

  test('lookup and fetch with packed keys: one bin behind the same name, everything else as before', () => {
    const keys = Buffer.concat([KEY_A, KEY_B]);
    const packedHex = `c448${A}${B}`;
    const listHex = `92c424${A}c424${B}`;
    const lookup = writeLookup('req-2', keys, 36, 0, { isPacked: true });
    expect(lookup.toString('hex')).toBe(GOLDEN.lookupTwo.replace(listHex, packedHex));
    const fetch = writeFetch('req-2', keys, 36, Int32Array.of(7, 300), 0, { isPacked: true });
    expect(fetch.toString('hex')).toBe(GOLDEN.fetchTwo.replace(listHex, packedHex));
    for (const payload of [lookup, fetch]) {
      const message = scan(payload);
      if (message.type !== 'lookup' && message.type !== 'fetch') throw new Error(message.type);
      expect(message.keys).toMatchObject({ count: 2, stride: 36, foreign: undefined, foreignCount: 0 });
      expect(message.keys.bytes).toBe(payload);
      expect(keysOf(message.keys)).toEqual([A, B]);
    }
  });

  test('lookup and fetch with ttl_ms, lookup_resp with round_seq', () => {
    expect(scan(writeLookup('r', KEY_A, 36, 5, { ttlMs: 8000 }))).toMatchObject({ roundSeq: 5, ttlMs: 8000 });
    expect(scan(writeFetch('r', KEY_A, 36, Int32Array.of(0), 5, { ttlMs: 70_000 }))).toMatchObject({
      roundSeq: 5,
      ttlMs: 70_000,
    });
    expect(
      scan(writeLookupResp('r', verbatim([KEY_A]), Uint8Array.of(HIT), { roundSeq: 2 ** 40 })),
    ).toMatchObject({ roundSeq: 2 ** 40 });
  });
});

describe('extensions, byte for byte', () => {
  const head = 'a474797065ad7472616e736665725f646f6e65ad6b765f726571756573745f6964a27231a773756363657373';

  test.each([
    [
      'a fetch of what is held',
      writeFetch('r1', KEY_A, 36, Int32Array.of(7), 0, { ttlMs: 9, ifHeld: true }),
      `87${GOLDEN.fetch.slice(2)}a674746c5f6d7309a769665f68656c64c3`,
    ],
    [
      'a transfer of which the first and the tenth block were written',
      writeTransferDone('r1', false, 0, { written: Uint8Array.of(1, 2) }),
      `85${head}c2a9726f756e645f73657100a77772697474656ec4020102`,
    ],
    [
      'one with checksums',
      writeTransferDone('r1', false, 0, { written: Uint8Array.of(1), checksums: new Uint8Array(8).fill(7) }),
      `86${head}c2a9726f756e645f73657100a77772697474656ec40101a9636865636b73756d73c4080707070707070707`,
    ],
    [
      'a complete one with checksums',
      writeTransferDone('r1', true, 0, { checksums: new Uint8Array(8).fill(7) }),
      `85${GOLDEN.transferDone.slice(2)}a9636865636b73756d73c4080707070707070707`,
    ],
  ])('%s', (_, frame, hex) => {
    expect(frame.toString('hex')).toBe(hex);
    for (let length = 0; length < frame.length; length++) {
      expect(scan(frame.subarray(0, length))).toMatchObject({ reason: 'undecodable' });
    }
  });
});

test('a written message is never written to again, nor is it a view of its input', () => {
  const keys = Buffer.from(KEY_A);
  const first = writeLookup('r1', keys, 36, 0);
  const before = Buffer.from(first);
  keys.fill(0xff);
  writeLookup('r1', keys, 36, 0);
  expect(first.equals(before)).toBe(true);
});

test('the keys of a lookup must be whole', () => {
  expect(() => writeLookup('r', Buffer.alloc(37), DEFAULT_LIMITS.keyBytes, 0)).toThrow(RangeError);
  expect(() => writeFetch('r', KEY_A, 36, Int32Array.of(1, 2), 0)).toThrow(RangeError);
  expect(() => writeFetch('r', KEY_A, 36, Int32Array.of(-1), 0)).toThrow(RangeError);
  expect(() => writeAbortAck('r', -1)).toThrow(RangeError);
  expect(() => writeAbortAck('r', 1.5)).toThrow(RangeError);
});
