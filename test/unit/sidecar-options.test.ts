// The sidecar's flags, environment and YAML: the reference's names and weights, and a clear end for what is not here.

import { describe, expect, it } from 'vitest';
import { KvpeerError } from '../../src/main/errors.js';
import {
  resolveSidecarOptions,
  validateSidecarOptions,
  type SidecarOptions,
} from '../../src/main/sidecar/options.js';

type Flags = Readonly<Record<string, string | boolean | readonly string[] | undefined>>;

function resolve(
  flags: Flags = {},
  env: Record<string, string> = {},
  yaml?: unknown,
): ReturnType<typeof resolveSidecarOptions> {
  return resolveSidecarOptions({ flags, env, yaml });
}

function faultOf(flags: Flags, env: Record<string, string> = {}, yaml?: unknown): string {
  try {
    resolve(flags, env, yaml);
  } catch (error) {
    if (error instanceof KvpeerError && error.code === 'KVPEER_INVALID_OPTION') return error.message;
    throw error;
  }
  return '';
}

describe('what is not here ends the start, naming the flag and what to do', () => {
  it.each(['nixlv2', 'shared-storage', 'sglang', 'mooncake'])('the connector %s', (kvConnector) => {
    const fault = faultOf({ kvConnector });
    expect(fault).toContain(`--kv-connector is "${kvConnector}"; it must be "offloading"`);
    expect(fault).toContain("keep llm-d's own in front of engines that use them");
  });

  it('pulls of the connector nixlv2', () => {
    expect(faultOf({ enableP2pPull: true })).toBe(
      '--enable-p2p-pull is for the connector nixlv2; offloading pulls anyway, leave it out',
    );
    expect(faultOf({ enableP2pPull: true, kvConnector: 'nixlv2' })).toContain('--kv-connector is "nixlv2"');
  });

  it('chunked decode, and an encoder connector', () => {
    expect(faultOf({ decodeChunkSize: '4' })).toMatch(
      /^--decode-chunk-size is 4; it must be 0: .*leave it out/,
    );
    expect(faultOf({ ecConnector: 'x' })).toMatch(/^--ec-connector is "x"; it must be "": .*leave it out/);
  });

  it('and what asks for nothing is accepted', () => {
    const given = {
      kvConnector: 'offloading',
      decodeChunkSize: '0',
      ecConnector: '',
      enableP2pPull: 'false',
    };
    expect(resolve(given)).toMatchObject({ kvConnector: 'offloading', decodeChunkSize: 0, ecConnector: '' });
    expect(resolve({ prefillMaxRetries: '3', tracing: true })).toMatchObject({ prefillMaxRetries: 3 });
  });
});

describe('the P2P port', () => {
  it('is 7777, else what the environment says, else what the flag says', () => {
    expect(resolve().p2pConnectorPort).toBe(7777);
    expect(resolve({}, { P2P_CONNECTOR_PORT: '5710' }).p2pConnectorPort).toBe(5710);
    expect(resolve({ p2pConnectorPort: '1' }, { P2P_CONNECTOR_PORT: '5710' }).p2pConnectorPort).toBe(1);
    expect(resolve({}, { P2P_CONNECTOR_PORT: 'x' }).p2pConnectorPort).toBe(7777);
  });

  it.each(['0', '65536', '-1', 'x', '1.5'])('cannot be %s', (p2pConnectorPort) => {
    expect(faultOf({ p2pConnectorPort })).toContain('--p2p-connector-port is');
  });

  it.each(['port', 'modelServerPort', 'p2pConnectorPort'])('and %s leave room for every rank', (name) => {
    expect(faultOf({ [name]: '65535', dataParallelSize: '2' })).toContain('leaves no room for 2 ranks');
    expect(faultOf({ [name]: '65534', dataParallelSize: '2' })).toBe('');
    expect(faultOf({ [name]: '65535' })).toBe('');
  });
});

describe('YAML', () => {
  it('has the flags as keys, and loses against them', () => {
    const yaml = { port: 9000, 'data-parallel-size': 2, 'secure-serving': false };
    expect(resolve({ port: '9001' }, {}, yaml)).toMatchObject({
      port: 9001,
      dataParallelSize: 2,
      secureServing: false,
    });
  });

  it('is refused with an unknown key, text for a number, or no map', () => {
    expect(faultOf({}, {}, { profil: 'A' })).toContain('did you mean profile?');
    expect(faultOf({}, {}, { port: '9000' })).toContain('port in the configuration is "9000"');
    expect(faultOf({}, {}, [])).toContain('holds no map');
  });
});

describe('the names of the TLS flag', () => {
  it('are two in profile B, which may not contradict each other, and the older one in A', () => {
    expect(resolve({ secureProxy: 'false' }).secureServing).toBe(false);
    expect(resolve({ secureServing: 'false' }).secureServing).toBe(false);
    expect(faultOf({ secureServing: 'true', secureProxy: 'false' })).toContain('contradict each other');
    expect(faultOf({ profile: 'A', secureServing: 'false' })).toContain('write --secure-proxy');
    expect(resolve({ profile: 'A', secureProxy: 'false' }).secureServing).toBe(false);
  });
});

describe('the environment of the reference', () => {
  it('names the pool, the sampling and the pod', () => {
    const env = { INFERENCE_POOL: 'ns/pool', ENABLE_PREFILLER_SAMPLING: 'true', POD_IP: 'fd00::1' };
    expect(resolve({}, env)).toMatchObject({
      inferencePool: 'ns/pool',
      enablePrefillerSampling: true,
      podIp: 'fd00::1',
    });
  });
});

it('a program may take a free port, and is told an unknown option', () => {
  expect(validateSidecarOptions({ port: 0 }).port).toBe(0);
  expect(() => validateSidecarOptions({ port: 0, dataParallelSize: 2 })).toThrow('one free port');
  expect(() => validateSidecarOptions(JSON.parse('{"profil":"A"}') as SidecarOptions)).toThrow(
    'did you mean profile?',
  );
});
