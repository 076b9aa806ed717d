// Which source of a request's kv_hints the sidecar takes.

import { describe, expect, test } from 'vitest';

import { hintedSource } from '../../src/main/sidecar/hinted-source.js';
import type { RemoteKvSource } from '../../src/main/params/index.js';

function hintsTo(...endpoints: string[]): string {
  const actions = endpoints.map((endpoint) => ({
    action_id: 'a',
    action_type: 'kv.fetch',
    action_version: '1.0',
    payload: { source_control_endpoint: `tcp://${endpoint}`, block_hashes: [1, 2] },
  }));
  return JSON.stringify({ protocol_version: '0.1', message_id: 'm', actions });
}

/** @param allowed what the allow-list has */
function take(
  hints: string,
  allowed: readonly string[] | undefined,
  dataParallelSize = 1,
): { source: RemoteKvSource | undefined; ignored: string[] } {
  const ignored: string[] = [];
  const source = hintedSource(hints, [{ host: '10.0.0.1', port: 7777 }], {
    allowList: { allows: (host, port) => allowed?.includes(`${host}:${port}`) ?? true },
    port: 8000,
    p2pConnectorPort: 7777,
    dataParallelSize,
    ignored: (reason) => ignored.push(reason),
  });
  return { source, ignored };
}

describe('the source', () => {
  test('is the first one, with its hashes', () => {
    const { source } = take(hintsTo('10.0.0.2:7777', '10.0.0.3:7777'), undefined);
    expect(source).toMatchObject({ host: '10.0.0.2', port: 7777 });
    expect(source?.filter?.size).toBe(2);
  });

  test('is never the engine that computes the request', () => {
    const { source, ignored } = take(hintsTo('10.0.0.1:7777', '10.0.0.3:7777'), undefined);
    expect(source?.host).toBe('10.0.0.3');
    expect(ignored).toEqual(['self']);
  });

  test('is the first one that is allowed, itself or by the serving port of its rank', () => {
    expect(take(hintsTo('10.0.0.2:7777'), ['10.0.0.2:7777']).source?.port).toBe(7777);
    expect(take(hintsTo('10.0.0.2:7777'), ['10.0.0.2:8000']).source?.port).toBe(7777);
    expect(take(hintsTo('10.0.0.2:7778'), ['10.0.0.2:8001'], 2).source?.port).toBe(7778);
    const denied = take(hintsTo('10.0.0.2:7777', '10.0.0.3:7777'), ['10.0.0.3:8000']);
    expect(denied.source?.host).toBe('10.0.0.3');
    expect(denied.ignored).toEqual(['endpoint-denied']);
  });

  test.each(['10.0.0.2:22', '10.0.0.2:7778', '10.0.0.2:7776', '10.0.0.2:8001'])(
    'is not %s where only 10.0.0.2:8000 is allowed',
    (endpoint) => {
      expect(take(hintsTo(endpoint), ['10.0.0.2:8000'])).toEqual({
        source: undefined,
        ignored: ['endpoint-denied'],
      });
    },
  );

  test('is none when the hints are of no use', () => {
    expect(take('[1', undefined)).toEqual({ source: undefined, ignored: ['malformed'] });
    expect(take('{"protocol_version":"9"}', undefined)).toEqual({
      source: undefined,
      ignored: ['protocol-version'],
    });
  });
});
