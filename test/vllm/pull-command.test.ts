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

async function startConformancePeer(): Promise<{ process: ChildProcess; address: string }> {
  const child = spawn(
    process.execPath,
    [`${CLI}/conformance-peer.js`, '--count', String(HELD), '--block-bytes', String(BLOCK_BYTES)],
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

  it('leaves a conformance peer that ends on SIGTERM', async () => {
    const exited = once(conformance.process, 'exit');
    conformance.process.kill('SIGTERM');
    expect(await exited).toEqual([0, null]);
  });
});
