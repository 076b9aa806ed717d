// Options: where a value comes from, what is refused and how, and that the design's figures are the defaults.

import fc from 'fast-check';
import { format } from 'prettier';
import { describe, expect, it } from 'vitest';
import { KvpeerError } from '../../src/main/errors.js';
import { createLogger } from '../../src/main/observe/log.js';
import {
  flagOf,
  formatBytes,
  OPTION_NAMES,
  OPTION_TABLE,
  parseBytes,
  renderOptionsTable,
  resolveOptions,
  splitAdvertise,
  validateOptions,
  variableOf,
  type OptionName,
  type OptionSources,
  type PeerOptions,
} from '../../src/main/options.js';

function messageOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof KvpeerError && error.code === 'KVPEER_INVALID_OPTION') return error.message;
    throw error;
  }
  throw new Error('nothing was refused');
}

const refusal = (sources: OptionSources): string => messageOf(() => resolveOptions(sources));

describe('the figures of the design', () => {
  it.each([
    ['handshakeMs', 30_000],
    ['suspectedHandshakeMs', 1_000],
    ['redialMs', 3_000],
    ['heartbeatMs', 2_000],
    ['heartbeatTimeoutMs', 10_000],
    ['lookupMs', 8_000],
    ['holdMs', 5_000],
    ['leaseMs', 30_000],
    ['loadMs', 30_000],
    ['abortAckMs', 10_000],
    ['storeMs', 30_000],
    ['unclaimedStoreMs', 60_000],
    ['rememberedMs', 60_000],
    ['backoffMinMs', 1_000],
    ['backoffMaxMs', 60_000],
    ['plainPostMs', 25_000],
    ['plainAbortMs', 5_000],
    ['plainStopMs', 35_000],
    ['quarantineMaxMs', 600_000],
    ['queueMs', 1_000],
    ['retireMs', 1_000],
    ['socketDrainMs', 2_000],
    ['recycleIntervalMs', 60_000],
  ] as const)(
    'section 6, rules 4 and 9, section 10: %s is %d by default, and an option everywhere',
    (name, value) => {
      expect(validateOptions()[name]).toBe(value);
      expect(OPTION_TABLE[name].source).toMatch(/^(6, rule [49]|10)$/);
      expect(flagOf(name)).toMatch(/^--[a-z-]+-ms$/);
      const changed = value + 1 < 39_000 && name !== 'plainAbortMs' ? value + 1 : value - 1;
      expect(resolveOptions({ flags: { [name]: String(changed) } }).options[name]).toBe(changed);
      expect(resolveOptions({ env: { [variableOf(name)]: String(changed) } }).options[name]).toBe(changed);
      expect(resolveOptions({ yaml: { [name]: changed } }).options[name]).toBe(changed);
    },
  );

  it.each([
    ['maxMessageBytes', 8 * 1024 * 1024],
    ['maxKeys', 65_536],
    ['maxStringBytes', 512],
    ['maxMetadataBytes', 64 * 1024],
    ['maxPeers', 128],
    ['maxRounds', 1024],
    ['peerPinShare', 0.25],
    ['allPeersPinShare', 0.5],
    ['quarantineShare', 0.1],
    ['keyBytes', 36],
    ['blockBytes', 65_536],
  ] as const)('section 6, rule 5, sections 1 and 10: %s is %d by default', (name, value) => {
    expect(validateOptions()[name]).toBe(value);
  });

  it('names options after their units in all three spellings', () => {
    expect(flagOf('suspectedHandshakeMs')).toBe('--suspected-handshake-ms');
    expect(variableOf('maxMetadataBytes')).toBe('KVPEER_MAX_METADATA_BYTES');
    expect(flagOf('peerPinShare')).toBe('--peer-pin-share');
  });
});

describe('where a value comes from', () => {
  it('takes a flag before KVPEER_*, that before the variables of vLLM, those before the file, and that before the default', () => {
    const yaml = { port: 1 };
    const env = { VLLM_P2P_SIDE_CHANNEL_PORT: '2' };
    const ours = { ...env, KVPEER_PORT: '3' };
    const seen = [
      {},
      { yaml },
      { yaml, env },
      { yaml, env: ours },
      { yaml, env: ours, flags: { port: '4' } },
    ].map((sources: OptionSources) => {
      const { options, origins } = resolveOptions(sources);
      return [options.port, origins.port];
    });
    expect(seen).toEqual([
      [5710, 'default'],
      [1, 'file'],
      [2, 'environment'],
      [3, 'environment'],
      [4, 'flag'],
    ]);
  });

  it('honours VLLM_P2P_SIDE_CHANNEL_HOST; localhost is bound as 127.0.0.1 and advertised as written', () => {
    const env = { VLLM_P2P_SIDE_CHANNEL_HOST: 'localhost' };
    expect(resolveOptions({ env }).options).toMatchObject({ host: '127.0.0.1', advertise: 'localhost' });
  });

  it('takes an empty variable for one that is not set', () => {
    expect(resolveOptions({ env: { KVPEER_PORT: '' } }).options.port).toBe(5710);
  });

  it('warns of an unknown KVPEER_* variable with the nearest name, and of no other', () => {
    const env = { KVPEER_POOL_BYTE: '1', KVPEER_NIXL_DIR: '/x', KVPEER_CONFIG: 'f', PATH: '/bin' };
    const { warnings } = resolveOptions({ env });
    expect(warnings).toEqual(['the variable KVPEER_POOL_BYTE is unknown; did you mean KVPEER_POOL_BYTES?']);
  });
});

