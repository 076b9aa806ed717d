// kv_transfer_params: which are legal, what is said about those that are not, and what an engine gets.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  allocateIds,
  buildParams,
  canonicalParams,
  formatIssue,
  isSameAddress,
  KvpeerParamsError,
  parseHost,
  parseHostPort,
  parseParams,
  parseParamsOrThrow,
  parsePeerUrl,
  UsedIds,
  validateLegs,
  type ParamsIssueCode,
  type ParseParamsOptions,
} from '../../src/main/params/index.js';

const DECODER = { kv_request_id: 'id-1' };
const PREFILLER = { kv_request_id: 'id-1', remote_host: '10.0.0.7', remote_port: 7777 };
const SOURCE = { kv_request_id: 'id-2', remote_host: '10.0.0.9', remote_port: 7777 };

function codes(value: unknown, options?: ParseParamsOptions): ParamsIssueCode[] {
  const result = parseParams(value, options);
  return result.ok ? [] : result.errors.map((issue) => issue.code);
}

function warningCodes(value: unknown, options?: ParseParamsOptions): ParamsIssueCode[] {
  return parseParams(value, options).warnings.map((issue) => issue.code);
}

describe('combinations (rule 2)', () => {
  it.each([
    ['none, the key absent', undefined, 'none'],
    ['none, an empty object', {}, 'none'],
    ['remote_decoder alone', { remote_decoder: DECODER }, 'remote_decoder'],
    ['remote_prefiller alone', { remote_prefiller: PREFILLER }, 'remote_prefiller'],
    ['remote_kv_source alone', { remote_kv_source: SOURCE }, 'remote_kv_source'],
    [
      'the pair of remote_decoder and remote_kv_source',
      { remote_kv_source: SOURCE, remote_decoder: DECODER },
      'remote_decoder+remote_kv_source',
    ],
  ])('accepts %s', (_, value, combination) => {
    expect(parseParamsOrThrow(value).combination).toBe(combination);
  });

  it.each([
    ['remote_decoder and remote_prefiller', { remote_prefiller: PREFILLER, remote_decoder: DECODER }],
    ['remote_prefiller and remote_kv_source', { remote_prefiller: PREFILLER, remote_kv_source: SOURCE }],
    [
      'remote_decoder and remote_prefiller and remote_kv_source',
      { remote_prefiller: PREFILLER, remote_decoder: DECODER, remote_kv_source: SOURCE },
    ],
  ])('rejects %s and names the keys', (keys, value) => {
    const result = parseParams(value);
    expect(result.ok).toBe(false);
    if (result.ok) return;
    expect(result.errors.map((issue) => issue.code)).toContain('COMBINATION');
    expect(result.errors[0].message).toContain(keys);
  });

  it('judges a combination by the keys that are there, also when a value is empty', () => {
    expect(codes({ remote_prefiller: {}, remote_decoder: {} })).toContain('COMBINATION');
  });
});

describe('shapes (rule 1)', () => {
  it.each([null, [], 'x', 7, true])('rejects %j in place of the whole object', (value) => {
    expect(codes(value)).toEqual(['NOT_AN_OBJECT']);
  });

  it.each(['remote_decoder', 'remote_prefiller'])('rejects a %s that is no object', (role) => {
    for (const value of [null, [], 'x', 1]) expect(codes({ [role]: value })).toEqual(['NOT_AN_OBJECT']);
  });

  it('rejects a source that is no object, alone and in a list, with its place', () => {
    expect(codes({ remote_kv_source: 'x' })).toEqual(['NOT_AN_OBJECT']);
    const result = parseParams({ remote_kv_source: [SOURCE, null] });
    expect(!result.ok && result.errors[0].path).toBe('kv_transfer_params.remote_kv_source[1]');
  });
});

describe('retired keys and keys of other connectors (rule 3)', () => {
  it.each([
    ['prefill', 'remote_prefiller'],
    ['decode', 'remote_decoder'],
    ['p2p', 'remote_kv_source'],
  ])('rejects %s and names %s', (retired, current) => {
    const result = parseParams({ [retired]: SOURCE });
    expect(result.ok).toBe(false);
    if (result.ok) return;
    expect(result.errors[0].code).toBe('RETIRED_KEY');
    expect(formatIssue(result.errors[0])).toContain(current);
  });

  it('flags the flat keys of NIXL unless its connector runs beside this one', () => {
    const value = { do_remote_prefill: true, do_remote_decode: false, remote_engine_id: 'e' };
    expect(warningCodes(value)).toEqual(['OTHER_CONNECTOR', 'OTHER_CONNECTOR', 'OTHER_CONNECTOR']);
    expect(codes(value, { strict: true })).toContain('OTHER_CONNECTOR');
    expect(parseParams(value, { strict: true, connector: 'multi' })).toMatchObject({
      ok: true,
      warnings: [],
    });
  });
});

