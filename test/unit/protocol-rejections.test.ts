// Every rule of messages.ts that a payload can break, and what becomes of it.

import { encode } from '@msgpack/msgpack';
import { describe, expect, test } from 'vitest';
import { loadNative } from '../../native/index.js';
import { DEFAULT_LIMITS, MAX_BLOCK_INDEX, MAX_NUM_BLOCKS } from '../../src/main/protocol/limits.js';
import { INDEX_OVER_RANGE, type RejectionReason } from '../../src/main/protocol/messages.js';
import { scan } from '../../src/main/protocol/scan.js';

type Fields = Record<string, unknown>;

const KEY = new Uint8Array(36).fill(7);

/** One legal message of each type that has fields. */
const LEGAL = {
  connect: {
    type: 'connect',
    peer_id: '10.0.0.1:5710',
    agent_metadata: Uint8Array.of(1, 2),
    base_addr: 0x7f00_0000_0000,
    num_blocks: 16,
    block_len: 4096,
    config_fingerprint: '',
    hash_seed: 'seed',
  },
  connect_ack: { type: 'connect_ack', peer_id: '10.0.0.1:5710' },
  lookup: { type: 'lookup', kv_request_id: 'r', keys: [KEY, KEY], round_seq: 1 },
  lookup_resp: { type: 'lookup_resp', kv_request_id: 'r', keys: [KEY, KEY], hits: [true, false] },
  fetch: { type: 'fetch', kv_request_id: 'r', keys: [KEY, KEY], block_indexes: [1, 2], round_seq: 1 },
  transfer_done: { type: 'transfer_done', kv_request_id: 'r', success: true, round_seq: 1 },
  abort_fetch: { type: 'abort_fetch', kv_request_id: 'r', round_seq: 1 },
  abort_ack: { type: 'abort_ack', kv_request_id: 'r', round_seq: 1 },
} as const satisfies Record<string, Fields>;

type TypeName = keyof typeof LEGAL;

function pack(value: unknown): Buffer {
  return Buffer.from(encode(value, { useBigInt64: true, ignoreUndefined: true }));
}

/** The legal message with some fields changed; undefined leaves one out. */
function message(type: TypeName, changes: Fields = {}): Buffer {
  const fields = Object.entries({ ...LEGAL[type], ...changes }).map(([name, value]: [string, unknown]) => {
    // @msgpack/msgpack writes whole numbers beyond 32 bits as floats, bigints as integers.
    const isWide = typeof value === 'number' && Number.isInteger(value) && value > 0xffff_ffff;
    return [name, isWide ? BigInt(value) : value];
  });
  return pack(Object.fromEntries(fields));
}

function rejection(payload: Buffer): { reason: RejectionReason; outcome: string; detail: string } {
  const result = scan(payload);
  if (result.type !== 'rejected') throw new Error(`accepted as ${result.type}`);
  return { reason: result.reason, outcome: result.outcome, detail: result.detail };
}

test('the legal messages of this file are legal', () => {
  for (const type of Object.keys(LEGAL) as TypeName[]) expect(scan(message(type)).type).toBe(type);
});

describe('undecodable: dropped, the session goes on', () => {
  test.each([
    ['an empty payload', Buffer.alloc(0)],
    ['bytes behind the map', Buffer.concat([message('abort_ack'), Buffer.of(0xc0)])],
    ['a byte that is not msgpack', Buffer.from('81a161c1', 'hex')],
    ['bytes behind a value that is no map', Buffer.of(0xc0, 0xc0)],
    ['an id that is not UTF-8', Buffer.concat([pack({}).fill(0x83), ...badUtf8()])],
    ['a map that claims 4 billion entries', Buffer.from('dfffffffff', 'hex')],
    ['an array that claims 4 billion entries', Buffer.from('81a46b657973ddffffffff', 'hex')],
    ['a bin that claims 4 GiB', Buffer.from('81ae6167656e745f6d65746164617461c6ffffffff', 'hex')],
    ['text that claims 4 GiB', Buffer.from('81a474797065dbffffffff', 'hex')],
    ['an extension that claims 4 GiB', Buffer.from('81a474797065c9ffffffff01', 'hex')],
  ])('%s', (_, payload) => {
    expect(rejection(payload)).toMatchObject({ reason: 'undecodable', outcome: 'drop' });
  });

  function badUtf8(): Buffer[] {
    return [
      Buffer.concat([pack('type'), pack('abort_ack')]),
      Buffer.concat([pack('kv_request_id'), Buffer.of(0xa2, 0xc3, 0x28)]),
      Buffer.concat([pack('round_seq'), pack(1)]),
    ];
  }
});

