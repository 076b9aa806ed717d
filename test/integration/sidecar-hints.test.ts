// The sidecar and kv_hints: over HTTP, with model servers that record what they get.

import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { createSidecar, type Sidecar } from '../../src/main/sidecar/sidecar.js';
import type { SidecarOptions } from '../../src/main/sidecar/options.js';
import { freePort } from '../helpers/free-port.js';
import { LogLines } from '../helpers/log-lines.js';

class ModelServer {
  readonly bodies: string[] = [];
  readonly #server: Server;

  constructor() {
    this.#server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        this.bodies.push(Buffer.concat(chunks).toString());
        response.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}');
      });
    });
  }

  async start(): Promise<void> {
    // The sidecar names its model server localhost.
    this.#server.listen(0, 'localhost');
    await once(this.#server, 'listening');
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  async stop(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }
}

let decoder: ModelServer;
let prefiller: ModelServer;
let sidecar: Sidecar | undefined;

beforeEach(async () => {
  decoder = new ModelServer();
  prefiller = new ModelServer();
  await Promise.all([decoder.start(), prefiller.start()]);
});

afterEach(async () => {
  await sidecar?.close({ drainMs: 0 });
  sidecar = undefined;
  await Promise.all([decoder.stop(), prefiller.stop()]);
});

async function start(options: SidecarOptions = {}): Promise<Sidecar> {
  sidecar = await createSidecar(
    {
      port: 0,
      host: '127.0.0.1',
      modelServerPort: decoder.port,
      secureServing: false,
      kvHints: true,
      podIp: '10.0.0.1',
      ...options,
    },
    { logger: new LogLines().logger },
  );
  return sidecar;
}

const HASHES = '18446744073709551615,9007199254740993';

function hintsTo(endpoint: string): string {
  return (
    '{"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a","action_type":"kv.fetch","action_version":"1.0",' +
    `"payload":{"source_control_endpoint":"tcp://${endpoint}","block_hashes":[${HASHES}]}}]}`
  );
}

async function post(body: string, headers: Record<string, string> = {}): Promise<number> {
  const url = `http://${sidecar?.addresses[0] ?? ''}/v1/completions`;
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body,
  });
  await response.text();
  return response.status;
}

/** A body with ids made readable. */
function withoutIds(body: string): string {
  return body.replaceAll(/"[0-9a-f]{8}-[0-9a-f-]{27}"/g, '"ID"');
}

const SOURCE = '{"remote_kv_source":{"kv_request_id":"ID","remote_host":"10.0.0.9","remote_port":7777}}';

test('a hint becomes the source of a request, and nothing else in the body changes', async () => {
  await start();
  expect(
    await post(`{"model":"m", "n":12345678901234567890,"kv_hints":${hintsTo('10.0.0.9:7777')},"a":1.0}`),
  ).toBe(200);
  expect(withoutIds(decoder.bodies[0])).toBe(
    `{"model":"m", "n":12345678901234567890,"a":1.0,"kv_transfer_params":${SOURCE}}`,
  );
});

test('a hint becomes the source of the prefill leg, and goes to neither leg itself', async () => {
  await start();
  const headers = { 'x-prefiller-host-port': `localhost:${prefiller.port}` };
  expect(await post(`{"model":"m","kv_hints":${hintsTo('10.0.0.9:7777')}}`, headers)).toBe(200);
  const prefill = JSON.parse(prefiller.bodies[0]) as { kv_transfer_params: Record<string, unknown> };
  expect(Object.keys(prefill.kv_transfer_params)).toEqual(['remote_decoder', 'remote_kv_source']);
  expect(prefill.kv_transfer_params.remote_kv_source).toMatchObject({
    remote_host: '10.0.0.9',
    remote_port: 7777,
  });
  const decode = JSON.parse(decoder.bodies[0]) as { kv_transfer_params: Record<string, unknown> };
  expect(Object.keys(decode.kv_transfer_params)).toEqual(['remote_prefiller']);
  for (const body of [prefiller.bodies[0], decoder.bodies[0]]) expect(body).not.toContain('kv_hints');
});

