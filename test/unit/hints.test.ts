// kv_hints: what is read, what is ignored and counted, and which keys pass the filter.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import {
  canonicalParams,
  IGNORED_HINTS,
  parseHintsJson,
  parseParamsOrThrow,
  readHints,
  withHints,
  type HintRules,
} from '../../src/main/params/index.js';
import { HashFilter } from '../../src/main/params/hash-filter.js';
import { testKey } from '../fixtures/keys.js';

const MAX = (1n << 64n) - 1n;

function fetchOf(payload: Record<string, unknown> = {}, action: Record<string, unknown> = {}): unknown {
  return {
    action_id: 'a',
    action_type: 'kv.fetch',
    action_version: '1.0',
    payload: { source_control_endpoint: 'tcp://10.0.0.9:5710', block_hashes: [1], ...payload },
    ...action,
  };
}

function envelopeOf(...actions: unknown[]): Record<string, unknown> {
  return { protocol_version: '0.1', message_id: 'm', actions };
}

function read(value: unknown): { fetches: ReturnType<typeof readHints>; ignored: string[] } {
  const ignored: string[] = [];
  const fetches = readHints(value, (reason) => ignored.push(reason));
  return { fetches, ignored };
}

function hinted(
  params: unknown,
  hints: unknown,
  rules: Partial<HintRules> = {},
): { params: ReturnType<typeof withHints>; ignored: string[] } {
  const ignored: string[] = [];
  const result = withHints(parseParamsOrThrow(params), hints, {
    ignored: (reason) => ignored.push(reason),
    ...rules,
  });
  return { params: result, ignored };
}

/** The value with every bigint as the number that JSON.parse makes of it. */
function rounded(value: unknown): unknown {
  if (typeof value === 'bigint') return Number(value);
  if (Array.isArray(value)) return value.map(rounded);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, rounded(each)]));
}

