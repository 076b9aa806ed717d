// The admin server over real HTTP: its three routes, what it refuses, and that it closes.

import { connect } from 'node:net';
import { once } from 'node:events';
import { Registry } from 'prom-client';
import { afterEach, expect, it } from 'vitest';
import { metricsRoute, startAdmin, type AdminRoute, type AdminServer } from '../../src/main/observe/admin.js';
import { healthRoute, readyRoute, type Readiness } from '../../src/main/observe/health.js';

const started: AdminServer[] = [];
afterEach(async () => {
  await Promise.all(started.splice(0).map((server) => server.close()));
});

async function start(routes: Readonly<Record<string, AdminRoute>>, onError = (): void => undefined) {
  const server = await startAdmin({ host: '127.0.0.1', port: 0, routes, onError });
  started.push(server);
  return server;
}

it('answers /healthz as long as it lives', async () => {
  const { address } = await start({ '/healthz': healthRoute() });
  const response = await fetch(`http://${address}/healthz?probe=1`);
  expect(response.status).toBe(200);
  expect(await response.json()).toEqual({ status: 'ok' });
});

it('answers /readyz with the lanes when ready and with the reasons when not', async () => {
  let readiness: Readiness = { isReady: false, reasons: ['the node is starting'], dataPlane: undefined };
  const { address } = await start({ '/readyz': readyRoute(() => readiness) });
  const before = await fetch(`http://${address}/readyz`);
  expect(before.status).toBe(503);
  expect(await before.json()).toEqual({ status: 'not ready', reasons: ['the node is starting'] });
  const dataPlane = { name: 'nixl', version: '1.5.1', transports: 'tcp/lo cma' } as const;
  readiness = { isReady: true, reasons: [], dataPlane };
  const after = await fetch(`http://${address}/readyz`);
  expect(after.status).toBe(200);
  expect(await after.json()).toEqual({ status: 'ready', reasons: [], dataPlane });
});

it('answers /metrics in the text form of Prometheus', async () => {
  const { address } = await start({ '/metrics': metricsRoute(new Registry()) });
  const response = await fetch(`http://${address}/metrics`);
  expect(response.headers.get('content-type')).toContain('text/plain; version=0.0.4');
});

it('answers HEAD without a body, other methods with 405, other paths with 404', async () => {
  const { address } = await start({ '/healthz': healthRoute() });
  const head = await fetch(`http://${address}/healthz`, { method: 'HEAD' });
  expect([head.status, head.headers.get('content-length'), await head.text()]).toEqual([200, '16', '']);
  const post = await fetch(`http://${address}/healthz`, { method: 'POST', body: 'x'.repeat(100_000) });
  expect([post.status, post.headers.get('allow')]).toEqual([405, 'GET, HEAD']);
  for (const path of ['/', '/healthz/', '/constructor', '/__proto__']) {
    expect((await fetch(`http://${address}${path}`)).status).toBe(404);
  }
});

it('answers 500 without the reason when a route throws, and tells the log', async () => {
  const errors: unknown[] = [];
  const failing = (): never => {
    throw new Error('secret reason');
  };
  const server = await startAdmin({
    host: '127.0.0.1',
    port: 0,
    routes: { '/metrics': failing },
    onError: (path, error) => errors.push([path, error]),
  });
  started.push(server);
  const response = await fetch(`http://${server.address}/metrics`);
  expect(response.status).toBe(500);
  expect(await response.text()).not.toContain('secret');
  expect(errors).toEqual([['/metrics', new Error('secret reason')]]);
});

it('rejects an address that is taken', async () => {
  const { address } = await start({});
  const port = Number(address.split(':')[1]);
  await expect(startAdmin({ host: '127.0.0.1', port, routes: {}, onError: () => undefined })).rejects.toThrow(
    'EADDRINUSE',
  );
});

it('closes although connections are open: idle ones, half-sent requests and answers that never come', async () => {
  let release: (() => void) | undefined;
  const server = await start({
    '/healthz': healthRoute(),
    '/slow': () =>
      new Promise((resolve) => {
        release = () => {
          resolve({ status: 200, contentType: 'text/plain', body: '' });
        };
      }),
  });
  const [host, port] = server.address.split(':');
  const open = async (text: string) => {
    const socket = connect(Number(port), host);
    const closed = once(socket, 'close');
    socket.on('error', () => undefined);
    await once(socket, 'connect');
    socket.write(text);
    return { socket, closed };
  };
  const idle = await open('GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n');
  await once(idle.socket, 'data');
  const half = await open('GET /heal');
  const hanging = await open('GET /slow HTTP/1.1\r\nhost: x\r\n\r\n');
  await Promise.all([server.close(), server.close()]);
  await Promise.all([idle.closed, half.closed, hanging.closed]);
  release?.();
  await expect(fetch(`http://${server.address}/healthz`)).rejects.toThrow();
});