test('the source header wins over a hint', async () => {
  await start();
  const headers = { 'x-kv-cache-source-host-port': '10.0.0.8:8000' };
  await post(`{"kv_hints":${hintsTo('10.0.0.9:7777')}}`, headers);
  expect(decoder.bodies[0]).toContain('"remote_host":"10.0.0.8"');
  expect(decoder.bodies[0]).not.toContain('kv_hints');
  expect(await ignoredHints()).toEqual({ 'params-win': 1 });
});

test('params of a trusted client win over a hint, and those of others are removed', async () => {
  await start({ trustClientParams: true });
  const params = '{"remote_kv_source":{"kv_request_id":"x","remote_host":"10.0.0.7","remote_port":1}}';
  await post(`{"kv_transfer_params":${params},"kv_hints":${hintsTo('10.0.0.9:7777')}}`);
  expect(decoder.bodies[0]).toBe(`{"kv_transfer_params":${params}}`);
  expect(await ignoredHints()).toEqual({ 'params-win': 1 });
  await sidecar?.close({ drainMs: 0 });
  await start();
  await post(`{"kv_transfer_params":${params},"kv_hints":${hintsTo('10.0.0.9:7777')}}`);
  expect(withoutIds(decoder.bodies[1])).toBe(`{"kv_transfer_params":${SOURCE}}`);
});

test('a hint goes through the allow-list, by the serving port of its rank', async () => {
  await start({ ssrfAllow: ['10.0.0.9:7777'] });
  await post(`{"kv_hints":${hintsTo('10.0.0.9:7777')}}`);
  await post(`{"kv_hints":${hintsTo('10.0.0.8:7777')}}`);
  expect(withoutIds(decoder.bodies[0])).toBe(`{"kv_transfer_params":${SOURCE}}`);
  expect(decoder.bodies[1]).toBe('{}');
  expect(await ignoredHints()).toEqual({ 'endpoint-denied': 1 });
  await sidecar?.close({ drainMs: 0 });
  const port = await freePort();
  await start({ port, ssrfAllow: [`10.0.0.9:${port}`] });
  await post(`{"kv_hints":${hintsTo('10.0.0.9:7777')}}`);
  expect(withoutIds(decoder.bodies[2])).toBe(`{"kv_transfer_params":${SOURCE}}`);
});

test.each([
  ['{"protocol_version":"9"}', 'protocol-version'],
  ['null', undefined],
  ['[]', 'malformed'],
  [hintsTo('10.0.0.1:7777'), 'self'],
  [hintsTo('http://x'), 'endpoint'],
])('hints %s leave the request as it is without them', async (hints, reason) => {
  await start();
  expect(await post(`{"a":1,"kv_hints":${hints}}`)).toBe(200);
  expect(decoder.bodies[0]).toBe('{"a":1}');
  expect(await ignoredHints()).toEqual(reason === undefined ? {} : { [reason]: 1 });
});

test('a body that is no JSON object goes on as it is', async () => {
  await start();
  for (const body of ['[1,2]', 'text', '{"kv_hints":']) expect(await post(body)).toBe(200);
  expect(decoder.bodies).toEqual(['[1,2]', 'text', '{"kv_hints":']);
});

test('params of a client do not slip through in a body that only a Python parser reads', async () => {
  await start();
  await post('{"a":NaN,"kv_transfer_params":{"remote_kv_source":{}}}');
  await sidecar?.close({ drainMs: 0 });
  await start({ kvHints: false });
  await post('{"a":NaN,"kv_transfer_params":{"remote_kv_source":{}}}', { 'x-kvpeer-leg-signature': 'x' });
  expect(decoder.bodies).toHaveLength(2);
  for (const body of decoder.bodies) expect(body).not.toContain('remote_kv_source');
});

test("without the option hints are none of the sidecar's business", async () => {
  await start({ kvHints: false });
  const body = `{"kv_hints":${hintsTo('10.0.0.9:7777')}}`;
  await post(body);
  expect(decoder.bodies).toEqual([body]);
});

async function ignoredHints(): Promise<Record<string, number>> {
  const text = (await sidecar?.metrics.registry.metrics()) ?? '';
  const lines = text.matchAll(/^kvpeer_sidecar_hints_ignored_total\{reason="([^"]+)"\} (\d+)$/gm);
  return Object.fromEntries([...lines].map(([, reason, count]) => [reason, Number(count)]));
}