describe('an envelope', () => {
  test('gives its fetches in order, with mode absent, null or copy', () => {
    const { fetches, ignored } = read(
      envelopeOf(
        fetchOf({ block_hashes: [7, MAX] }),
        fetchOf({ source_control_endpoint: 'tcp://[2001:DB8::1]:7777', mode: 'copy' }),
        fetchOf({ source_control_endpoint: 'tcp://node-3.kv:1', mode: null }),
      ),
    );
    expect(fetches).toEqual([
      { host: '10.0.0.9', port: 5710, hashes: [7n, MAX] },
      { host: '2001:db8::1', port: 7777, hashes: [1n] },
      { host: 'node-3.kv', port: 1, hashes: [1n] },
    ]);
    expect(ignored).toEqual([]);
  });

  test('as JSON text keeps every digit of a hash', () => {
    const text =
      '{"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a","action_type":"kv.fetch","action_version":"1.0",' +
      '"payload":{"source_control_endpoint":"tcp://h:1","block_hashes":[9007199254740993,18446744073709551615,0,5]}}]}';
    const hashes = [9_007_199_254_740_993n, MAX, 0n, 5n];
    expect(read(text).fetches).toEqual([{ host: 'h', port: 1, hashes }]);
    expect(read(Buffer.from(text)).fetches).toEqual([{ host: 'h', port: 1, hashes }]);
    expect(read(parseHintsJson(text)).fetches).toEqual([{ host: 'h', port: 1, hashes }]);
    // JSON.parse rounded two of them, and what was rounded is not used.
    expect(read(JSON.parse(text))).toEqual({
      fetches: [{ host: 'h', port: 1, hashes: [0n, 5n] }],
      ignored: ['block-hash', 'block-hash'],
    });
  });

  test.each([
    ['not-an-object', [], 'malformed'],
    ['null', null, 'malformed'],
    ['another version', { ...envelopeOf(fetchOf()), protocol_version: '0.2' }, 'protocol-version'],
    ['a version that is a number', { ...envelopeOf(fetchOf()), protocol_version: 0.1 }, 'protocol-version'],
    ['no version', { actions: [fetchOf()] }, 'protocol-version'],
    ['no actions', { protocol_version: '0.1' }, 'malformed'],
    ['text that is no JSON', '{"protocol_version":', 'malformed'],
    ['text nested 100,000 deep', '['.repeat(100_000), 'malformed'],
    ['text of 5 MiB', ' '.repeat(5 << 20), 'too-large'],
    ['bytes that are no UTF-8', Buffer.from([0xff, 0xfe]), 'malformed'],
  ])('that is %s is ignored whole, and counted', (_, value, reason) => {
    expect(read(value)).toEqual({ fetches: [], ignored: [reason] });
  });

  test.each([
    [['x'], 'action'],
    [[fetchOf({}, { action_type: 'kv.retain' })], 'action-type'],
    [[fetchOf({}, { action_version: '2.0' })], 'action-version'],
    [[fetchOf({}, { action_version: 1 })], 'action-version'],
    [[fetchOf({}, { payload: null })], 'action'],
    [[fetchOf({ mode: 'move' })], 'mode'],
    [[fetchOf({ source_control_endpoint: 'http://h:1' })], 'endpoint'],
    [[fetchOf({ source_control_endpoint: 'tcp://h' })], 'endpoint'],
    [[fetchOf({ source_control_endpoint: 'tcp://h:1/x' })], 'endpoint'],
    [[fetchOf({ source_control_endpoint: 'tcp://u@h:1' })], 'endpoint'],
    [[fetchOf({ source_control_endpoint: 'tcp://0.0.0.0:1' })], 'endpoint'],
    [[fetchOf({ source_control_endpoint: 5 })], 'endpoint'],
    [[fetchOf({ block_hashes: [] })], 'no-hashes'],
    [[fetchOf({ block_hashes: 'all' })], 'no-hashes'],
  ])('goes on after the action in %j', (actions, reason) => {
    const { fetches, ignored } = read(envelopeOf(...actions, fetchOf()));
    expect(fetches).toHaveLength(1);
    expect(ignored).toEqual([reason]);
  });

  test.each([-1, 0.5, 2 ** 53, -1n, MAX + 1n, '1', null, true])('leaves out the block hash %s', (hash) => {
    const { fetches, ignored } = read(envelopeOf(fetchOf({ block_hashes: [hash, 3n] })));
    expect(fetches[0].hashes).toEqual([3n]);
    expect(ignored).toEqual(['block-hash']);
  });

  test.each([
    ['9007199254740991', 9_007_199_254_740_991n],
    ['9007199254740992', 9_007_199_254_740_992n],
    ['9007199254740993', 9_007_199_254_740_993n],
    ['9223372036854775808', 9_223_372_036_854_775_808n],
    ['18446744073709551615', MAX],
    ['1.0', 1n],
    ['5e0', 5n],
    ['-0', 0n],
    ['18446744073709551616', undefined],
    ['99999999999999999999', undefined],
    ['100000000000000000000000000000', undefined],
    ['1e19', undefined],
    ['9007199254740991.4', undefined],
    ['1.00000000000000000001', undefined],
    ['0.5', undefined],
    ['-1', undefined],
    ['-18446744073709551615', undefined],
    ['"1"', undefined],
    ['"0x1"', undefined],
    ['[1]', undefined],
    ['null', undefined],
  ])('as JSON text reads the block hash %s exactly, or leaves it out', (text, hash) => {
    const { fetches, ignored } = read(
      `{"protocol_version":"0.1","actions":[{"action_type":"kv.fetch","action_version":"1.0","payload":` +
        `{"source_control_endpoint":"tcp://h:1","block_hashes":[${text},7]}}]}`,
    );
    expect(fetches).toEqual([{ host: 'h', port: 1, hashes: hash === undefined ? [7n] : [hash, 7n] }]);
    expect(ignored).toEqual(hash === undefined ? ['block-hash'] : []);
  });

  test('as JSON text keeps every unsigned 64-bit integer', () => {
    fc.assert(
      fc.property(fc.array(fc.bigInt({ min: 0n, max: MAX }), { minLength: 1 }), (hashes) => {
        const text = `{"protocol_version":"0.1","actions":[{"action_type":"kv.fetch","action_version":"1.0","payload":{"source_control_endpoint":"tcp://h:1","block_hashes":[${hashes.join()}]}}]}`;
        expect(read(text)).toEqual({ fetches: [{ host: 'h', port: 1, hashes }], ignored: [] });
      }),
    );
  });

  test('with getters or proxies that throw is ignored and counted', () => {
    const get = (): never => {
      throw new Error('no');
    };
    const { proxy, revoke } = Proxy.revocable({}, {});
    revoke();
    const values: unknown[] = [
      Object.defineProperty({}, 'protocol_version', { enumerable: true, get }),
      new Proxy(envelopeOf(fetchOf()), { get, getOwnPropertyDescriptor: get }),
      proxy,
      envelopeOf(fetchOf({ block_hashes: new Proxy([1], { get }) })),
    ];
    for (const value of values) expect(read(value)).toEqual({ fetches: [], ignored: ['malformed'] });
  });

  test('counts fields that it does not know, and uses the rest', () => {
    const { fetches, ignored } = read({ ...envelopeOf(fetchOf({ x: 1 }, { y: 2 })), z: 3 });
    expect(fetches).toHaveLength(1);
    expect(ignored).toEqual(['unknown-field', 'unknown-field', 'unknown-field']);
  });

  test('is read up to its bounds', () => {
    const many = envelopeOf(...Array.from({ length: 65 }, () => fetchOf()));
    expect(read(many).fetches).toHaveLength(64);
    expect(read(many).ignored).toEqual(['too-large']);
    const long = read(envelopeOf(fetchOf({ block_hashes: Array.from({ length: 65_537 }, (_, i) => i) })));
    expect(long.fetches[0].hashes).toHaveLength(65_536);
    expect(long.ignored).toEqual(['too-large']);
  });

  test('with keys of the prototype changes nothing', () => {
    const { fetches, ignored } = read(
      '{"__proto__":{"actions":[]},"protocol_version":"0.1","constructor":1,"toString":2}',
    );
    expect(fetches).toEqual([]);
    expect(ignored).toContain('malformed');
    expect(Object.prototype).not.toHaveProperty('actions');
  });

  test('never makes reading throw, whatever it is', () => {
    const reasons = Object.keys(IGNORED_HINTS);
    fc.assert(
      fc.property(
        fc.anything({ withBigInt: true, withNullPrototype: true, withSparseArray: true }),
        (value) => {
          const { ignored } = read(value);
          expect(reasons).toEqual(expect.arrayContaining(ignored));
        },
      ),
    );
    const field = fc.anything({ withBigInt: true });
    const action = fc.record({
      action_type: fc.constantFrom('kv.fetch', 'x'),
      action_version: fc.constantFrom('1.0', 1),
      payload: fc.record({ source_control_endpoint: field, block_hashes: fc.array(field), mode: field }),
    });
    fc.assert(
      fc.property(fc.array(fc.oneof(action, field)), (actions) => {
        const { fetches } = read(envelopeOf(...actions));
        for (const { hashes } of fetches)
          expect(hashes.every((hash) => hash >= 0n && hash <= MAX)).toBe(true);
      }),
    );
  });

  test('as any JSON text reads as JSON.parse reads it, but for digits', () => {
    fc.assert(
      fc.property(fc.json(), (text) => {
        fc.pre(!text.includes('__proto__'));
        expect(rounded(parseHintsJson(text))).toEqual(JSON.parse(text));
      }),
    );
  });
});