describe('too complex: dropped', () => {
  test('deep nesting, at a level that no message needs', () => {
    const deep = (levels: number): Buffer =>
      Buffer.concat([
        Buffer.from('82a474797065aa646973636f6e6e656374a16a', 'hex'),
        Buffer.alloc(levels, 0x91),
        Buffer.of(0xc0),
      ]);
    expect(scan(deep(DEFAULT_LIMITS.depth))).toEqual({ type: 'disconnect' });
    expect(rejection(deep(DEFAULT_LIMITS.depth + 1))).toMatchObject({
      reason: 'too_complex',
      outcome: 'drop',
    });
  });

  test('a bomb of 5 MB of nested arrays or maps is refused at once', () => {
    for (const opener of [[0x91], [0x81, 0xa0]]) {
      const bomb = Buffer.alloc(5_000_000);
      for (let i = 0; i < bomb.length; i++) bomb[i] = opener[i % opener.length];
      // The least of several tries: of this thread alone, and without what else runs in one of them.
      const native = loadNative();
      const costsNs = Array.from({ length: 5 }, () => {
        const beforeNs = native.threadCpuNs();
        rejection(bomb);
        return native.threadCpuNs() - beforeNs;
      });
      expect(rejection(bomb).reason).toMatch(/too_complex|undecodable/);
      expect(Math.min(...costsNs)).toBeLessThan(50e6);
    }
  });

  test('8 MB of small values in an unknown field', () => {
    const flat = Buffer.alloc(DEFAULT_LIMITS.messageBytes);
    flat.set([0x81, 0xa1, 0x6a, 0xdd]);
    flat.writeUInt32BE(flat.length - 8, 4);
    expect(rejection(flat)).toMatchObject({ reason: 'too_complex', outcome: 'drop' });
  });
});

describe('not a message: ignored, the session goes on', () => {
  test.each([
    ['nil', null],
    ['a number', 7],
    ['text', 'connect'],
    ['an array', ['type', 'disconnect']],
    ['bin', Uint8Array.of(1)],
  ])('%s', (_, value) => {
    expect(rejection(pack(value))).toMatchObject({ reason: 'not_a_map', outcome: 'ignore' });
  });

  test.each([
    ['no type', {}],
    ['a type of a later version', { type: 'lookup_v2', keys: 7 }],
    ['a type that is no text', { type: 5 }],
    ['a type of 100 bytes', { type: 'x'.repeat(100) }],
    ['a type with its case changed', { type: 'Lookup' }],
    ['a type hidden in an inherited name', { type: '__proto__' }],
  ])('%s', (_, value) => {
    expect(rejection(pack(value))).toMatchObject({ reason: 'unknown_type', outcome: 'ignore' });
  });
});

