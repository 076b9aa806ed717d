// WebSockets through a sidecar: the bytes of both sides as they are, until one of them ends.

import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Sidecar } from '../../src/main/sidecar/sidecar.js';
import { freePort } from '../helpers/free-port.js';
import { rawExchange } from './support/model-server.js';
import { counted, opened, startSidecar } from './support/sidecar.js';

const KEY = 'dGhlIHNhbXBsZSBub25jZQ==';
const HELLO =
  `GET /v1/realtime?model=m HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n` +
  `sec-websocket-key: ${KEY}\r\nsec-websocket-version: 13\r\nx-kv-cache-source-host-port: 10.0.0.9:8000\r\n\r\n`;

let server: Server;
let sidecar: Sidecar;
let asked: IncomingMessage | undefined;
let served: Duplex | undefined;

beforeEach(async () => {
  server = createServer((_request, response) => {
    response.writeHead(426, { 'x-why': 'no' }).end('not here');
  });
  server.on('upgrade', (request, socket, head) => {
    asked = request;
    served = socket;
    socket.on('error', () => undefined);
    const accept = createHash('sha1').update(`${KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: ${accept}\r\n\r\n`,
    );
    if (head.length > 0) socket.unshift(head);
    // Everything comes back.
    socket.pipe(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  sidecar = await startSidecar((server.address() as AddressInfo).port);
});

afterEach(async () => {
  await sidecar.close({ drainMs: 0 });
  served?.destroy();
  server.close();
  await once(server, 'close');
});

describe('a WebSocket', () => {
  it('passes both ways, from the first bytes behind the head to a megabyte', async () => {
    const client = await opened(sidecar.port, true);
    const sent = Buffer.alloc(1 << 20, 'kvpeer ');
    client.write(`${HELLO}first `);
    client.end(sent);
    const received = await buffer(client);
    const bodyAt = received.indexOf('\r\n\r\n') + 4;
    const head = received.subarray(0, bodyAt).toString('latin1');
    expect(head).toMatch(/^HTTP\/1\.1 101 Switching Protocols\r\n/);
    expect(head).toContain('sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n');
    expect(received.subarray(bodyAt).equals(Buffer.concat([Buffer.from('first '), sent]))).toBe(true);
  });

  it('reaches the model server with its own headers, without those of the router', async () => {
    const client = await opened(sidecar.port);
    client.write(HELLO);
    await once(client, 'data');
    expect(asked?.url).toBe('/v1/realtime?model=m');
    expect(asked?.headers).toMatchObject({
      host: 'a',
      upgrade: 'websocket',
      'sec-websocket-key': KEY,
      'x-forwarded-for': '127.0.0.1',
    });
    expect(asked?.headers['x-kv-cache-source-host-port']).toBeUndefined();
    client.destroy();
    const line = 'kvpeer_sidecar_request_duration_seconds_count{kind="upgrade",outcome="ok"}';
    expect(await counted(sidecar, line)).toBe(1);
  });

  it('ends on the other side when either side ends it', async () => {
    for (const ends of ['client', 'server']) {
      const client = await opened(sidecar.port);
      client.write(HELLO);
      await once(client, 'data');
      const other = ends === 'client' ? served : client;
      (ends === 'client' ? client : served)?.destroy();
      if (other?.closed === false) await once(other.resume(), 'close');
    }
  });

  it('that is refused gives the client the answer of the model server', async () => {
    server.removeAllListeners('upgrade');
    const text = await rawExchange(sidecar.port, HELLO);
    expect(text).toMatch(/^HTTP\/1\.1 426 [^]*x-why: no\r\n[^]*\r\nnot here\r\n/);
  });

  it('is a 503 while nothing listens at the model server', async () => {
    await sidecar.close();
    sidecar = await startSidecar(await freePort());
    expect(await rawExchange(sidecar.port, HELLO)).toMatch(/^HTTP\/1\.1 503 [^]*"type":"ServiceUnavailable"/);
  });
});
