// `kvpeer sidecar --peer` as an operator runs it: one process, one admin port, one shutdown, and blocks pulled ahead.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import {
  createServer as createNetServer,
  type AddressInfo,
  type Server as NetServer,
  type Socket,
} from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';

import { expect, it, onTestFinished } from 'vitest';
import { request } from 'undici';

import { BlockHasher } from '../../src/main/hashes/index.js';
import type { Peer } from '../../src/main/peer.js';
import { packageRoot } from '../../src/shared/nixl-dir.js';
import { startPeer } from '../fixtures/local-peers.js';
import { freePort } from '../helpers/free-port.js';
import { Run } from './support/program-run.js';

const PROGRAM = join(packageRoot, 'dist/src/main/cli/kvpeer.js');
const TOKENS = 16;

/** `kvpeer sidecar`, ended with its test whatever becomes of it. */
function startRun(args: readonly string[], env: Readonly<Record<string, string>> = {}): Run {
  const run = new Run(['sidecar', ...args], env);
  onTestFinished(() => {
    run.child.kill('SIGKILL');
  });
  return run;
}

interface Asked {
  readonly body: { readonly kv_transfer_params?: Readonly<Record<string, unknown>> };
  readonly response: ServerResponse;
}

/** A model server: the list of its models, and requests that the test answers. */
async function modelServer(): Promise<{ readonly port: number; readonly asked: AsyncGenerator<Asked> }> {
  const waiting: Asked[] = [];
  let wake = (): void => undefined;
  const server: Server = createServer((incoming: IncomingMessage, response: ServerResponse) => {
    if (incoming.url === '/v1/models') {
      response.end(JSON.stringify({ data: [{ id: 'llama', root: '/models/llama', parent: null }] }));
      return;
    }
    void text(incoming).then((body) => {
      waiting.push({ body: JSON.parse(body) as Asked['body'], response });
      wake();
    });
  });
  server.listen(0, 'localhost');
  await once(server, 'listening');
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const asked = (async function* () {
    for (;;) {
      const next = waiting.shift();
      if (next !== undefined) yield next;
      else
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
    }
  })();
  return { port: (server.address() as AddressInfo).port, asked };
}

const tokenIds = Array.from({ length: 100 * TOKENS }, (_, i) => (i * 31) % 32_000);

async function keysOfPrompt(): Promise<Buffer> {
  const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: TOKENS });
  return hasher.blockKeys(tokenIds);
}

interface Started {
  readonly run: Run;
  readonly base: string;
  readonly admin: string;
  /** host:port of the embedded peer */
  readonly peer: string;
}

async function started(
  modelServerPort: number,
  more: readonly string[] = [],
  env: Readonly<Record<string, string>> = {},
): Promise<Started> {
  const port = await freePort();
  const run = startRun(
    [
      ...['--peer', '--port', String(port), '--host', '127.0.0.1', '--secure-serving=false'],
      ...['--model-server-port', String(modelServerPort), '--peer-host', '127.0.0.1', '--peer-port', '0'],
      ...['--peer-admin-port', '0', '--peer-pool-bytes', '4MiB', '--peer-block-bytes', '4096', ...more],
    ],
    env,
  );
  const ready = await run.line('ready');
  return {
    run,
    base: `http://127.0.0.1:${port}`,
    admin: `http://${String(ready.metrics)}`,
    peer: String(ready.peer),
  };
}

function generate(
  base: string,
  source: Pick<Peer, 'address'>,
  body: object = {},
): ReturnType<typeof request> {
  return request(`${base}/inference/v1/generate`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-kv-cache-source-host-port': source.address },
    body: JSON.stringify({ token_ids: tokenIds, sampling_params: {}, ...body }),
  });
}

/** Takes connections and says nothing. */
function listenSilently(): NetServer {
  const sockets = new Set<Socket>();
  const server = createNetServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
  });
  onTestFinished(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return server;
}

async function next(asked: AsyncGenerator<Asked>): Promise<Asked> {
  const { value } = (await asked.next()) as { readonly value: Asked };
  return value;
}