describe('an invalid field ends the session, and is named', () => {
  const required: Record<TypeName, readonly string[]> = {
    connect: ['peer_id', 'agent_metadata', 'base_addr', 'num_blocks', 'block_len', 'hash_seed'],
    connect_ack: ['peer_id'],
    lookup: ['kv_request_id', 'keys', 'round_seq'],
    lookup_resp: ['kv_request_id', 'keys', 'hits'],
    fetch: ['kv_request_id', 'keys', 'block_indexes', 'round_seq'],
    transfer_done: ['kv_request_id', 'success', 'round_seq'],
    abort_fetch: ['kv_request_id', 'round_seq'],
    abort_ack: ['kv_request_id', 'round_seq'],
  };
  const cases = Object.entries(required).flatMap(([type, fields]) =>
    fields.map((field) => [type as TypeName, field] as const),
  );

  test.each(cases)('%s without %s', (type, field) => {
    const result = scan(message(type, { [field]: undefined }));
    expect(result).toMatchObject({
      type: 'rejected',
      reason: 'invalid_field',
      outcome: 'end-session',
      detail: `${field} is missing`,
      messageType: type,
    });
  });

  test.each(cases)('%s with %s of any other type', (type, field) => {
    for (const value of [null, 1.5, {}, new Date(0), true, 'text', -1, Uint8Array.of(1), [1]]) {
      const right = (LEGAL[type] as Fields)[field];
      const isSameType = Array.isArray(right)
        ? Array.isArray(value)
        : right instanceof Uint8Array
          ? value instanceof Uint8Array
          : typeof right === typeof value && !(typeof right === 'number');
      if (isSameType) continue;
      const { reason, outcome, detail } = rejection(message(type, { [field]: value }));
      expect([reason, outcome]).toEqual(['invalid_field', 'end-session']);
      expect(detail.startsWith(`${field} must`)).toBe(true);
    }
  });

  test.each([
    ['lookup', { round_seq: true }, 'round_seq must be an integer, found a boolean'],
    ['lookup', { round_seq: 1.5 }, 'round_seq must be an integer, found a float'],
    ['lookup', { round_seq: -1 }, 'round_seq must not be negative'],
    ['lookup', { kv_request_id: '' }, 'kv_request_id must not be empty'],
    ['connect', { num_blocks: 0 }, 'num_blocks must be above 0'],
    ['connect', { block_len: 0 }, 'block_len must be above 0'],
    ['connect', { hash_seed: '' }, 'hash_seed must not be empty'],
    ['connect', { config_fingerprint: 7 }, 'config_fingerprint must be text, found an integer'],
    ['connect', { config_fingerprint: ['x'] }, 'config_fingerprint must be text, found an array'],
    [
      'lookup',
      { keys: new Uint8Array(37) },
      'keys must be a whole number of keys of 36 bytes, found one bin of 37 bytes',
    ],
    ['fetch', { keys: new Uint8Array(72), block_indexes: [1] }, 'block_indexes has 1 entries for 2 keys'],
    ['lookup_resp', { hits: [true] }, 'hits has 1 entries for 2 keys'],
    ['lookup_resp', { hits: [true, 1] }, 'hits[1] must be a boolean, found an integer'],
    ['fetch', { block_indexes: [1] }, 'block_indexes has 1 entries for 2 keys'],
    ['fetch', { block_indexes: [1, -1] }, 'block_indexes[1] must not be negative'],
    ['fetch', { block_indexes: [1, true] }, 'block_indexes[1] must be an integer, found a boolean'],
    ['fetch', { block_indexes: [1.5, 1] }, 'block_indexes[0] must be an integer, found a float'],
    ['fetch', { block_indexes: [2n ** 60n, -1] }, 'block_indexes[1] must not be negative'],
    ['transfer_done', { success: 1 }, 'success must be a boolean, found an integer'],
  ] as const)('%s %o: %s', (type, changes, detail) => {
    expect(rejection(message(type, changes))).toEqual({
      reason: 'invalid_field',
      outcome: 'end-session',
      detail,
    });
  });

  test('number E, int-key-allocates: a key that is not bin', () => {
    for (const [key, found] of [
      [2 ** 29, 'an integer'],
      ['k'.repeat(36), 'text'],
      [[1, 2, 3], 'an array'],
      [null, 'nil'],
    ] as const) {
      for (const type of ['lookup', 'lookup_resp', 'fetch'] as const) {
        expect(rejection(message(type, { keys: [KEY, key] })).detail).toBe(
          `keys[1] must be bin, found ${found}`,
        );
      }
    }
  });
});