describe('what is refused', () => {
  it('an unknown flag, naming the nearest', () => {
    expect(refusal({ flags: { pollBytes: '1' } })).toBe(
      'the flag pollBytes is unknown; did you mean --pool-bytes?',
    );
  });

  it('an unknown key of the YAML file, naming file and nearest key', () => {
    expect(refusal({ yaml: { 'pool-bytes': 1 }, yamlFile: 'kvpeer.yaml' })).toBe(
      'the key pool-bytes in kvpeer.yaml is unknown; did you mean poolBytes?',
    );
    expect(refusal({ yaml: { zebra: 1 } })).toContain('see kvpeer serve --help');
  });

  it('some of the unknown keys of a file that is something else, and the number of the others', () => {
    const yaml = Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`zebra${i}`, i]));
    const lines = refusal({ yaml: { ...yaml, ['z'.repeat(500)]: 1 }, yamlFile: 'other.yaml' }).split('\n');
    expect(lines).toHaveLength(21);
    expect(lines[20]).toBe('other.yaml has 11 more unknown keys; is it the right file?');
  });

  it('a file that holds no map', () => {
    for (const yaml of [[], 'text', 7]) expect(refusal({ yaml })).toContain('holds no map');
  });

  it('an unknown option of a program', () => {
    const options = { blokBytes: 4096 } as PeerOptions;
    expect(messageOf(() => validateOptions(options))).toBe(
      'the option blokBytes is unknown; did you mean blockBytes?',
    );
  });

  it('a wrong value, naming option as written, value and what is allowed; all of them at once', () => {
    const message = refusal({
      flags: { port: '70000' },
      env: { KVPEER_KEY_BYTES: 'many' },
      yaml: { blockBytes: 5000 },
      yamlFile: 'f.yaml',
    });
    expect(message.split('\n')).toEqual([
      '--port is 70000; it must be a whole number from 0 to 65535',
      expect.stringMatching(/^blockBytes in f\.yaml is 5000; it must be .*a multiple of 4096/),
      'KVPEER_KEY_BYTES is "many"; it must be a whole number from 1 to 64',
    ]);
  });

  it.each<[OptionName, unknown]>([
    ['host', 'node-1'],
    ['host', ''],
    ['port', -1],
    ['port', 1.5],
    ['port', '5710'],
    ['advertise', '0.0.0.0:1'],
    ['advertise', 'h:0'],
    ['advertise', 'http://h:1'],
    ['poolBytes', 0],
    ['poolBytes', '1XB'],
    ['poolBytes', NaN],
    ['blockBytes', 6000],
    ['keyBytes', 65],
    ['shards', 0],
    ['ringCapacity', 1000],
    ['arenaBytes', 'much'],
    ['hashSeed', ''],
    ['hashSeed', 7],
    ['fingerprint', 'x'.repeat(513)],
    ['dataPlane', 'tcp'],
    ['logLevel', 'loud'],
    ['checksums', 'yes'],
    ['handshakeMs', 0],
    ['handshakeMs', Infinity],
    ['plainStopMs', 40_000],
    ['peerPinShare', 0],
    ['peerPinShare', 1.01],
  ])('%s = %j', (name, value) => {
    const options: PeerOptions = { [name]: value };
    expect(messageOf(() => validateOptions(options))).toMatch(new RegExp(`^${name} is `));
  });
});

it('a feature that does not exist is refused with the name that was meant', () => {
  const options = { features: ['lookup_sequ'] } as unknown as PeerOptions;
  expect(messageOf(() => validateOptions(options))).toMatch(
    /^the feature lookup_sequ is unknown; did you mean lookup_seq\?$/,
  );
  expect(() => validateOptions({ features: ['lookup_seq'] })).not.toThrow();
});

describe('a program that gives what is no options', () => {
  it.each<[unknown, RegExp]>([
    [null, /^the options are null; give an object/],
    [5710, /^the options are 5710;/],
    [[], /^the options are \[\];/],
    [{ features: 'lookup_seq' }, /^features is "lookup_seq"; it must be a list of names/],
    [{ features: [1] }, /^features is \[1\];/],
    [{ logger: {} }, /^logger has no debug, info, warn, error, fatal, child; give a pino logger/],
    [{ logger: 5 }, /^logger has no/],
  ])('%j is refused', (options, message) => {
    expect(messageOf(() => validateOptions(options as PeerOptions))).toMatch(message);
  });

  it('a value that contains itself is refused like any other', () => {
    const host: Record<string, unknown> = {};
    host.self = host;
    expect(messageOf(() => validateOptions({ host } as unknown as PeerOptions))).toMatch(/^host is object;/);
  });

  it('a logger is accepted', () => {
    expect(() => validateOptions({ logger: createLogger('silent') })).not.toThrow();
  });
});