it('pulls a prompt from its source before the model server has it, and sends the engine to its own peer', async () => {
  const { port, asked } = await modelServer();
  const source = await startPeer();
  const keys = await keysOfPrompt();
  await source.content.storeFilled(keys);
  const p2pPort = source.address.slice(source.address.lastIndexOf(':') + 1);
  // The first handshake of two processes takes longer than the default allows for.
  const { base, admin, peer } = await started(port, [
    '--p2p-connector-port',
    p2pPort,
    ...['--pull-wait-ms', '20000', '--pull-max-ms', '60000'],
  ]);

  const answer = generate(base, source, { model: 'llama' });
  const { body, response } = await next(asked);
  // Not answered yet; an engine's tier that asks where it is told finds every block, or waits for those on their way.
  const named = body.kv_transfer_params?.remote_kv_source as Record<string, unknown>;
  expect(`${String(named.remote_host)}:${String(named.remote_port)}`).toBe(peer);
  const tier = await startPeer();
  const pull = tier.open(body.kv_transfer_params);
  expect((await pull.lookup(keys)).leadingCount).toBe(100);
  const load = await pull.load(keys);
  expect(load.pulledCount).toBe(100);
  expect(await tier.content.verify(load)).toBe(0);
  load.release();
  pull.finish();
  response.end('{"choices":[]}');
  expect((await answer).statusCode).toBe(200);

  const metrics = await (await request(`${admin}/metrics`)).body.text();
  expect(metrics).toContain('kvpeer_speculative_pulls_total{outcome="pulled"} 1');
  expect(metrics).toContain('kvpeer_slots{phase="ready"} 100');
  expect(metrics).toMatch(/kvpeer_sidecar_\w+/);
  expect((await request(`${admin}/healthz`)).statusCode).toBe(200);
  expect((await request(`${admin}/readyz`)).statusCode).toBe(200);
});

it('SIGTERM lets a stream end, ends the pulls that run, tells peers, and exits with 0', async () => {
  const { port, asked } = await modelServer();
  const source = await startPeer();
  await source.content.storeFilled(await keysOfPrompt());
  const p2pPort = source.address.slice(source.address.lastIndexOf(':') + 1);
  const { run, base, admin } = await started(port, [
    '--p2p-connector-port',
    p2pPort,
    '--pull-max-ms',
    '60000',
  ]);
  const streamed = generate(base, source);
  const stream = await next(asked);
  stream.response.setHeader('content-type', 'text/event-stream');
  stream.response.write('data: 1\n\n');
  const answer = await streamed;
  // And a pull that runs, from a source that never answers.
  const silent = listenSilently();
  silent.listen(Number(p2pPort), '127.0.0.2');
  await once(silent, 'listening');
  const stuck = generate(base, { address: '127.0.0.2:1' });
  const second = await next(asked);
  expect(second.body.kv_transfer_params).toMatchObject({ remote_kv_source: { remote_host: '127.0.0.2' } });
  run.child.kill('SIGTERM');
  await run.line('draining');
  await expect.poll(async () => (await request(`${admin}/readyz`)).statusCode).toBe(503);
  stream.response.end('data: 2\n\n');
  expect(await answer.body.text()).toBe('data: 1\n\ndata: 2\n\n');
  second.response.end('{}');
  expect((await stuck).statusCode).toBe(200);
  expect(await run.exitCode).toBe(0);
  expect(run.lines.at(-1)?.msg).toBe('closed');
  // The embedded peer has said goodbye: no session is left here.
  await expect.poll(() => source.stats().sessions.ready).toBe(0);
});