describe('number E: over a limit ends the session, and the limit is named', () => {
  const many = Array.from({ length: DEFAULT_LIMITS.keyCount + 1 }, () => 0);
  const cases = [
    ['lookup', { kv_request_id: 'x'.repeat(513) }, /kv_request_id has 513 bytes, at most 512/],
    ['lookup', { kv_request_id: 'é'.repeat(257) }, /kv_request_id has 514 bytes/],
    ['lookup', { round_seq: 2n ** 53n }, /round_seq must be below 2\^53/],
    ['lookup', { keys: many.map(() => Uint8Array.of(1)) }, /keys has 65537 entries, at most 65536/],
    ['lookup', { keys: new Uint8Array(65_537 * 36) }, /keys has 65537 entries, at most 65536/],
    ['lookup_resp', { hits: many.map(() => true) }, /hits has 65537 entries/],
    ['fetch', { block_indexes: many }, /block_indexes has 65537 entries/],
    ['connect', { agent_metadata: new Uint8Array(65_537) }, /agent_metadata has 65537 bytes, at most 65536/],
    ['connect', { num_blocks: MAX_NUM_BLOCKS + 1 }, /num_blocks is 2147483648/],
    ['connect', { base_addr: 2n ** 64n - 1n }, /base_addr must be below 2\^53/],
    ['connect', { base_addr: 2 ** 53 - 65_536 }, /must be below 2\^53/],
    ['connect', { block_len: 2 ** 50 }, /must be below 2\^53/],
    ['connect', { config_fingerprint: 'x'.repeat(513) }, /config_fingerprint has 513 bytes/],
  ] as const;
  test.each(cases.map(([type, changes, detail]) => ({ type, changes, detail })))('$type: $detail', (row) => {
    const { type, changes, detail } = row;
    const found = rejection(message(type, changes));
    expect([found.reason, found.outcome]).toEqual(['over_limit', 'end-session']);
    expect(found.detail).toMatch(detail);
  });

  test('a message longer than the limit, whatever is in it', () => {
    const payload = message('abort_ack');
    expect(scan(payload, { ...DEFAULT_LIMITS, messageBytes: payload.length })).toMatchObject({
      type: 'abort_ack',
    });
    expect(scan(payload, { ...DEFAULT_LIMITS, messageBytes: payload.length - 1 })).toMatchObject({
      reason: 'over_limit',
    });
  });

  test('exactly at the limits is legal', () => {
    expect(
      scan(message('lookup', { kv_request_id: 'x'.repeat(512), round_seq: 2n ** 53n - 1n })),
    ).toMatchObject({
      roundSeq: Number.MAX_SAFE_INTEGER,
    });
    expect(scan(message('lookup', { keys: many.slice(1).map(() => KEY) }))).toMatchObject({
      keys: { count: 65_536 },
    });
    expect(
      scan(
        message('connect', {
          agent_metadata: new Uint8Array(65_536),
          num_blocks: MAX_NUM_BLOCKS,
          block_len: 1,
        }),
      ),
    ).toMatchObject({ numBlocks: MAX_NUM_BLOCKS });
  });

  test('index-above-int32: the fetch is legal, its impossible slots are marked', () => {
    const result = scan(message('fetch', { block_indexes: [MAX_BLOCK_INDEX, 2n ** 31n - 1n] }));
    expect(result).toMatchObject({ type: 'fetch', overRangeCount: 1 });
    if (result.type !== 'fetch') throw new Error(result.type);
    expect([...result.blockIndexes]).toEqual([MAX_BLOCK_INDEX, INDEX_OVER_RANGE]);
    expect(scan(message('fetch', { block_indexes: [2n ** 31n, 2n ** 64n - 1n] }))).toMatchObject({
      overRangeCount: 2,
    });
  });
});

test('a message of 60 bytes cannot make the scanner allocate much', () => {
  const payloads = [
    Buffer.concat([
      Buffer.from('84a474797065a66c6f6f6b7570ad6b765f726571756573745f6964a172a46b657973ddffffffff', 'hex'),
    ]),
    message('lookup', { keys: Array.from({ length: 12 }, () => new Uint8Array(0)) }),
    message('fetch', { keys: [2 ** 29], block_indexes: [0] }),
  ];
  const before = process.memoryUsage();
  const kept = Array.from({ length: 1_000 }, (_, i) => scan(payloads[i % payloads.length]));
  const after = process.memoryUsage();
  expect(kept).toHaveLength(1_000);
  expect(after.arrayBuffers + after.heapUsed - before.arrayBuffers - before.heapUsed).toBeLessThan(
    16_000_000,
  );
});

