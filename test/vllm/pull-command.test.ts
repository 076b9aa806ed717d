// `kvpeer pull` as an operator types it, against vLLM and against a conformance peer.

import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { conformanceBlock, conformanceKey } from '../../src/main/cli/conformance-set.js';
import type { PullReport } from '../../src/main/cli/pull-report.js';
import { packageRoot } from '../../src/shared/nixl-dir.js';
import { freePort } from '../helpers/free-port.js';
import { VllmPeer } from './support/vllm-peer.js';

const CLI = `${packageRoot}/dist/src/main/cli`;
const BLOCK_BYTES = 4096;
const HELD = 32;

interface Result {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

function pull(...args: readonly string[]): Promise<Result> {
  const common = ['--block-bytes', String(BLOCK_BYTES)];
  return new Promise((resolve) => {
    execFile(process.execPath, [`${CLI}/kvpeer.js`, 'pull', ...args, ...common], (error, stdout, stderr) => {
      const status = error === null ? 0 : Number(error.code);
      resolve({ status, stdout, stderr });
    });
  });
}

async function startConformancePeer(
  ...flags: readonly string[]
): Promise<{ process: ChildProcess; address: string }> {
  const child = spawn(
    process.execPath,
    [`${CLI}/conformance-peer.js`, '--count', String(HELD), '--block-bytes', String(BLOCK_BYTES), ...flags],
    { stdio: ['ignore', 'pipe', 'ignore'] },
  );
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  const ready = JSON.parse(line) as { event: string; peer_id: string };
  expect(ready.event).toBe('ready');
  return { process: child, address: ready.peer_id };
}

describe('kvpeer pull', () => {
  let folder: string;
  let vllm: VllmPeer;
  let conformance: { process: ChildProcess; address: string };

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'kvpeer-pull-'));
    [vllm, conformance] = await Promise.all([
      VllmPeer.start({
        args: ['--blocks', '256', '--block-bytes', String(BLOCK_BYTES), '--count', String(HELD)],
      }),
      startConformancePeer(),
    ]);
  });

  afterAll(async () => {
    conformance.process.kill('SIGKILL');
    await vllm.destroy();
    rmSync(folder, { recursive: true });
  });

  function keyFile(indexes: readonly number[]): string {
    const file = join(folder, `keys-${indexes.join('-')}.txt`);
    writeFileSync(file, indexes.map((index) => `${conformanceKey('0', index).toString('hex')}\n`).join(''));
    return file;
  }

  it.each(['vLLM', 'kvpeer'])(
    'from %s prints hits and digests, and writes the blocks in place',
    async (who) => {
      const from = who === 'vLLM' ? vllm.address : conformance.address;
      const out = join(folder, `${who}.bin`);
      const asked = [0, 500, 7, 0];
      const { status, stdout, stderr } = await pull(
        '--from',
        from,
        '--keys',
        keyFile(asked),
        '--out',
        out,
        '--json',
      );
      expect(stderr).toBe('');
      expect(status).toBe(0);
      const report = JSON.parse(stdout) as PullReport;
      expect(report).toMatchObject({ ok: true, keyCount: 4, promised: 3, loaded: 3, bytes: 3 * BLOCK_BYTES });
      const content = (index: number): Buffer => conformanceBlock('0', index, BLOCK_BYTES);
      expect(report.keys.map(({ sha256 }) => sha256)).toEqual(
        asked.map((index) =>
          index === 500 ? undefined : createHash('sha256').update(content(index)).digest('hex'),
        ),
      );
      const zeros = Buffer.alloc(BLOCK_BYTES);
      const expected = Buffer.concat(asked.map((index) => (index === 500 ? zeros : content(index))));
      expect(readFileSync(out).equals(expected)).toBe(true);
    },
  );

  it('expects every block of a prefiller', async () => {
    vllm.store('id=cli;blocks=100-103');
    await vllm.event(({ event, kv_request_id }) => event === 'prefill_finished' && kv_request_id === 'cli');
    const mode = ['--mode', 'remote_prefiller', '--kv-request-id', 'cli'];
    const { status, stdout } = await pull(
      '--from',
      vllm.address,
      '--keys',
      keyFile([100, 101, 102, 103]),
      ...mode,
    );
    expect(stdout).toMatch(
      /4 keys, 4 promised, 4 came, 16384 bytes; handshake .* ms, lookup .* ms, load .* ms\nok\n$/,
    );
    expect(status).toBe(0);
  });

  it('ends with 1 and a reason where nobody listens, and where the hash seed differs', async () => {
    const nobody = await pull('--from', `127.0.0.1:${await freePort()}`, '--keys', keyFile([0]), '--json');
    expect(nobody.status).toBe(1);
    expect(JSON.parse(nobody.stdout)).toMatchObject({ ok: false, reason: 'refused', loaded: 0 });
    const other = await pull(
      '--from',
      conformance.address,
      '--keys',
      keyFile([0]),
      '--hash-seed',
      '7',
      '--json',
    );
    expect(other.status).toBe(1);
    expect(JSON.parse(other.stdout)).toMatchObject({ ok: false, reason: 'mismatch' });
  });

  it('ends with 2 when its input is no list of keys', async () => {
    const file = join(folder, 'wrong.txt');
    writeFileSync(file, 'xyz\n');
    const { status, stderr } = await pull('--from', vllm.address, '--keys', file);
    expect(status).toBe(2);
    expect(stderr).toMatch(/key 1 of .* is not 1 to 64 bytes in hexadecimal/);
  });

  it('finds a peer by a name that is not the one it calls itself by', async () => {
    for (const { address } of [vllm, conformance]) {
      const from = address.replace('127.0.0.1', 'localhost');
      const { status, stdout } = await pull('--from', from, '--keys', keyFile([0, 7]), '--json');
      expect(JSON.parse(stdout)).toMatchObject({ ok: true, from, loaded: 2 });
      expect(status).toBe(0);
    }
  });

  it('finds a peer that calls itself by a name, by that name', async () => {
    const named = await startConformancePeer('--advertise', 'localhost');
    try {
      expect(named.address).toMatch(/^localhost:/);
      const { status, stdout } = await pull('--from', named.address, '--keys', keyFile([0, 7]), '--json');
      expect(JSON.parse(stdout)).toMatchObject({ ok: true, loaded: 2 });
      expect(status).toBe(0);
    } finally {
      named.process.kill('SIGKILL');
    }
  });

  it('ends with 2 and one line, before it pulls, where the output cannot be written or the host has no address', async () => {
    const keys = ['--keys', keyFile([0])];
    const badOut = await pull('--from', conformance.address, ...keys, '--out', join(folder, 'none', 'x'));
    expect(badOut).toMatchObject({ status: 2, stdout: '' });
    expect(badOut.stderr).toMatch(
      /^kvpeer: KVPEER_INVALID_ARGUMENT: --out .* cannot be written: ENOENT.*\n$/,
    );
    const nobody = await pull('--from', 'no-host.invalid:5710', ...keys);
    expect(nobody).toMatchObject({ status: 2, stdout: '' });
    expect(nobody.stderr).toMatch(/^kvpeer: KVPEER_INVALID_ARGUMENT: no-host.invalid has no address .*\n$/);
  });

  it('reports what came also when the output is full, and leaves zeros where nobody answered', async () => {
    const full = await pull(
      '--from',
      conformance.address,
      '--keys',
      keyFile([0]),
      '--out',
      '/dev/full',
      '--json',
    );
    expect(full.status).toBe(1);
    expect(JSON.parse(full.stdout)).toMatchObject({
      ok: false,
      loaded: 1,
      reason: expect.stringMatching('ENOSPC') as string,
    });
    const out = join(folder, 'zeros.bin');
    writeFileSync(out, 'what stood here before');
    await pull('--from', `127.0.0.1:${await freePort()}`, '--keys', keyFile([0, 1]), '--out', out);
    expect(readFileSync(out).equals(Buffer.alloc(2 * BLOCK_BYTES))).toBe(true);
  });

  it('takes blocks of the largest size, and does not print what is no key as it is', async () => {
    const args = ['--from', `127.0.0.1:${await freePort()}`, '--data-plane', 'none', '--keys', keyFile([0])];
    const large = await new Promise<Result>((resolve) => {
      execFile(
        process.execPath,
        [`${CLI}/kvpeer.js`, 'pull', ...args, '--block-bytes', '128MiB', '--json'],
        {
          env: { ...process.env, KVPEER_SHARDS: '16' },
        },
        (error, stdout, stderr) => {
          resolve({ status: error === null ? 0 : Number(error.code), stdout, stderr });
        },
      );
    });
    expect(large.stderr).not.toContain('slots for');
    const file = join(folder, 'binary.txt');
    writeFileSync(file, '\u001b]0;x\u0007');
    const { status, stderr } = await pull('--from', vllm.address, '--keys', file);
    expect(status).toBe(2);
    expect(stderr).toContain(String.raw`"\u001b]0;x\u0007"`);
  });

  it.each([
    ['--count', '-1'],
    ['--count', '1.5'],
    ['--count', 'abc'],
    ['--count', '99999999'],
    ['--blocks', 'abc'],
  ])('a conformance peer refuses %s %s by its name', async (flag, value) => {
    const child = spawn(process.execPath, [`${CLI}/conformance-peer.js`, flag, value], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const stderr = child.stderr.setEncoding('utf8').toArray();
    const [status] = (await once(child, 'exit')) as [number];
    expect(status).toBe(2);
    expect((await stderr).join('')).toContain(`${flag} is "${value}"; it must be a whole number`);
  });

  it('leaves a conformance peer that ends on SIGTERM', async () => {
    const exited = once(conformance.process, 'exit');
    conformance.process.kill('SIGTERM');
    expect(await exited).toEqual([0, null]);
  });
});
