// Properties of the codec: what is written is read back, any legal encoding means the same, and nothing makes it throw.

import { decode, encode } from '@msgpack/msgpack';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { DEFAULT_LIMITS } from '../../src/main/protocol/limits.js';
import { HIT, MISS, REJECTION_OUTCOMES, type KeyList } from '../../src/main/protocol/messages.js';
import { scan } from '../../src/main/protocol/scan.js';
import {
  writeAbortAck,
  writeAbortFetch,
  writeConnect,
  writeConnectAck,
  writeFetch,
  writeLookup,
  writeLookupResp,
  writeTransferDone,
} from '../../src/main/protocol/write.js';
import { encodeWide } from './support/wide-msgpack.js';

const text = fc
  .string({ unit: 'grapheme', minLength: 1, maxLength: 60 })
  .filter((value) => Buffer.byteLength(value) <= 512);
const count = fc.oneof(
  fc.integer({ min: 0, max: 300 }),
  fc.integer({ min: 0, max: 2 ** 33 }),
  fc.maxSafeNat(),
);
const keyBytes = fc.integer({ min: 1, max: 64 });
const packedKeys = fc
  .tuple(keyBytes, fc.oneof(fc.integer({ min: 0, max: 20 }), fc.integer({ min: 0, max: 400 })))
  .chain(([length, keys]) =>
    fc
      .uint8Array({ minLength: length * keys, maxLength: length * keys })
      .map((bytes) => ({ length, keys, bytes })),
  );
const ttl = fc.option(count, { nil: undefined });

function packed(list: KeyList): Buffer {
  return Buffer.concat(
    Array.from({ length: list.count }, (_, i) => {
      const at = list.first + i * list.stride;
      return list.bytes.subarray(at, at + list.keyBytes);
    }),
  );
}

/** @msgpack/msgpack's reading, with our exact integers. */
function oracle(payload: Buffer): unknown {
  return decode(new Uint8Array(payload), { useBigInt64: true });
}

function slice(bytes: Uint8Array, length: number): Uint8Array[] {
  return Array.from({ length: bytes.length / length }, (_, i) =>
    bytes.subarray(i * length, (i + 1) * length),
  );
}