describe('what is tolerated', () => {
  test('fingerprints that are empty in vLLM’s eyes', () => {
    for (const value of [undefined, null, '', 0, false, [], {}]) {
      expect(scan(message('connect', { config_fingerprint: value }))).toMatchObject({
        configFingerprint: '',
      });
    }
    expect(scan(message('connect', { config_fingerprint: 'abc' }))).toMatchObject({
      configFingerprint: 'abc',
    });
  });

  test('malformed extensions count as absent', () => {
    for (const value of [null, 'soon', -5, 1.5, [], 2n ** 60n, true]) {
      expect(scan(message('lookup', { ttl_ms: value }))).toMatchObject({ type: 'lookup', ttlMs: undefined });
      expect(scan(message('fetch', { ttl_ms: value }))).toMatchObject({ type: 'fetch', ttlMs: undefined });
      expect(scan(message('lookup', { lookup_seq: value }))).toMatchObject({ lookupSeq: undefined });
      expect(scan(message('lookup_resp', { keys: [], lookup_seq: value }))).toMatchObject({
        type: 'rejected',
        reason: 'invalid_field',
      });
      expect(scan(message('lookup_resp', { round_seq: value }))).toMatchObject({
        type: 'lookup_resp',
        roundSeq: undefined,
      });
    }
    const incarnation = { id: 'i', pid: 1, start_time: 0, boot_id: 'b' };
    const good = { version: 1, incarnation };
    expect(scan(message('connect', { kvpeer: good }))).toMatchObject({
      kvpeer: { version: 1, incarnation: { id: 'i', pid: 1, startTime: 0, bootId: 'b' }, features: [] },
    });
    for (const value of [
      null,
      7,
      'kvpeer',
      [],
      {},
      { version: 1 },
      { incarnation },
      { ...good, version: 0 },
      { ...good, version: '1' },
      { ...good, incarnation: 5 },
      { ...good, incarnation: { ...incarnation, id: '' } },
      { ...good, incarnation: { ...incarnation, id: 'x'.repeat(65) } },
      { ...good, incarnation: { ...incarnation, pid: 0 } },
      { ...good, incarnation: { ...incarnation, pid: 2 ** 31 } },
      { ...good, incarnation: { ...incarnation, start_time: -1 } },
      { ...good, incarnation: { ...incarnation, boot_id: null } },
    ]) {
      expect(scan(message('connect', { kvpeer: value }))).toMatchObject({
        type: 'connect',
        kvpeer: undefined,
      });
    }
  });

  test('features and keys of a later version are stepped over, features that are not true are off', () => {
    const kvpeer = {
      version: 9,
      later: { a: [1, { b: 2 }] },
      incarnation: { id: 'i', pid: 1, start_time: 5, boot_id: 'b', later: [1] },
      round_seq: true,
      ttl_ms: false,
      scratch_page: 1,
      partial_credit: true,
    };
    expect(scan(message('connect', { kvpeer }))).toMatchObject({
      kvpeer: { version: 9, features: ['round_seq'] },
    });
  });

  test('a key length that is none is not known, and the rest of the announcement holds', () => {
    const incarnation = { id: 'i', pid: 1, start_time: 5, boot_id: 'b' };
    for (const keyBytes of [0, -1, 36.5, '36', null, [36], 2n ** 60n]) {
      const kvpeer = { version: 1, incarnation, key_bytes: keyBytes, packed_keys: true };
      expect(scan(message('connect', { kvpeer }))).toMatchObject({
        kvpeer: { keyBytes: undefined, features: ['packed_keys'] },
      });
    }
  });

  test('of a field given twice the last one counts, also when an earlier one was wrong', () => {
    const twice = Buffer.concat([
      Buffer.of(0x85),
      pack('type'),
      pack('abort_ack'),
      pack('round_seq'),
      pack('wrong'),
      pack('kv_request_id'),
      pack('first'),
      pack('round_seq'),
      pack(3),
      pack('kv_request_id'),
      pack('last'),
    ]);
    expect(scan(twice)).toEqual({ type: 'abort_ack', kvRequestId: 'last', roundSeq: 3 });
    const keysTwice = Buffer.concat([
      Buffer.of(0x85),
      ...['type', 'lookup', 'kv_request_id', 'r', 'round_seq', 0, 'keys', [KEY], 'keys', [5]].map(pack),
    ]);
    expect(rejection(keysTwice).detail).toBe('keys[0] must be bin, found an integer');
  });

  test('map keys that are no text are stepped over with their values', () => {
    const odd = Buffer.concat([Buffer.of(0x83), ...[5, 'x', null, [1], 'type', 'disconnect'].map(pack)]);
    expect(scan(odd)).toEqual({ type: 'disconnect' });
  });
});
