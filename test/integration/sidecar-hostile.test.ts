// What hostile clients, half-open connections and broken-off uploads do to a sidecar, between real HTTP servers.

import { once } from 'node:events';

import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createLogger } from '../../src/main/observe/log.js';
import type { SidecarOptions } from '../../src/main/sidecar/options.js';
import { createSidecar, type Sidecar } from '../../src/main/sidecar/sidecar.js';
import { ModelServer, rawExchange } from './support/model-server.js';

const CHAT = '/v1/chat/completions';

let decoder: ModelServer;
let sidecar: Sidecar;

beforeEach(async () => {
  decoder = await ModelServer.start();
  await start();
});

afterEach(async () => {
  await sidecar.close({ drainMs: 0 });
  await decoder.close();
});

async function start(options: SidecarOptions = {}): Promise<void> {
  sidecar = await createSidecar(
    { port: 0, host: '127.0.0.1', modelServerPort: decoder.port, secureServing: false, ...options },
    { logger: createLogger('silent') },
  );
}

async function restart(options: SidecarOptions): Promise<void> {
  await sidecar.close({ drainMs: 0 });
  await start(options);
}

function post(path: string, body: string | Buffer, headers = 'content-type: application/json\r\n'): string {
  const bytes = Buffer.from(body);
  const head = `POST ${path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n${headers}content-length: ${bytes.length}`;
  return `${head}\r\n\r\n${bytes.toString('latin1')}`;
}

/** A port that nobody listens on. */
async function deadPort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

async function opened(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined);
  await once(socket, 'connect');
  return socket;
}

describe('a client that sends its whole body before it reads', () => {
  const UPLOAD = Buffer.alloc(16 << 20, ' ');

  async function answerAfterUpload(path: string): Promise<string> {
    const socket = await opened(sidecar.port);
    socket.pause();
    socket.write(
      `POST ${path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: ${UPLOAD.length}\r\n\r\n`,
    );
    await new Promise<void>((resolve) => {
      socket.write(UPLOAD, () => {
        resolve();
      });
    });
    const [first] = (await once(socket.resume(), 'data')) as [Buffer];
    socket.destroy();
    return first.toString('latin1');
  }

  it('gets its 503 when no model server listens', async () => {
    await restart({ modelServerPort: await deadPort() });
    expect(await answerAfterUpload(CHAT)).toMatch(/^HTTP\/1\.1 503 /);
  });

  it('gets the answer that the model server gave before it had read the body', async () => {
    const server = createServer((socket) => {
      socket.on('error', () => undefined);
      socket.once('data', () => socket.write('HTTP/1.1 401 No\r\ncontent-length: 2\r\n\r\nno'));
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    await restart({ modelServerPort: (server.address() as AddressInfo).port });
    expect(await answerAfterUpload('/v1/embeddings')).toMatch(/^HTTP\/1\.1 401 /);
    server.close();
  });
});

describe('a close', () => {
  it('ends WebSockets that outlast the drain', async () => {
    const server = createServer((socket) => {
      socket.on('error', () => undefined);
      socket.once('data', () =>
        socket.write('HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n'),
      );
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    await restart({ modelServerPort: (server.address() as AddressInfo).port });
    const client = await opened(sidecar.port);
    client.write('GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n');
    await once(client, 'data');
    await sidecar.close({ drainMs: 1 });
    client.resume();
    if (!client.closed) await once(client, 'close');
    server.close();
  });

  it('does not wait for a client that stopped inside its TLS handshake', async () => {
    await restart({ secureServing: true });
    const client = await opened(sidecar.port);
    client.write(Buffer.from([0x16, 0x03, 0x01]));
    await sidecar.close({ drainMs: 1 });
    client.destroy();
  });
});

describe('kv_transfer_params that a client hides', () => {
  const HIDDEN = '{"a":NaN,"kv_transfer_params":{"remote_kv_source":"evil"}}';

  it.each(['', 'x-kvpeer-leg-signature: x\r\n'])(
    'are found in what only Python reads (header %j)',
    async (header) => {
      await rawExchange(sidecar.port, post(CHAT, HIDDEN, `content-type: application/json\r\n${header}`));
      expect(decoder.legs[0]?.body.toString()).toMatch(/^\{"a":NaN {20,}\}$/);
    },
  );

  it.each(['', 'content-type: application/JSON\r\n'])(
    'are not passed in UTF-16 on any route (header %j)',
    async (header) => {
      const body = Buffer.from('{"kv_transfer_params":1}', 'utf16le').toString('latin1');
      const text = await rawExchange(
        sidecar.port,
        post('/v1/chat/completions/batch', Buffer.from(body, 'latin1'), header),
      );
      expect(text).toMatch(/^HTTP\/1\.1 400 /);
      expect(decoder.legs).toHaveLength(0);
    },
  );

  it.each([
    [CHAT, '{"vllm_xargs":{"kv_transfer_params":"x","b":1}}', '{"vllm_xargs":{"b":1}}'],
    [CHAT, HIDDEN, /^\{"a":NaN +\}$/],
    ['/v1/chat%2Fcompletions', '{"kv_transfer_params":"x"}', /^\{ +\}$/],
  ])('reach no engine unchecked from a trusted client either: %s %s', async (path, body, passed) => {
    await restart({ trustClientParams: true });
    await rawExchange(sidecar.port, post(path, body));
    const text = decoder.legs[0]?.body.toString();
    if (typeof passed === 'string') expect(text).toBe(passed);
    else expect(text).toMatch(passed);
  });
});

describe('bodies and heads', () => {
  it('refuses an object of a million members instead of remembering them', async () => {
    const body = `{${'"":0,'.repeat(1_000_000)}"z":0}`;
    const text = await rawExchange(
      sidecar.port,
      post(CHAT, body, 'x-kv-cache-source-host-port: 10.0.0.9:8000\r\n'),
    );
    expect(text).toMatch(/^HTTP\/1\.1 400 [^]*more than 16384 members/);
  });

  it('passes header bytes above ASCII as they are, both ways', async () => {
    decoder.script = (_leg, response) => {
      response.setHeader('x-name', 'na\u00efve');
      // Text would make Node encode the head as UTF-8.
      response.end(Buffer.from('{}'));
    };
    const text = await rawExchange(sidecar.port, post(CHAT, '{}', 'x-name: na\u00efve\r\n'));
    expect(decoder.legs[0]?.headers['x-name']).toBe('na\u00efve');
    expect(text).toContain('x-name: na\u00efve\r\n');
  });
});