describe('ids (rule 4)', () => {
  it.each(['remote_decoder', 'remote_prefiller'])('requires one in %s', (role) => {
    expect(codes({ [role]: { remote_host: 'h', remote_port: 1 } })).toContain('ID_MISSING');
  });

  it.each([
    ['empty', ''],
    ['a number', 7],
    ['null', null],
    ['a list', ['x']],
    ['513 bytes long', 'x'.repeat(513)],
    ['512 characters of two bytes', 'é'.repeat(512)],
    ['with a line break', 'a\nb'],
    ['with a NUL', 'a\0b'],
    ['with a lone surrogate', 'a\ud800b'],
    ['with a zero-width joiner', 'a\u200db'],
    ['with a no-break space', 'a\u00a0b'],
  ])('rejects one that is %s', (_, id) => {
    expect(codes({ remote_decoder: { kv_request_id: id } })).toEqual(['ID_INVALID']);
    expect(codes({ remote_kv_source: { ...SOURCE, kv_request_id: id } })).toEqual(['ID_INVALID']);
  });

  it('accepts 512 bytes, blanks and letters of any script', () => {
    for (const kv_request_id of ['x'.repeat(512), 'é'.repeat(256), 'a b', '请求-1', '🙂']) {
      expect(codes({ remote_decoder: { kv_request_id } })).toEqual([]);
    }
  });

  it('lets the consumer allocate the id of a source, and requires it in strict mode', () => {
    const source = { remote_host: '10.0.0.9', remote_port: 7777 };
    const params = parseParamsOrThrow({ remote_kv_source: source });
    expect(params.remoteKvSource?.[0].kvRequestId).toBeUndefined();
    expect(allocateIds(params, () => 'fresh').remoteKvSource?.[0].kvRequestId).toBe('fresh');
    expect(codes({ remote_kv_source: source }, { strict: true })).toEqual(['ID_MISSING']);
  });
});

describe('addresses (rules 5 and 6)', () => {
  it.each([
    '',
    'http://h',
    'h/path',
    'h?q=1',
    'a b',
    ' h',
    'h\t',
    'a,b',
    'h:80',
    'user@h',
    '[h]',
    '[10.0.0.1]',
    '::1:',
    '1.2.3',
    '127.1',
    '0x7f.1',
    '300.1.1.1',
    '0.0.0.0',
    '::',
    '%zz',
    'é.example',
    'h\\x',
    '-h',
    '.',
    'a..b',
    'x'.repeat(254),
    5,
    null,
  ])('rejects remote_host %j', (remote_host) => {
    expect(codes({ remote_prefiller: { ...PREFILLER, remote_host } })).toEqual(['HOST_INVALID']);
  });

  it.each([
    ['10.0.0.7', '10.0.0.7'],
    ['pod-3.kv.svc.cluster.local', 'pod-3.kv.svc.cluster.local'],
    ['Pod_3', 'Pod_3'],
    ['h.', 'h.'],
    ['[::1]', '::1'],
    ['2001:DB8:0:0::1', '2001:db8::1'],
    ['[fe80::1%eth0]', 'fe80::1%eth0'],
  ])('reads remote_host %s as %s', (remote_host, host) => {
    const params = parseParamsOrThrow({ remote_prefiller: { ...PREFILLER, remote_host } });
    expect(params.remotePrefiller?.host).toBe(host);
  });

  it.each([0, -1, 65536, 1.5, true, '7777', null, [7777]])('rejects remote_port %j', (remote_port) => {
    expect(codes({ remote_kv_source: { ...SOURCE, remote_port } })).toEqual(['PORT_INVALID']);
  });

  it('names each missing part of an address', () => {
    expect(codes({ remote_kv_source: {} })).toEqual(['ADDRESS_MISSING', 'ADDRESS_MISSING']);
    expect(codes({ remote_kv_source: { remote_host: 'h' } })).toEqual(['ADDRESS_MISSING']);
  });

  it.each(['remote_host', 'remote_port', 'remote_url'])('rejects %s in remote_decoder', (key) => {
    expect(codes({ remote_decoder: { ...DECODER, [key]: 'x' } })).toEqual(['DECODER_ADDRESS']);
  });
});

