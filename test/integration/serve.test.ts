// `kvpeer serve` as an operator runs it: the real program, started, asked over HTTP, and ended by signals.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterEach, expect, it } from 'vitest';
import { packageRoot } from '../../src/shared/nixl-dir.js';
import { freePort } from '../helpers/free-port.js';
import { Run } from './support/program-run.js';

const PROGRAM = join(packageRoot, 'dist/src/main/cli/kvpeer.js');
const SMALL = ['--port', '0', '--admin-port', '0', '--pool-bytes', '4MiB', '--block-bytes', '4096'];
const WITHOUT_NIXL = [...SMALL, '--data-plane', 'none'];

const runs: Run[] = [];
function start(args: readonly string[], env: Readonly<Record<string, string>> = {}): Run {
  const run = new Run(args, env);
  runs.push(run);
  return run;
}
afterEach(async () => {
  for (const run of runs) run.child.kill('SIGKILL');
  await Promise.all(runs.splice(0).map((run) => run.exitCode));
});

it('prints one ready line with its addresses and answers /healthz, /readyz and /metrics', async () => {
  const run = start(['serve', ...WITHOUT_NIXL]);
  const ready = await run.line('ready');
  expect(ready).toMatchObject({
    address: expect.stringMatching(/^127\.0\.0\.1:\d+$/) as string,
    poolBytes: 4 * 2 ** 20,
    blockBytes: 4096,
    keyBytes: 36,
    dataPlane: { name: 'none' },
  });
  const admin = `http://${String(ready.admin)}`;
  expect((await fetch(`${admin}/healthz`)).status).toBe(200);
  const readiness = await fetch(`${admin}/readyz`);
  expect([readiness.status, await readiness.json()]).toMatchObject([200, { status: 'ready', reasons: [] }]);
  const metrics = await (await fetch(`${admin}/metrics`)).text();
  expect(metrics).toContain(`kvpeer_slots{phase="free"} ${String(ready.numBlocks)}`);
  run.child.kill('SIGTERM');
  expect(await run.exitCode).toBe(0);
  expect(run.lines.filter((line) => line.msg === 'ready')).toHaveLength(1);
  expect(run.lines.map((line) => line.msg)).toContain('closed');
});

it('starts with NIXL, shows the environment it set for it and the lanes it got', async () => {
  const run = start(['serve', ...SMALL], { UCX_TLS: 'tcp,self' });
  const environment = await run.line('environment of the transport');
  expect(environment.settings).toEqual(
    expect.arrayContaining([
      { name: 'UCX_TLS', value: 'tcp,self', isOperators: true },
      { name: 'UCX_NET_DEVICES', value: 'lo', isOperators: false },
    ]),
  );
  const ready = await run.line('ready');
  expect(ready.dataPlane).toMatchObject({ name: 'nixl', transports: expect.stringMatching(/\S/) as string });
  run.child.kill('SIGINT');
  expect(await run.exitCode).toBe(0);
});

it('reads options from a YAML file, the environment and flags, and warns of unknown variables', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvpeer-serve-'));
  const file = join(folder, 'kvpeer.yaml');
  writeFileSync(file, 'blockBytes: 8KiB\nkeyBytes: 20\nshards: 2\n');
  try {
    const run = start(
      ['serve', '--port', '0', '--admin-port', 'off', '--pool-bytes', '4MiB', '--data-plane', 'none'],
      { KVPEER_CONFIG: file, KVPEER_KEY_BYTES: '32', KVPEER_KEY_BITES: '1' },
    );
    expect(await run.line('ready')).toMatchObject({
      blockBytes: 8192,
      keyBytes: 32,
      shards: 2,
      numBlocks: 512,
    });
    // The environment of the test may have others.
    const warnings = run.lines.filter((line) => line.level === 'warn').map((line) => line.msg);
    expect(warnings).toContain('the variable KVPEER_KEY_BITES is unknown; did you mean KVPEER_KEY_BYTES?');
  } finally {
    rmSync(folder, { recursive: true });
  }
});

it.each([
  [['serve', '--pol-bytes', '1GiB'], /Did you mean --pool-bytes/],
  [['serve', '--port', 'many'], /--port is "many"; it must be a whole number from 0 to 65535/],
  [['serve', '--hold-ms', '9000'], /lookupMs \(default\) is 8000 and --hold-ms is 9000/],
  [['serve', '--config', '/no/such/file.yaml'], /file\.yaml cannot be read/],
  [['bogus'], /unknown command 'bogus'/],
  [[], /Usage: kvpeer/],
])('ends with 2 and says why for %j', async (args, message) => {
  const run = start(args);
  expect(await run.exitCode).toBe(2);
  expect(await run.stderr).toMatch(message);
});

it('runs on when its log cannot be written', async () => {
  const full = openSync('/dev/full', 'w');
  const port = await freePort();
  const args = ['serve', '--port', '0', '--pool-bytes', '4MiB', '--data-plane', 'none'];
  const child = spawn(process.execPath, [PROGRAM, ...args, '--admin-port', String(port)], {
    stdio: ['ignore', full, 'inherit'],
  });
  const ended = once(child, 'exit');
  try {
    await expect
      .poll(
        () =>
          fetch(`http://127.0.0.1:${port}/readyz`).then(
            ({ status }) => status,
            () => 0,
          ),
        { timeout: 20_000 },
      )
      .toBe(200);
  } finally {
    child.kill('SIGTERM');
    closeSync(full);
  }
  expect(await ended).toEqual([0, null]);
});

it('ends with 3 when the admin port is taken, and names it', async () => {
  const first = start(['serve', ...WITHOUT_NIXL]);
  const admin = String((await first.line('ready')).admin);
  const port = admin.split(':')[1];
  const second = start(['serve', '--port', '0', '--data-plane', 'none', '--admin-port', port]);
  expect(await second.exitCode).toBe(3);
  const fatal = second.lines.find((line) => line.level === 'fatal');
  expect(fatal?.msg).toContain(`the admin address ${admin} cannot be bound`);
});

it('drains on the first signal and ends at once with 4 on the second', async () => {
  const run = start(['serve', ...WITHOUT_NIXL]);
  await run.line('ready');
  // Both are there when it goes on, so that the second comes before the drain is over.
  run.child.kill('SIGSTOP');
  run.child.kill('SIGTERM');
  run.child.kill('SIGINT');
  run.child.kill('SIGCONT');
  expect(await run.exitCode).toBe(4);
  expect(run.lines.map((line) => line.msg)).toContain('draining');
});

it('ends with 3 when the control port is taken', async () => {
  const first = start(['serve', ...WITHOUT_NIXL]);
  const address = String((await first.line('ready')).address);
  const second = start(['serve', ...WITHOUT_NIXL, '--port', address.split(':')[1]]);
  expect(await second.exitCode).toBe(3);
  expect(second.lines.find((line) => line.level === 'fatal')?.msg).toContain(address);
});

it('prints help and version with status 0', async () => {
  for (const args of [['--help'], ['--version'], ['help', 'serve'], ['params', 'check', '--help']]) {
    const child = spawn(process.execPath, [PROGRAM, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
    const [out] = await Promise.all([text(child.stdout), once(child, 'close')]);
    expect(child.exitCode).toBe(0);
    expect(out).toMatch(args.includes('--version') ? /^\d+\.\d+\.\d+\n$/ : /Exit status/);
  }
});
