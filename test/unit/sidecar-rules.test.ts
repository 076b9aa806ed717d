// The sidecar's rules without a connection: what routing headers say, which P2P port belongs to a serving port, and how
// each API is held to one token.

import { describe, expect, it } from 'vitest';
import { Body } from '../../src/main/sidecar/body.js';
import { choosePrefiller, isEndpoint, readSource } from '../../src/main/sidecar/headers.js';
import { editJson } from '../../src/main/sidecar/json-edit.js';
import { scanJsonObject } from '../../src/main/sidecar/json-scan.js';
import { p2pPortOf, prefillEdits } from '../../src/main/sidecar/legs.js';
import type { InferenceApi, Profile } from '../../src/main/sidecar/routes.js';

const lines = (...values: readonly string[]): string[] =>
  values.flatMap((value) => ['X-Prefiller-Host-Port', value]);
const last = (count: number): number => count - 1;

describe('the prefiller', () => {
  it.each([
    ['one', lines('a:1'), 'a:1'],
    ['one with blanks around it', lines(' a:1 '), 'a:1'],
    ['the first of a line with commas', lines('a:1,b:2'), 'a:1'],
    ['the first of a line with blanks', lines(' a:1 , b:2 '), 'a:1'],
    ['the first of several lines', lines('a:1', 'b:2'), 'a:1'],
    ['one with http://', lines('http://a:1'), 'a:1'],
    ['IPv6 in brackets', lines('[fd00::1]:1'), 'fd00::1:1'],
  ])('is %s', (_what, raw, wanted) => {
    const choice = choosePrefiller(raw, { isTls: false });
    expect(choice).toMatchObject({ kind: 'target' });
    if (choice.kind === 'target') expect(`${choice.target.host}:${choice.target.port}`).toBe(wanted);
  });

  it.each([
    ['there is no header', []],
    ['it is empty', lines('')],
    ['its first candidate is empty', lines(',b:2')],
    ['its first line is empty', lines('', 'b:2')],
  ])('is none when %s', (_what, raw) => {
    expect(choosePrefiller(raw, { isTls: false })).toEqual({ kind: 'none' });
  });

  it.each(['[fe80::1%eth0]:80', '[fe80::1%25eth0]:80'])(
    'is refused when its zone cannot be dialled: %s',
    (value) => {
      const choice = choosePrefiller(lines(value), { isTls: false });
      expect(choice).toMatchObject({ kind: 'fault' });
      if (choice.kind === 'fault') expect(choice.message).toMatch(/^header x-prefiller-host-port: .*zone/);
    },
  );

  it('is any of the candidates with sampling: of a line its parts, of lines each whole', () => {
    const rules = { isTls: false, pick: last };
    expect(choosePrefiller(lines('a:1,b:2'), rules)).toMatchObject({ target: { host: 'b' } });
    expect(choosePrefiller(lines('a:1', 'b:2'), rules)).toMatchObject({ target: { host: 'b' } });
    expect(choosePrefiller(lines('a:1', 'b:2,c:3'), rules)).toMatchObject({ kind: 'fault' });
  });
});

describe('the source', () => {
  const read = (value: string): unknown => readSource(['x-kv-cache-source-host-port', value]);

  it.each([
    ['10.0.0.1:8000', { host: '10.0.0.1', port: 8000 }],
    ['[::1]:80', { host: '::1', port: 80 }],
    [' h:80 ', { host: 'h', port: 80 }],
  ])('%s is read', (value, address) => {
    expect(read(value)).toEqual({ kind: 'source', address });
  });

  it.each([
    ...['http://h:80', '::1:80', '2001:db8::1:8000', '[::1]', 'host', ':80', 'a:1,b:2'],
    // What the reference takes, since it checks no port and no host.
    ...['h:', 'h:port', 'h:0', 'h:99999', 'h:80/path', 'a b:1', 'u@h:1'],
  ])('%s is malformed', (value) => {
    expect(read(value)).toMatchObject({ kind: 'malformed' });
  });

  it('is the first line only, and an empty one is none', () => {
    const name = 'x-kv-cache-source-host-port';
    expect(readSource([name, 'a:1', name, 'b:2'])).toMatchObject({ address: { host: 'a' } });
    expect(read(' ')).toEqual({ kind: 'none' });
  });
});