describe('remote_url', () => {
  it.each([
    ['p2p://10.0.0.9:5710', '10.0.0.9', 5710, undefined],
    ['p2p://[2001:DB8::1]:5710', '2001:db8::1', 5710, undefined],
    ['p2p://node-1:1?transport=rdma', 'node-1', 1, 'rdma'],
    ['P2P://node-1:65535/', 'node-1', 65535, undefined],
  ])('reads %s', (remote_url, host, port, transport) => {
    const params = parseParamsOrThrow({ remote_kv_source: { remote_url } });
    expect(params.remoteKvSource).toEqual([{ kvRequestId: undefined, host, port, transport }]);
  });

  it.each([
    'p2p://h',
    'p2p://:80',
    'p2p://h:0',
    'p2p://h:65536',
    'p2p://h:80/path',
    'p2p://h:80?x=1',
    'p2p://h:80?transport=',
    'p2p://u@h:80',
    'p2p://::1:80',
    'p2p://h:80#f',
    'tcp://h:80',
    'h:80',
    ' p2p://h:80',
    'p2p://a b:80',
    '',
    7,
    null,
  ])('rejects %j', (remote_url) => {
    expect(codes({ remote_kv_source: { remote_url } })).toEqual(['URL_INVALID']);
  });

  it('may stand beside the same host and port, never beside others', () => {
    const remote_url = 'p2p://[::1]:5710';
    const same = { remote_url, remote_host: '0:0:0:0:0:0:0:1', remote_port: 5710 };
    expect(codes({ remote_kv_source: same })).toEqual([]);
    expect(codes({ remote_kv_source: { remote_url, remote_host: '::1' } })).toEqual([]);
    for (const other of [{ remote_host: '::2' }, { remote_port: 5711 }, { ...same, remote_port: 1 }]) {
      expect(codes({ remote_kv_source: { remote_url, ...other } })).toEqual(['ADDRESS_CONFLICT']);
    }
  });

  it('works for a prefiller too and never reaches an engine', () => {
    const params = parseParamsOrThrow({
      remote_prefiller: { kv_request_id: 'x', remote_url: 'p2p://h:80?transport=tcp' },
    });
    expect(canonicalParams(params)).toEqual({
      remote_prefiller: { kv_request_id: 'x', remote_host: 'h', remote_port: 80 },
    });
  });
});

describe('ids and addresses together (rule 7)', () => {
  it('rejects equal ids in the pair, also inside a list', () => {
    const source = { ...SOURCE, kv_request_id: 'id-1' };
    expect(codes({ remote_decoder: DECODER, remote_kv_source: source })).toEqual(['IDS_EQUAL']);
    const list = [SOURCE, { ...source, remote_port: 1 }];
    expect(codes({ remote_decoder: DECODER, remote_kv_source: list })).toEqual(['IDS_EQUAL']);
  });

  it('rejects a source that is the computing node, in every spelling of its address', () => {
    const self = [
      { host: 'Node-1', port: 7777 },
      { host: '::1', port: 7777 },
    ];
    for (const remote_host of ['node-1', 'NODE-1.', '[0:0::1]']) {
      expect(codes({ remote_kv_source: { ...SOURCE, remote_host } }, { self })).toEqual(['SOURCE_IS_SELF']);
    }
    expect(
      codes({ remote_kv_source: { ...SOURCE, remote_host: 'node-1', remote_port: 7778 } }, { self }),
    ).toEqual([]);
  });
});