describe('what must hold between options', () => {
  it.each<[PeerOptions, RegExp]>([
    [{ lookupMs: 5000 }, /^lookupMs is 5000 and holdMs \(default\) is 5000; the first must be more than/],
    [{ heartbeatMs: 10_000 }, /heartbeatTimeoutMs \(default\) is 10000/],
    [{ plainPostMs: 35_000 }, /plainStopMs/],
    [{ handshakeMs: 2_000 }, /redialMs/],
    [{ handshakeMs: 900, redialMs: 300 }, /suspectedHandshakeMs/],
    [{ backoffMinMs: 61_000 }, /backoffMaxMs/],
    [{ peerPinShare: 0.6 }, /allPeersPinShare \(default\) is 0.5/],
    [{ poolBytes: 65_536, shards: 2 }, /1 slots for 2 shards; give at least 128KiB/],
    [{ poolBytes: '16TiB', blockBytes: 4096 }, /more than 2147483646 slots/],
    [{ maxMessageBytes: 65_536 }, /room for the metadata/],
    [{ hashSeed: 'x'.repeat(40), maxStringBytes: 36 }, /longer than maxStringBytes/],
    [{ host: '0.0.0.0' }, /no other node can dial/],
    [{ host: '::' }, /--advertise/],
  ])('refuses %j', (options, message) => {
    expect(messageOf(() => validateOptions(options))).toMatch(message);
  });

  it('accepts clocks below a second and a wildcard with an advertised address', () => {
    const options = validateOptions({
      handshakeMs: 500,
      redialMs: 100,
      suspectedHandshakeMs: 200,
      lookupMs: 300,
      holdMs: 100,
      host: '0.0.0.0',
      advertise: 'pod-1:5710',
    });
    expect(options.lookupMs).toBe(300);
  });
});

describe('the API', () => {
  it('fills in every default, accepts sizes as text, and accepts its own result', () => {
    const options = validateOptions({ poolBytes: '64MiB', port: 0 });
    expect(options.poolBytes).toBe(64 * 1024 * 1024);
    expect(Object.keys(options).sort()).toEqual([...OPTION_NAMES].sort());
    expect(validateOptions(options)).toEqual(options);
  });

  it('takes undefined for not given', () => {
    expect(validateOptions({ port: undefined }).port).toBe(5710);
  });
});

describe('values as text', () => {
  it.each([
    ['4096', 4096],
    ['64KiB', 65_536],
    ['64ki', 65_536],
    ['1.5 GiB', 1.5 * 2 ** 30],
    ['10GB', 10_000_000_000],
    ['1TiB', 2 ** 40],
    ['0.5', undefined],
    ['-1', undefined],
    ['1e9', undefined],
    ['GiB', undefined],
    ['1 GiB x', undefined],
    ['', undefined],
  ])('reads the size %j as %s', (text, expected) => {
    expect(parseBytes(text)).toBe(expected);
  });

  it('reads every size that it writes', () => {
    fc.assert(
      fc.property(fc.maxSafeNat(), (size) => {
        expect(parseBytes(formatBytes(size))).toBe(size);
      }),
    );
  });

  it('reads switches, words instead of numbers, and hosts in brackets', () => {
    const env = { KVPEER_CHECKSUMS: 'on', KVPEER_ADMIN_PORT: 'off', KVPEER_HOST: '[::1]' };
    expect(resolveOptions({ env }).options).toMatchObject({ checksums: true, adminPort: 'off', host: '::1' });
    expect(resolveOptions({ flags: { checksums: false } }).options.checksums).toBe(false);
  });

  it('splits what is advertised into host and port, either of which may be the bound one', () => {
    expect(splitAdvertise('h:1')).toEqual({ host: 'h', port: 1 });
    expect(splitAdvertise('h')).toEqual({ host: 'h', port: undefined });
    expect(splitAdvertise('[::1]:7')).toEqual({ host: '::1', port: 7 });
    expect(splitAdvertise('::1')).toBeUndefined();
  });
});

describe('the table', () => {
  it('has a default within its own range for every option', () => {
    for (const name of OPTION_NAMES) {
      const { schema, defaultOf } = OPTION_TABLE[name];
      expect(schema.safeParse(defaultOf()).success, name).toBe(true);
    }
  });

  it('is rendered as Markdown with every flag, variable and key, just as the formatter leaves it', async () => {
    const markdown = renderOptionsTable();
    for (const name of OPTION_NAMES) {
      expect(markdown).toMatch(new RegExp(`\`${flagOf(name)}[ \`].*\`${variableOf(name)}\`.*\`${name}\` `));
    }
    expect(await format(markdown, { parser: 'markdown', printWidth: 110 })).toBe(`${markdown}\n`);
  });
});
