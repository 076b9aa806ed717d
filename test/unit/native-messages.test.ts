// Messages that are read natively mean what the scanner in JavaScript reads, and everything unusual is left to it.

import { encode } from '@msgpack/msgpack';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { loadZmq, ReceivedField, ReceivedKind } from '../../native/zmq.js';
import { DEFAULT_LIMITS } from '../../src/main/protocol/limits.js';
import { scan } from '../../src/main/protocol/scan.js';
import { writeFetch, writeLookup } from '../../src/main/protocol/write.js';

const KEY_BYTES = 36;
const LIMITS = { ...DEFAULT_LIMITS, keyBytes: KEY_BYTES, keyCount: 300 };
const fields = new Float64Array(ReceivedField.Count);

function read(message: Uint8Array): string | undefined {
  return loadZmq().readMessage(message, KEY_BYTES, LIMITS.keyCount, LIMITS.stringBytes, fields);
}

/** True when the native reader left the message alone; otherwise both readers must say the same. */
function isLeft(message: Buffer): boolean {
  const id = read(message);
  if (id === undefined) return true;
  const scanned = scan(message, LIMITS);
  if (fields[ReceivedField.Kind] === ReceivedKind.Finish) {
    if (scanned.type !== 'fetch') throw new Error(`a finish that is ${JSON.stringify(scanned)}`);
    expect([id, fields[ReceivedField.RoundSeq]]).toEqual([scanned.kvRequestId, scanned.roundSeq]);
    expect([scanned.keys.count, scanned.blockIndexes.length]).toEqual([0, 0]);
    return false;
  }
  if (scanned.type !== 'lookup') throw new Error(`a lookup that is ${JSON.stringify(scanned)}`);
  const { keys, kvRequestId, roundSeq, ttlMs = -1, lookupSeq = -1 } = scanned;
  expect([id, ...fields.slice(ReceivedField.KeysStart)]).toEqual([
    ...[kvRequestId, keys.arrayStart, keys.arrayEnd, keys.first, keys.stride, keys.count],
    ...[roundSeq, ttlMs, lookupSeq],
  ]);
  expect([keys.bytes, keys.foreign]).toEqual([message, undefined]);
  expect(fields[ReceivedField.Bytes]).toBe(message.length);
  return false;
}

const asciiId = fc.string({ unit: 'grapheme-ascii', minLength: 1, maxLength: 512 });
const count = fc.oneof(
  fc.integer({ min: 0, max: 300 }),
  fc.integer({ min: 0, max: 2 ** 33 }),
  fc.maxSafeNat(),
);
const optionalCount = fc.option(count, { nil: undefined });
const keys = fc
  .integer({ min: 1, max: 40 })
  .chain((length) => fc.uint8Array({ minLength: length * KEY_BYTES, maxLength: length * KEY_BYTES }));
const lookup = fc
  .tuple(asciiId, keys, count, optionalCount, optionalCount, fc.boolean())
  .map(([id, packed, roundSeq, ttlMs, lookupSeq, isPacked]) =>
    writeLookup(id, packed, KEY_BYTES, roundSeq, { ttlMs, lookupSeq, isPacked }),
  );
const finish = fc
  .tuple(asciiId, count)
  .map(([id, roundSeq]) => writeFetch(id, new Uint8Array(0), KEY_BYTES, new Int32Array(0), roundSeq));