describe('several sources', () => {
  const sourceAt = (port: number) => ({ kv_request_id: `id-${port}`, remote_host: 'h', remote_port: port });

  it('keeps 1 to 8 in order and rejects other numbers', () => {
    const list = [3, 1, 2, 8, 7, 6, 5, 4].map(sourceAt);
    const params = parseParamsOrThrow({ remote_kv_source: list });
    expect(params.remoteKvSource?.map((source) => source.port)).toEqual([3, 1, 2, 8, 7, 6, 5, 4]);
    expect(codes({ remote_kv_source: [] })).toEqual(['SOURCE_COUNT']);
    expect(codes({ remote_kv_source: [...list, sourceAt(9)] })).toEqual(['SOURCE_COUNT']);
  });

  it('rejects one address named twice', () => {
    expect(codes({ remote_kv_source: [SOURCE, { ...SOURCE, kv_request_id: 'other' }] })).toEqual([
      'SOURCE_REPEATED',
    ]);
  });

  it('is one object for an engine: the preferred source, or the one that is picked', () => {
    const params = parseParamsOrThrow({ remote_kv_source: [sourceAt(1), sourceAt(2)] });
    expect(canonicalParams(params)).toEqual({ remote_kv_source: sourceAt(1) });
    expect(canonicalParams(params, { pickSource: (sources) => sources[1] })).toEqual({
      remote_kv_source: sourceAt(2),
    });
    expect(canonicalParams(params, { engineAcceptsLists: true })).toEqual({
      remote_kv_source: [sourceAt(1), sourceAt(2)],
    });
  });

  it('is one object whenever there is one, also for an engine that accepts lists', () => {
    const params = parseParamsOrThrow({ remote_kv_source: [sourceAt(1)] });
    expect(canonicalParams(params, { engineAcceptsLists: true })).toEqual({ remote_kv_source: sourceAt(1) });
  });
});

describe('two legs and ids over time (rule 8)', () => {
  it('accepts a decode leg that pulls under the id of the prefill leg', () => {
    const prefill = parseParamsOrThrow({ remote_decoder: DECODER, remote_kv_source: SOURCE });
    expect(validateLegs(prefill, parseParamsOrThrow({ remote_prefiller: PREFILLER }))).toEqual([]);
  });

  it('names what does not fit between the legs', () => {
    const prefill = parseParamsOrThrow({ remote_decoder: DECODER });
    const other = parseParamsOrThrow({ remote_prefiller: { ...PREFILLER, kv_request_id: 'other' } });
    expect(validateLegs(prefill, other).map((issue) => issue.code)).toEqual(['LEGS_DIFFER']);
    const none = parseParamsOrThrow({});
    expect(validateLegs(none, none)).toHaveLength(2);
  });

  it('knows an id again until its time is over or the memory is full', () => {
    const ids = new UsedIds(1000, 2);
    expect(ids.use('a', 0)).toBe(true);
    expect(ids.use('a', 999)).toBe(false);
    expect(ids.use('a', 1000)).toBe(true);
    expect(ids.use('b', 1000)).toBe(true);
    expect(ids.use('a', 1001)).toBe(false);
    expect(ids.use('c', 1001)).toBe(true);
    expect(ids.size).toBe(2);
    expect(ids.use('b', 1002)).toBe(false);
  });
});

describe('unknown keys (rule 9)', () => {
  it('warns by default, names the nearest key, and rejects in strict mode', () => {
    const value = { remote_kv_sources: SOURCE, remote_decoder: { ...DECODER, extra: 1 } };
    const result = parseParams(value);
    expect(result.ok).toBe(true);
    expect(result.warnings.map((issue) => issue.code)).toEqual(['UNKNOWN_KEY', 'UNKNOWN_KEY']);
    expect(result.warnings[0].remedy).toBe('did you mean remote_kv_source?');
    expect(result.warnings[1].path).toBe('kv_transfer_params.remote_decoder.extra');
    expect(codes(value, { strict: true })).toEqual(['UNKNOWN_KEY', 'UNKNOWN_KEY']);
  });

  it('passes the values of the engine on and says which of them have no effect', () => {
    const value = { max_offload_tokens: 5, max_load_tokens: true, kv_load_tiers: [] };
    const params = parseParamsOrThrow(value);
    expect(params.isPullOff).toBe(true);
    expect(canonicalParams(params)).toEqual(value);
    expect(warningCodes(value)).toEqual(['VALUE_IGNORED']);
    expect(warningCodes({ max_offload_tokens: -1, kv_load_tiers: {} })).toEqual([
      'VALUE_IGNORED',
      'VALUE_IGNORED',
    ]);
  });

  it('answers an object of ten thousand unknown keys with a bounded list', () => {
    const value = Object.fromEntries(Array.from({ length: 10_000 }, (_, i) => [`key${i}\n`, i]));
    const { warnings } = parseParams(value);
    expect(warnings.length).toBeLessThanOrEqual(64);
    expect(warnings.every((issue) => !issue.path.includes('\n'))).toBe(true);
  });

  it('keeps a key named __proto__ a key', () => {
    const value: unknown = JSON.parse('{"__proto__": {"remote_decoder": {"kv_request_id": "x"}}}');
    const params = parseParamsOrThrow(value);
    expect(params.combination).toBe('none');
    expect(JSON.stringify(canonicalParams(params))).toBe(JSON.stringify(value));
  });
});