describe('params', () => {
  test('get the sources of the hints, several fetches from one source as one', () => {
    const { params, ignored } = hinted(
      undefined,
      envelopeOf(
        fetchOf({ block_hashes: [1, 2] }),
        fetchOf({ source_control_endpoint: 'tcp://b:5710' }),
        fetchOf({ block_hashes: [3] }),
      ),
    );
    expect(params.combination).toBe('remote_kv_source');
    expect(params.remoteKvSource?.map(({ host, port, filter }) => [host, port, filter?.size])).toEqual([
      ['10.0.0.9', 5710, 3],
      ['b', 5710, 1],
    ]);
    expect(ignored).toEqual([]);
    expect(canonicalParams(params, { newId: () => 'id' })).toEqual({
      remote_kv_source: { kv_request_id: 'id', remote_host: '10.0.0.9', remote_port: 5710 },
    });
  });

  test.each([
    { remote_kv_source: { remote_host: 'a', remote_port: 1 } },
    { remote_decoder: { kv_request_id: 'x' } },
    { kv_load_tiers: [] },
  ])('%j win over hints', (value) => {
    const { params, ignored } = hinted(value, envelopeOf(fetchOf()));
    expect(params).toEqual(parseParamsOrThrow(value));
    expect(ignored).toEqual(['params-win']);
  });

  test('that name no peer keep their other keys beside the hints', () => {
    const { params } = hinted({ max_offload_tokens: 3 }, envelopeOf(fetchOf()));
    expect(params.remoteKvSource).toHaveLength(1);
    expect(params.passThrough).toEqual({ max_offload_tokens: 3 });
  });

  test('stay as they are without hints, and nothing is counted', () => {
    for (const hints of [undefined, null]) {
      expect(hinted({}, hints)).toEqual({ params: parseParamsOrThrow({}), ignored: [] });
    }
  });

  test('with more hashes of one source than a list may have use as many, and the rest is counted', () => {
    const hashes = Array.from({ length: 40_000 }, (_, i) => i);
    const { params, ignored } = hinted(
      undefined,
      envelopeOf(fetchOf({ block_hashes: hashes }), fetchOf({ block_hashes: hashes.map((i) => i + 40_000) })),
    );
    expect(params.remoteKvSource?.[0].filter?.size).toBe(65_536);
    expect(ignored).toEqual(['too-large']);
  });

  test('get no source that is denied, is the node itself, or is one too many', () => {
    const others = Array.from({ length: 9 }, (_, i) => fetchOf({ source_control_endpoint: `tcp://n${i}:1` }));
    const { params, ignored } = hinted(
      undefined,
      envelopeOf(fetchOf(), fetchOf({ source_control_endpoint: 'tcp://SELF.:5710' }), ...others),
      { allows: (host) => host !== '10.0.0.9', self: [{ host: 'self', port: 5710 }] },
    );
    expect(params.remoteKvSource?.map(({ host }) => host)).toEqual(others.slice(0, 8).map((_, i) => `n${i}`));
    expect(ignored).toEqual(['endpoint-denied', 'self', 'too-many-sources']);
  });
});