it('SIGTERM ends a start that waits for Kubernetes at once', async () => {
  const api = listenSilently();
  api.listen(0, '127.0.0.1');
  await once(api, 'listening');
  const asked = once(api, 'connection');
  const config = {
    ...{ apiVersion: 'v1', kind: 'Config', 'current-context': 'c' },
    clusters: [{ name: 'a', cluster: { server: `http://127.0.0.1:${(api.address() as AddressInfo).port}` } }],
    users: [{ name: 'u', user: {} }],
    contexts: [{ name: 'c', context: { cluster: 'a', user: 'u' } }],
  };
  const folder = await mkdtemp(join(tmpdir(), 'kvpeer-kubeconfig-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  await writeFile(join(folder, 'config'), JSON.stringify(config));
  const port = String(await freePort());
  const run = startRun(
    ['--port', port, '--secure-serving=false', '--enable-ssrf-protection', '--inference-pool', 'ns/pool'],
    { KUBECONFIG: join(folder, 'config') },
  );
  await asked;
  run.child.kill('SIGTERM');
  const startedAt = performance.now();
  expect(await run.exitCode).toBe(0);
  // The request itself would be given up after 30 s.
  expect(performance.now() - startedAt).toBeLessThan(29_000);
  expect(run.lines.at(-1)?.msg).toBe('closed');
});

it('says in one line which option of which program is wrong, and exits with 2', async () => {
  const wrong = startRun(['--peer', '--peer-pool-bytes', 'much', '--secure-serving=false']);
  expect(await wrong.exitCode).toBe(2);
  expect(await wrong.stderr).toContain('--peer-pool-bytes');
  const unknown = startRun(['--peer', '--pool-bytes', '1GiB']);
  expect(await unknown.exitCode).toBe(2);
  expect(await unknown.stderr).toContain('--pool-bytes');
  const variable = startRun(['--peer', '--secure-serving=false'], { KVPEER_BLOCK_BYTES: '5' });
  expect(await variable.exitCode).toBe(2);
  expect(await variable.stderr).toContain('KVPEER_BLOCK_BYTES');
  const yaml = startRun(['--configuration', 'peer: {blockBites: 4096}', '--secure-serving=false']);
  expect(await yaml.exitCode).toBe(2);
  expect(await yaml.stderr).toContain('blockBites');
});

it.each(['sidecar', 'peer'])(
  'exits with 3 when the port of the %s is taken, and leaves nothing running',
  async (which) => {
    const holder = createServer();
    holder.listen(0, '127.0.0.1');
    await once(holder, 'listening');
    onTestFinished(() => {
      holder.close();
    });
    const taken = String((holder.address() as AddressInfo).port);
    const free = String(await freePort());
    const run = startRun([
      ...['--host', '127.0.0.1', '--port', which === 'sidecar' ? taken : free, '--secure-serving=false'],
      ...[
        '--peer-port',
        which === 'peer' ? taken : '0',
        '--peer-host',
        '127.0.0.1',
        '--peer-data-plane',
        'none',
      ],
      ...['--peer-pool-bytes', '4MiB', '--peer-block-bytes', '4096', '--peer-admin-port', 'off'],
    ]);
    expect(await run.exitCode).toBe(3);
    expect(run.lines.at(-1)?.msg).toContain(taken);
  },
);

it('takes options of the peer from flags, the environment and the configuration, in this order', async () => {
  const { port } = await modelServer();
  const none = ['--peer-data-plane', 'none'];
  const byFlag = await started(port, [...none, '--configuration', 'peer: {keyBytes: 20, blockBytes: 8192}'], {
    KVPEER_KEY_BYTES: '36',
  });
  const metrics = await (await request(`${byFlag.admin}/metrics`)).body.text();
  // 4 MiB in blocks of 4096 bytes, as the flag says.
  expect(metrics).toContain('kvpeer_slots{phase="free"} 1024');
  byFlag.run.child.kill('SIGTERM');
  expect(await byFlag.run.exitCode).toBe(0);
});

it('has the flags of both programs in its help', async () => {
  const run = spawn(process.execPath, [PROGRAM, 'sidecar', '--help'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const help = await text(run.stdout);
  for (const flag of ['--model-server-port', '--pull-max-ms', '--peer-pool-bytes', '--peer-kv-events-port']) {
    expect(help).toContain(flag);
  }
});