describe('the native reader', () => {
  test('reads every lookup and every end of a request that a node writes', () => {
    fc.assert(
      fc.property(fc.oneof(lookup, finish), (message) => {
        expect(isLeft(message)).toBe(false);
      }),
      { numRuns: 200 },
    );
  });

  test('and agrees with the scanner on any of them that was changed, cut or prolonged', () => {
    const mutation = fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { maxLength: 3 });
    fc.assert(
      fc.property(
        fc.oneof(lookup, finish),
        mutation,
        fc.integer({ min: -3, max: 2 }),
        (message, changes, growth) => {
          const changed = Buffer.alloc(message.length + growth);
          message.copy(changed);
          // Towards the ends, where everything but the keys is.
          for (const [place, value] of changes) {
            const at = place % 80;
            changed[place % 2 === 0 ? at : Math.max(0, changed.length - 1 - at)] = value;
          }
          isLeft(changed);
        },
      ),
      { numRuns: 3_000 },
    );
  });

  test('takes fields in any order, each once', () => {
    const entries: [string, unknown][] = [
      ['type', 'lookup'],
      ['kv_request_id', 'r'],
      ['keys', [new Uint8Array(KEY_BYTES), new Uint8Array(KEY_BYTES).fill(1)]],
      ['round_seq', 3],
    ];
    fc.assert(
      fc.property(fc.shuffledSubarray(entries, { minLength: 3 }), (some) => {
        expect(isLeft(Buffer.from(encode(Object.fromEntries(some))))).toBe(some.length < entries.length);
      }),
    );
    const message = writeLookup('r', new Uint8Array(KEY_BYTES), KEY_BYTES, 3);
    const twice = Buffer.concat([message, Buffer.from([0xa9]), Buffer.from('round_seq'), Buffer.from([4])]);
    twice[0] += 1;
    expect(scan(twice, LIMITS)).toMatchObject({ type: 'lookup', roundSeq: 4 });
    expect(isLeft(twice)).toBe(true);
  });

  test.each([
    ['no key', writeLookup('r', new Uint8Array(0), KEY_BYTES, 0)],
    ['no packed key', writeLookup('r', new Uint8Array(0), KEY_BYTES, 0, { isPacked: true })],
    ['packed keys of another length', writeLookup('r', new Uint8Array(64), 32, 0, { isPacked: true })],
    [
      'more packed keys than allowed',
      writeLookup('r', new Uint8Array(301 * KEY_BYTES), KEY_BYTES, 0, { isPacked: true }),
    ],
    ['keys of another length', writeLookup('r', new Uint8Array(64), 32, 0)],
    ['more keys than allowed', writeLookup('r', new Uint8Array(301 * KEY_BYTES), KEY_BYTES, 0)],
    ['an id beyond ASCII', writeLookup('ü', new Uint8Array(KEY_BYTES), KEY_BYTES, 0)],
    ['an empty id', writeLookup('', new Uint8Array(KEY_BYTES), KEY_BYTES, 0)],
    ['an id that is too long', writeLookup('r'.repeat(513), new Uint8Array(KEY_BYTES), KEY_BYTES, 0)],
    ['a fetch with keys', writeFetch('r', new Uint8Array(KEY_BYTES), KEY_BYTES, Int32Array.of(1), 0)],
    ['nothing', Buffer.alloc(0)],
  ])('leaves %s to the scanner', (_what, message) => {
    expect(isLeft(message)).toBe(true);
  });

  test('leaves a key of another length among the others to the scanner', () => {
    const all = Array.from({ length: 20 }, () => new Uint8Array(KEY_BYTES));
    for (const odd of [0, 10, 19]) {
      const mixed = all.map((key, i) => (i === odd ? new Uint8Array(KEY_BYTES - 1) : key));
      const message = encode({ type: 'lookup', kv_request_id: 'r', keys: mixed, round_seq: 0 });
      expect(isLeft(Buffer.from(message))).toBe(true);
    }
  });
});

describe('wrong arguments throw', () => {
  const zmq = loadZmq();
  const noFields = new Float64Array(ReceivedField.Count - 1);

  test.each<[string, () => unknown]>([
    ['no message', () => zmq.readMessage(undefined as never, 36, 10, 512, fields)],
    ['key bytes', () => zmq.readMessage(Buffer.alloc(1), 65, 10, 512, fields)],
    ['most keys', () => zmq.readMessage(Buffer.alloc(1), 36, 0, 512, fields)],
    ['fields', () => zmq.readMessage(Buffer.alloc(1), 36, 10, 512, noFields)],
    ['a token that is none', () => zmq.messageBytes(0 as never)],
    ['a token of nobody', () => zmq.messageBytes((2 ** 31 - 1) as never)],
    [
      'a token twice',
      () => {
        zmq.dropMessage((2 ** 31 - 1) as never);
      },
    ],
    ['a context', () => zmq.createReceiver(1 as never, () => undefined, {} as never)],
    ['a receiver', () => zmq.receive(4096 as never, fields)],
    ['a dealer', () => zmq.sendDealer(4096 as never, Buffer.alloc(1))],
    ['an answer of nobody', () => zmq.sendAnswer(4096 as never, 'r', Buffer.alloc(1), 0, 0)],
  ])('%s', (_what, call) => {
    expect(call).toThrow(/must|no such|not|short/);
  });
});
