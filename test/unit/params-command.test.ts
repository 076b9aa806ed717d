// The command `kvpeer params check`: what it reads, prints and ends with.

import { expect, it } from 'vitest';
import { paramsCommand } from '../../src/main/cli/params.js';

interface Run {
  readonly out: string;
  readonly err: string;
  readonly code: number | undefined;
}

async function run(args: readonly string[], files: Readonly<Record<string, unknown>>): Promise<Run> {
  const out: string[] = [];
  const err: string[] = [];
  let code: number | undefined;
  const command = paramsCommand({
    read: (file) => {
      if (!Object.hasOwn(files, file)) return Promise.reject(new Error('no such file'));
      const content = files[file];
      return Promise.resolve(typeof content === 'string' ? content : JSON.stringify(content));
    },
    out: (line) => out.push(line),
    err: (line) => err.push(line),
    exit: (value) => {
      code = value;
    },
  });
  await command.parseAsync(['check', ...args], { from: 'user' });
  return { out: out.join('\n'), err: err.join('\n'), code };
}

const SOURCE = { remote_url: 'p2p://[::1]:5710', kv_request_id: 'x' };

it('prints the combination and what an engine gets, and ends with 0', async () => {
  const { out, code } = await run(['-'], { '-': { remote_kv_source: SOURCE } });
  expect(out).toContain('-: legal, remote_kv_source');
  expect(out).toContain('{"kv_request_id":"x","remote_host":"::1","remote_port":5710}');
  expect(code).toBe(0);
});

it('changes no digit of what passes through, and says what a number is that is none of ours', async () => {
  const digits =
    '{"remote_kv_source":{"kv_request_id":"x","remote_host":"h","remote_port":1},"big":12345678901234567890,"half":0.1}';
  const plain = await run(['-'], { '-': digits });
  expect(plain.out).toContain('"big":12345678901234567890');
  expect(plain.out).toContain('"half":0.1');
  const json = await run(['--json', '-'], { '-': digits });
  expect(json.out).toContain('"big": 12345678901234567890');
  const port = digits.replace('"remote_port":1', '"remote_port":12345678901234567890');
  const wrong = await run(['-'], { '-': port });
  expect(wrong.code).toBe(1);
  expect(wrong.err).toContain('remote_port');
  expect(wrong.err).not.toContain('object');
});

it('finds the params in a request body and in the extra arguments of the generate API', async () => {
  const illegal = { p2p: {} };
  for (const body of [
    { model: 'm', kv_transfer_params: illegal },
    { token_ids: [1], sampling_params: { extra_args: { kv_transfer_params: illegal } } },
  ]) {
    const { err, out, code } = await run(['body.json'], { 'body.json': body });
    expect(err).toContain(
      'body.json: error RETIRED_KEY: kv_transfer_params.p2p: was renamed to remote_kv_source',
    );
    expect(out).toContain('illegal, 1 errors');
    expect(code).toBe(1);
  }
});

it('checks every place of a body where the generate API reads them', async () => {
  const body = {
    kv_transfer_params: { remote_kv_source: SOURCE },
    sampling_params: { extra_args: { kv_transfer_params: { p2p: {} } } },
  };
  const { out, err, code } = await run(['f'], { f: body });
  expect(out).toContain('f: legal, remote_kv_source');
  expect(err).toContain('f (sampling_params.extra_args): error RETIRED_KEY');
  expect(code).toBe(1);
});

it('has nothing to say about a request body without params', async () => {
  const { out, err, code } = await run(['f'], { f: { model: 'm', messages: [] } });
  expect({ out, err, code }).toEqual({ out: 'f: legal, none\n  an engine gets: {}', err: '', code: 0 });
});

it('names a number that no double holds by its digits, and takes it for no object', async () => {
  const { err, code } = await run(['f'], {
    f: '{"remote_decoder":1e999,"remote_kv_source":{"remote_host":"h","remote_port":5710.00000000000000000001}}',
  });
  expect(err).toContain('remote_decoder: is 1e999, not an object');
  expect(err).toContain('remote_port: is 5710.00000000000000000001, not a port');
  expect(code).toBe(1);
});

it('checks two legs together', async () => {
  const prefill = { remote_decoder: { kv_request_id: 'a' } };
  const decode = (id: string) => ({
    remote_prefiller: { kv_request_id: id, remote_host: 'h', remote_port: 1 },
  });
  expect((await run(['p', '--decode', 'd'], { p: prefill, d: decode('a') })).code).toBe(0);
  const wrong = await run(['p', '--decode', 'd'], { p: prefill, d: decode('b') });
  expect(wrong.err).toContain('both legs: error LEGS_DIFFER');
  expect(wrong.code).toBe(1);
});

it('prints JSON for programs', async () => {
  const { out, code } = await run(['--json', 'f'], { f: { remote_kv_source: SOURCE, odd: 1 } });
  expect(JSON.parse(out)).toMatchObject({
    files: [{ file: 'f', ok: true, warnings: [{ code: 'UNKNOWN_KEY', path: 'kv_transfer_params.odd' }] }],
    legs: [],
  });
  expect(code).toBe(0);
});

it('applies --strict, --connector and --self', async () => {
  const files = { f: { do_remote_prefill: true, remote_kv_source: SOURCE } };
  expect((await run(['f', '--strict'], files)).code).toBe(1);
  expect((await run(['f', '--strict', '--connector', 'multi'], files)).code).toBe(0);
  expect((await run(['f', '--self', '[0::1]:5710'], files)).err).toContain('SOURCE_IS_SELF');
});

it('ends with 2 when a file cannot be read or is not JSON', async () => {
  expect((await run(['missing'], {})).code).toBe(2);
  expect((await run(['f'], { f: '{' })).code).toBe(2);
});