describe('what is written is read back, and means the same to @msgpack/msgpack', () => {
  test('lookup', () => {
    fc.assert(
      fc.property(text, packedKeys, count, ttl, ttl, fc.boolean(), (id, keys, ...rest) => {
        const [roundSeq, ttlMs, lookupSeq, isPacked] = rest;
        const payload = writeLookup(id, keys.bytes, keys.length, roundSeq, { ttlMs, lookupSeq, isPacked });
        const message = scan(payload, { ...DEFAULT_LIMITS, keyBytes: keys.length });
        if (message.type !== 'lookup') throw new Error(JSON.stringify(message));
        expect(message).toMatchObject({ kvRequestId: id, roundSeq, ttlMs, lookupSeq });
        expect(message.keys.bytes).toBe(payload);
        expect(packed(message.keys).equals(keys.bytes)).toBe(true);
        expect(oracle(payload)).toMatchObject({
          kv_request_id: id,
          keys: isPacked ? keys.bytes : slice(keys.bytes, keys.length),
        });
      }),
    );
  });

  test('fetch', () => {
    fc.assert(
      fc.property(
        text,
        packedKeys,
        count,
        ttl,
        fc.array(fc.nat(), { minLength: 1 }),
        fc.boolean(),
        (id, keys, roundSeq, ttlMs, slots, isPacked) => {
          const indexes = Int32Array.from({ length: keys.keys }, (_, i) => slots[i % slots.length]);
          const payload = writeFetch(id, keys.bytes, keys.length, indexes, roundSeq, { ttlMs, isPacked });
          const message = scan(payload, { ...DEFAULT_LIMITS, keyBytes: keys.length });
          if (message.type !== 'fetch') throw new Error(JSON.stringify(message));
          const expected = indexes.map((index) => (index === 2 ** 31 - 1 ? -1 : index));
          expect(message.blockIndexes).toEqual(expected);
          expect(message).toMatchObject({ kvRequestId: id, roundSeq, ttlMs });
          expect(packed(message.keys).equals(keys.bytes)).toBe(true);
          expect(oracle(payload)).toMatchObject({ block_indexes: [...indexes] });
        },
      ),
    );
  });

  test('lookup_resp: the keys of the request byte for byte, a flag for each', () => {
    fc.assert(
      fc.property(text, packedKeys, ttl, fc.infiniteStream(fc.boolean()), (id, keys, roundSeq, hits) => {
        const limits = { ...DEFAULT_LIMITS, keyBytes: keys.length };
        const isPacked = hits.next().value === true;
        const request = scan(writeLookup('other', keys.bytes, keys.length, 0, { isPacked }), limits);
        if (request.type !== 'lookup') throw new Error(JSON.stringify(request));
        const flags = Uint8Array.from({ length: keys.keys }, () => (hits.next().value === true ? HIT : MISS));
        const payload = writeLookupResp(id, request.keys, flags, { roundSeq });
        const message = scan(payload, limits);
        if (message.type !== 'lookup_resp') throw new Error(JSON.stringify(message));
        expect(message).toMatchObject({ kvRequestId: id, roundSeq });
        expect(Buffer.from(message.hits).equals(flags)).toBe(true);
        expect(packed(message.keys).equals(keys.bytes)).toBe(true);
        expect(oracle(payload)).toMatchObject({ hits: [...flags].map((flag) => flag === HIT) });
      }),
    );
  });

  test('lookup_resp to a numbered lookup: the number instead of the keys', () => {
    fc.assert(
      fc.property(text, packedKeys, count, fc.infiniteStream(fc.boolean()), (id, keys, lookupSeq, hits) => {
        const limits = { ...DEFAULT_LIMITS, keyBytes: keys.length };
        const request = scan(writeLookup('other', keys.bytes, keys.length, 0), limits);
        if (request.type !== 'lookup') throw new Error(JSON.stringify(request));
        const flags = Uint8Array.from({ length: keys.keys }, () => (hits.next().value === true ? HIT : MISS));
        const payload = writeLookupResp(id, request.keys, flags, { lookupSeq });
        const message = scan(payload, limits);
        if (message.type !== 'lookup_resp') throw new Error(JSON.stringify(message));
        expect(message).toMatchObject({ kvRequestId: id, lookupSeq, keys: { count: 0 } });
        expect(Buffer.from(message.hits).equals(flags)).toBe(true);
        expect(oracle(payload)).toMatchObject({ keys: [] });
      }),
    );
  });

  test('the small ones', () => {
    fc.assert(
      fc.property(text, count, fc.boolean(), (id, roundSeq, success) => {
        const done = writeTransferDone(id, success, roundSeq);
        expect(scan(done)).toEqual({ type: 'transfer_done', kvRequestId: id, success, roundSeq });
        expect(scan(writeAbortFetch(id, roundSeq))).toEqual({
          type: 'abort_fetch',
          kvRequestId: id,
          roundSeq,
        });
        expect(scan(writeAbortAck(id, roundSeq))).toEqual({ type: 'abort_ack', kvRequestId: id, roundSeq });
        expect(scan(writeConnectAck(id))).toEqual({ type: 'connect_ack', peerId: id });
        expect(Object.keys(oracle(done) as object)).toEqual([
          'type',
          'kv_request_id',
          'success',
          'round_seq',
        ]);
      }),
    );
  });

  test('connect', () => {
    const incarnation = fc.record({
      id: text.filter((value) => Buffer.byteLength(value) <= 64),
      pid: fc.integer({ min: 1, max: 2 ** 31 - 1 }),
      startTime: count,
      bootId: text.filter((value) => Buffer.byteLength(value) <= 64),
    });
    const kvpeer = fc.record({
      version: fc.integer({ min: 1, max: 1000 }),
      incarnation,
      keyBytes: fc.option(fc.integer({ min: 1, max: 64 }), { nil: undefined }),
      features: fc.subarray(['round_seq', 'ttl_ms', 'packed_keys', 'scratch_page'] as const),
    });
    const fields = fc.record({
      peerId: text,
      agentMetadata: fc.uint8Array({ maxLength: 700 }).map((bytes) => Buffer.from(bytes)),
      baseAddr: fc.integer({ min: 0, max: 2 ** 52 }),
      numBlocks: fc.integer({ min: 1, max: 2 ** 20 }),
      blockLen: fc.integer({ min: 1, max: 2 ** 30 }),
      configFingerprint: fc.oneof(fc.constant(''), text),
      hashSeed: text,
      kvpeer: fc.option(kvpeer, { nil: undefined }),
    });
    fc.assert(
      fc.property(fields, (values) => {
        expect(scan(writeConnect(values))).toEqual({ type: 'connect', ...values });
      }),
    );
  });
});