describe('building', () => {
  it('writes the legs of a prefill/decode request as vLLM reads them', () => {
    const address = { host: '10.0.0.7', port: 7777 };
    const source = { host: '[2001:db8:0::9]', port: 7778 };
    expect(
      JSON.stringify(
        buildParams(
          { remoteDecoder: { kvRequestId: 'a' }, remoteKvSource: source },
          { newId: () => 'fresh' },
        ),
      ),
    ).toBe(
      '{"remote_decoder":{"kv_request_id":"a"},"remote_kv_source":{"kv_request_id":"fresh","remote_host":"2001:db8::9","remote_port":7778}}',
    );
    expect(buildParams({ remotePrefiller: { kvRequestId: 'a', ...address } })).toEqual({
      remote_prefiller: { kv_request_id: 'a', remote_host: '10.0.0.7', remote_port: 7777 },
    });
  });

  it('throws all findings for parts that are illegal', () => {
    const build = () =>
      buildParams({
        remoteDecoder: { kvRequestId: '' },
        remotePrefiller: { kvRequestId: 'a', host: 'h:1', port: 0 },
      });
    expect(build).toThrow(KvpeerParamsError);
    expect(build).toThrow(/remote_decoder\.kv_request_id.*remote_host.*remote_port/s);
  });
});

const idArb = fc.string({ unit: 'grapheme-ascii', minLength: 1, maxLength: 40 });
const hostArb = fc.oneof(fc.ipV4(), fc.ipV6(), fc.domain()).filter((host) => 'host' in parseHost(host));
const sourceArb = fc.record(
  { kv_request_id: idArb, remote_host: hostArb, remote_port: fc.integer({ min: 1, max: 65535 }) },
  { requiredKeys: ['remote_host', 'remote_port'] },
);

describe('properties', () => {
  it('never throws, whatever JSON comes', () => {
    const keys = fc.constantFrom(
      'remote_decoder',
      'remote_prefiller',
      'remote_kv_source',
      'p2p',
      '__proto__',
      'x',
    );
    const inner = fc.constantFrom('kv_request_id', 'remote_host', 'remote_port', 'remote_url');
    const section = fc.oneof(fc.jsonValue(), fc.dictionary(inner, fc.jsonValue()));
    const value = fc.oneof(
      fc.jsonValue(),
      fc.dictionary(keys, fc.oneof(section, fc.array(section, { maxLength: 9 }))),
    );
    fc.assert(
      fc.property(value, fc.boolean(), (json, strict) => {
        const result = parseParams(json, { strict });
        if (!result.ok) expect(result.errors.length).toBeGreaterThan(0);
      }),
    );
  });

  it('gives an engine only maps with an id, a host without brackets and a port', () => {
    const params = fc.record(
      {
        remote_decoder: fc.record({ kv_request_id: idArb }),
        remote_kv_source: fc.oneof(sourceArb, fc.array(sourceArb, { minLength: 1, maxLength: 8 })),
      },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(params, (value) => {
        const result = parseParams(value);
        if (!result.ok) {
          expect(result.errors.every((e) => ['IDS_EQUAL', 'SOURCE_REPEATED'].includes(e.code))).toBe(true);
          return;
        }
        const canonical = canonicalParams(result.params, { newId: () => 'allocated id' });
        const again = parseParamsOrThrow(canonical, { strict: true });
        expect(canonicalParams(again)).toEqual(canonical);
        if (value.remote_kv_source !== undefined) {
          expect(Object.keys(canonical.remote_kv_source as object)).toEqual([
            'kv_request_id',
            'remote_host',
            'remote_port',
          ]);
        }
      }),
    );
  });

  it('reads an address the same from host and port, from a URL and from host:port', () => {
    fc.assert(
      fc.property(hostArb, fc.integer({ min: 1, max: 65535 }), (host, port) => {
        const written = host.includes(':') ? `[${host}]` : host;
        const url = parsePeerUrl(`p2p://${written}:${port}`);
        const pair = parseHostPort(`${written}:${port}`);
        expect(url).toMatchObject(pair);
        expect('host' in pair && 'host' in url && isSameAddress(pair, url)).toBe(true);
      }),
    );
  });
});