describe('the filter', () => {
  const low64 = (key: Buffer): bigint => key.readBigUInt64BE(key.length - 12);

  test('passes keys by the last eight bytes of their hash, at any place in a packed list', () => {
    const keys = Array.from({ length: 200 }, (_, i) => testKey(i));
    const packed = Buffer.concat([Buffer.alloc(5), ...keys]);
    const filter = new HashFilter(BigUint64Array.from(keys.filter((_, i) => i % 3 === 0).map(low64)));
    for (let i = 0; i < keys.length; i++) expect(filter.has(packed, 5 + i * 36, 36)).toBe(i % 3 === 0);
  });

  test('holds exactly what it was given', () => {
    const word = fc.bigInt({ min: 0n, max: MAX });
    const near = fc.constantFrom(0n, 1n, 0xffff_ffffn, 0x1_0000_0000n, MAX - 1n, MAX);
    fc.assert(
      fc.property(fc.array(fc.oneof(word, near)), fc.oneof(word, near), (hashes, asked) => {
        const filter = new HashFilter(BigUint64Array.from(hashes));
        const key = Buffer.alloc(20, 0xaa);
        for (const hash of [...hashes, asked]) {
          key.writeBigUInt64BE(hash, 8);
          expect(filter.has(key, 0, 20)).toBe(hashes.includes(hash));
        }
      }),
    );
  });

  test('finds a hash that it was given more than once', () => {
    const filter = new HashFilter(BigUint64Array.of(5n, MAX, 5n, 5n, MAX));
    const key = Buffer.alloc(12);
    for (const [hash, isIn] of [
      [5n, true],
      [MAX, true],
      [4n, false],
      [6n, false],
    ] as const) {
      key.writeBigUInt64BE(hash);
      expect(filter.has(key, 0, 12)).toBe(isIn);
    }
  });

  test('pads a hash that is shorter than eight bytes in front', () => {
    const filter = new HashFilter(BigUint64Array.of(0x0102n));
    expect(filter.has(Buffer.from([9, 1, 2, 0, 0, 0, 0]), 1, 6)).toBe(true);
    expect(filter.has(Buffer.from([9, 1, 3, 0, 0, 0, 0]), 1, 6)).toBe(false);
    expect(filter.has(Buffer.from([1, 2]), 0, 2)).toBe(true);
  });
});