interface Variant {
  readonly keys: Uint8Array[];
  readonly indexes: number[];
  readonly hits: boolean[];
  readonly junk: [string, unknown][];
  readonly order: number[];
  readonly wide: number[];
}

const key = fc.oneof(
  { weight: 20, arbitrary: fc.uint8Array({ minLength: 36, maxLength: 36 }) },
  { weight: 1, arbitrary: fc.uint8Array({ maxLength: 300 }) },
);
const variant: fc.Arbitrary<Variant> = fc.array(key, { maxLength: 20 }).chain((keys) =>
  fc.record({
    keys: fc.constant(keys),
    indexes: fc.array(fc.nat({ max: 2 ** 31 - 2 }), { minLength: keys.length, maxLength: keys.length }),
    hits: fc.array(fc.boolean(), { minLength: keys.length, maxLength: keys.length }),
    junk: fc.array(
      fc.tuple(
        fc.string().map((name) => `x${name}`),
        fc.anything({ maxDepth: 3 }).filter(isPackable),
      ),
      {
        maxLength: 3,
      },
    ),
    order: fc.array(fc.nat(), { minLength: 8, maxLength: 8 }),
    wide: fc.array(fc.nat({ max: 1000 }), { minLength: 1, maxLength: 50 }),
  }),
);

function isPackable(value: unknown): boolean {
  try {
    encode(value);
    return true;
  } catch {
    return false;
  }
}

/** The map in any order, with unknown fields in between, in the given widths. */
function encodeVariant(fields: Record<string, unknown>, { junk, order, wide }: Variant): Buffer {
  const entries = [...Object.entries(fields), ...junk];
  const shuffled = entries
    .map((entry, i) => ({ entry, rank: order[i % order.length] * 16 + i }))
    .sort((a, b) => a.rank - b.rank)
    .map(({ entry }) => entry);
  let at = 0;
  return encodeWide(new Map(shuffled), () => wide[at++ % wide.length]);
}

function expectKeys(list: KeyList, keys: readonly Uint8Array[]): void {
  expect(list.count).toBe(keys.length);
  expect(list.foreignCount).toBe(keys.filter(({ length }) => length !== 36).length);
  keys.forEach((expected, i) => {
    const isForeign = list.foreign !== undefined && (list.foreign[i >> 3] & (1 << (i & 7))) !== 0;
    expect(isForeign).toBe(expected.length !== 36);
    const at = list.first + i * list.stride;
    const found = list.bytes.subarray(at, at + 36);
    expect(found.equals(isForeign ? new Uint8Array(36) : expected)).toBe(true);
  });
}