describe('one endpoint', () => {
  const own = { host: 'fd00::1', port: 8000 };

  it.each(['[fd00::1]:8000', '[fd00:0::1]:8000', ' [FD00::1]:8000 '])('is %s', (text) => {
    expect(isEndpoint(text, own)).toBe(true);
  });

  it.each(['[fd00::1]:8001', '[fd00::2]:8000', 'fd00::1:8000', 'fd00::1', 'http://[fd00::1]:8000'])(
    'is not %s',
    (text) => {
      expect(isEndpoint(text, own)).toBe(false);
    },
  );
});

describe('the P2P port', () => {
  it.each([
    ['one rank only', 8000, 1, 7777],
    ['one rank only, another port', 8001, 1, 7777],
    ['rank 0', 8000, 4, 7777],
    ['rank 2', 8002, 4, 7779],
    ['the last rank', 8003, 4, 7780],
    ['a port below the base', 7999, 4, 7777],
    ['a port beyond the ranks', 8004, 4, 7777],
  ])('of %s', (_what, port, count, wanted) => {
    expect(p2pPortOf(port, { servingPort: 8000, p2pPort: 7777, count })).toBe(wanted);
  });
});

describe('the prefill leg', () => {
  const SENT =
    '"max_tokens":9,"max_completion_tokens":9,"max_output_tokens":9,"min_tokens":5,"min_completion_tokens":5';

  function capped(api: InferenceApi, profile: Profile, text: string): Record<string, unknown> {
    const bytes = Buffer.from(text);
    const edits = prefillEdits(api, profile, { p: 1 });
    const pieces = editJson(Body.of(bytes), scanJsonObject(bytes), edits);
    const { kv_transfer_params: params, ...rest } = JSON.parse(Buffer.concat(pieces).toString()) as Record<
      string,
      unknown
    >;
    expect(params).toEqual({ p: 1 });
    return rest;
  }

  it.each([
    ['chat', { max_tokens: 1, max_completion_tokens: 1, max_output_tokens: 9 }],
    ['completions', { max_tokens: 1, max_completion_tokens: 9, max_output_tokens: 9 }],
    ['messages', { max_tokens: 1, max_completion_tokens: 9, max_output_tokens: 9 }],
    ['responses', { max_tokens: 9, max_completion_tokens: 9, max_output_tokens: 1, store: false }],
  ] as const)('of %s has its own cap, no minimum and no stream in profile B', (api, wanted) => {
    expect(capped(api, 'B', `{${SENT},"stream":true,"stream_options":{}}`)).toEqual({
      ...wanted,
      stream: false,
    });
  });

  it.each([
    ['chat', { max_tokens: 1, max_completion_tokens: 1 }],
    ['completions', { max_tokens: 1 }],
    ['messages', { max_tokens: 1 }],
    ['responses', { max_output_tokens: 1, store: false }],
  ] as const)('of %s has its cap also where the client sent none', (api, wanted) => {
    expect(capped(api, 'B', '{}')).toEqual({ ...wanted, stream: false });
  });

  it('of generate is capped inside sampling_params, which stay otherwise as they are', () => {
    const extra = { kv_transfer_params: { p: 1 } };
    expect(capped('generate', 'B', `{"max_tokens":9,"sampling_params":{"n":1,${SENT}}}`)).toEqual({
      max_tokens: 9,
      stream: false,
      sampling_params: {
        ...{ n: 1, max_tokens: 1, max_completion_tokens: 9, max_output_tokens: 9 },
        extra_args: extra,
      },
    });
    const made = { max_tokens: 1, extra_args: extra };
    expect(capped('generate', 'B', '{}')).toEqual({ stream: false, sampling_params: made });
    expect(capped('generate', 'B', '{"sampling_params":null}')).toEqual({
      stream: false,
      sampling_params: made,
    });
  });

  it.each(['chat', 'completions', 'messages', 'responses'] as const)(
    'of %s has max_tokens 1 in profile A, and max_completion_tokens only where the client sent it',
    (api) => {
      const rest = { max_output_tokens: 9, min_tokens: 5, min_completion_tokens: 5, stream: false };
      const all = { max_tokens: 1, max_completion_tokens: 1, ...rest };
      expect(capped(api, 'A', `{${SENT},"stream":true,"stream_options":{}}`)).toEqual(all);
      expect(capped(api, 'A', '{"max_completion_tokens":null}')).toMatchObject({ max_completion_tokens: 1 });
      expect(capped(api, 'A', '{}')).toEqual({ max_tokens: 1, stream: false });
    },
  );
});