describe('any order of fields, any width of heads and integers, any unknown fields', () => {
  test('lookup: keys of other lengths are marked, and the answer repeats the very bytes', () => {
    fc.assert(
      fc.property(variant, (values) => {
        const fields = { type: 'lookup', kv_request_id: 'r', keys: values.keys, round_seq: 3 };
        const message = scan(encodeVariant(fields, values));
        if (message.type !== 'lookup') throw new Error(JSON.stringify(message));
        expect(message).toMatchObject({ kvRequestId: 'r', roundSeq: 3 });
        expectKeys(message.keys, values.keys);
        const answer = writeLookupResp('r', message.keys, new Uint8Array(values.keys.length).fill(MISS));
        expect(oracle(answer)).toEqual({
          type: 'lookup_resp',
          kv_request_id: 'r',
          keys: values.keys,
          hits: values.keys.map(() => false),
        });
      }),
      { numRuns: 300 },
    );
  });

  test('fetch and lookup_resp', () => {
    fc.assert(
      fc.property(variant, (values) => {
        const fetch = { type: 'fetch', kv_request_id: 'r', keys: values.keys, round_seq: 0 };
        const message = scan(encodeVariant({ ...fetch, block_indexes: values.indexes }, values));
        if (message.type !== 'fetch') throw new Error(JSON.stringify(message));
        expect([...message.blockIndexes]).toEqual(values.indexes);
        expectKeys(message.keys, values.keys);
        const answer = { type: 'lookup_resp', kv_request_id: 'r', keys: values.keys, hits: values.hits };
        const response = scan(encodeVariant(answer, values));
        if (response.type !== 'lookup_resp') throw new Error(JSON.stringify(response));
        expect([...response.hits].map((flag) => flag === HIT)).toEqual(values.hits);
        expectKeys(response.keys, values.keys);
      }),
      { numRuns: 300 },
    );
  });

  test('one head for all keys of the node’s length needs no copy, whatever the head', () => {
    for (const kind of [0, 1, 2]) {
      const keys = Array.from({ length: 100 }, (_, i) => new Uint8Array(36).fill(i));
      const payload = encodeWide(
        new Map<string, unknown>([
          ['type', 'lookup'],
          ['kv_request_id', 'r'],
          ['round_seq', 0],
          ['keys', keys],
        ]),
        () => kind,
      );
      const message = scan(payload);
      if (message.type !== 'lookup') throw new Error(JSON.stringify(message));
      expect(message.keys.bytes).toBe(payload);
      expect(message.keys.stride).toBe(36 + [2, 3, 5][kind]);
      expectKeys(message.keys, keys);
    }
  });
});

describe('no bytes make the scanner throw', () => {
  const sound = (payload: Buffer): boolean => {
    const result = scan(payload);
    return result.type !== 'rejected' || result.outcome === REJECTION_OUTCOMES[result.reason];
  };

  test('any bytes at all', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => sound(Buffer.from(bytes))),
      { numRuns: 5_000 },
    );
  });

  test('any message, cut anywhere or with any bytes changed', () => {
    const mutation = fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { maxLength: 4 });
    fc.assert(
      fc.property(
        variant,
        fc.constantFrom('lookup', 'lookup_resp', 'fetch'),
        mutation,
        fc.nat(),
        (values, type, changes, cut) => {
          const fields = {
            type,
            kv_request_id: 'r',
            keys: values.keys,
            hits: values.hits,
            block_indexes: values.indexes,
            round_seq: 1,
          };
          const payload = encodeVariant(fields, values);
          const short = payload.subarray(0, cut % payload.length);
          expect(scan(short)).toMatchObject({ type: 'rejected', reason: 'undecodable' });
          for (const [at, byte] of changes) payload[at % payload.length] = byte;
          return sound(payload);
        },
      ),
      { numRuns: 2_000 },
    );
  });

  test('what is accepted decodes the same in @msgpack/msgpack', () => {
    fc.assert(
      fc.property(fc.nat({ max: 400 }), fc.integer({ min: 0, max: 255 }), (at, byte) => {
        const payload = writeFetch(
          'req',
          new Uint8Array(36 * 3).fill(9),
          36,
          Int32Array.of(1, 200, 70_000),
          5,
        );
        payload[at % payload.length] = byte;
        const message = scan(payload);
        if (message.type !== 'fetch') return;
        const decoded = oracle(payload) as { keys: Uint8Array[]; kv_request_id: string; round_seq: unknown };
        expect(message.kvRequestId).toBe(decoded.kv_request_id);
        expect(message.roundSeq).toBe(Number(decoded.round_seq));
        expectKeys(message.keys, decoded.keys);
      }),
      { numRuns: 3_000 },
    );
  });
});
