// Requests and answers that HTTP allows and hardly anybody sends, and what hostile ends make of them.

import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, openSync } from 'node:fs';
import { mkdtemp, open as openFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Sidecar } from '../../src/main/sidecar/sidecar.js';
import { ModelServer, rawExchange } from './support/model-server.js';
import { CHAT, opened, rawServer, requestText, startSidecar, type RawServer } from './support/sidecar.js';

let sidecar: Sidecar;

afterEach(async () => {
  await sidecar.close({ drainMs: 0 });
});

describe('an answer without a body', () => {
  let server: RawServer;
  let answer = '';

  beforeEach(async () => {
    server = await rawServer((socket) => socket.on('data', () => socket.write(answer)));
    sidecar = await startSidecar(server.port);
  });

  afterEach(() => server.close());

  const get = 'GET /v1/files/1 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n';

  it('is complete with its head, whatever length that has', async () => {
    answer = 'HTTP/1.1 304 Not Modified\r\netag: "1"\r\ncontent-length: 100\r\n\r\n';
    expect(await rawExchange(sidecar.port, get)).toMatch(/^HTTP\/1\.1 304 [^]*etag: "1"\r\n[^]*\r\n\r\n$/);
    answer = 'HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n';
    expect(await rawExchange(sidecar.port, get)).toMatch(/^HTTP\/1\.1 304 [^]*\r\n\r\n$/);
  });

  it('has no length where it may have none', async () => {
    answer = 'HTTP/1.1 204 No Content\r\ncontent-length: 100\r\n\r\n';
    const text = await rawExchange(sidecar.port, requestText('/v1/load_lora_adapter', '{}'));
    expect(text).toMatch(/^HTTP\/1\.1 204 [^]*\r\n\r\n$/);
    expect(text.toLowerCase()).not.toContain('content-length');
  });

  it('with a header that no client may be sent is a 502, also in words', async () => {
    answer = 'HTTP/1.1 200 OK\r\nx a: 1\r\ncontent-length: 2\r\n\r\nok';
    expect(await rawExchange(sidecar.port, get)).toMatch(/^HTTP\/1\.1 502 Bad Gateway\r\n/);
  });
});

describe('a request', () => {
  let decoder: ModelServer;

  beforeEach(async () => {
    decoder = await ModelServer.start();
    sidecar = await startSidecar(decoder.port);
  });

  afterEach(() => decoder.close());

  it('for another protocol behind one that waits for its answer ends the connection, and nothing else', async () => {
    for (const protocol of ['websocket', 'h2c']) {
      const client = await opened(sidecar.port);
      decoder.script = () => {
        const wish = `GET /b HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: ${protocol}\r\n\r\n`;
        client.write(wish);
      };
      client.write('GET /a HTTP/1.1\r\nhost: a\r\n\r\n');
      await once(client.resume(), 'close');
      decoder.script = (_leg, response) => response.end('well');
      expect(await rawExchange(sidecar.port, requestText(CHAT, '{}'))).toMatch(/\r\nwell$/);
    }
  });

  it('waits for the answer of those before it on its connection, and no other one does', async () => {
    const paths = ['/0', '/1', '/2'];
    const others: Promise<string>[] = [];
    decoder.script = (leg, response) => {
      if (!paths.includes(leg.path)) {
        response.end('well');
        return;
      }
      // Whatever would overtake has had the time of a whole request of somebody else.
      const other = rawExchange(sidecar.port, requestText('/other', '{}'));
      others.push(other);
      void other.then(() => response.end(`${leg.path};`));
    };
    const ahead = paths.map((path) => `GET ${path} HTTP/1.1\r\nhost: a\r\n\r\n`).join('');
    const client = await opened(sidecar.port, true);
    client.end(ahead);
    expect((await text(client)).match(/\/\d(?=;)/g)).toEqual(paths);
    expect(decoder.legs.map(({ path }) => path)).toEqual(['/0', '/other', '/1', '/other', '/2', '/other']);
    for (const other of await Promise.all(others)) expect(other).toMatch(/\r\nwell$/);
  });

  it('that was sent ahead is answered also where the client ended its side long before', async () => {
    decoder.script = (leg, response) => {
      setTimeout(() => response.end(`to ${leg.path}`), 30);
    };
    const client = await opened(sidecar.port, true);
    client.end('GET /a HTTP/1.1\r\nhost: a\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n');
    expect((await text(client)).match(/to \/./g)).toEqual(['to /a', 'to /b']);
  });

  it('for a WebSocket that goes round is a 502, and one for no path a 400', async () => {
    const wish = (target: string, headers: string): Promise<string> =>
      rawExchange(
        sidecar.port,
        `GET ${target} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n${headers}\r\n`,
      );
    expect(await wish('/ws', `x-forwarded-for: ${'10.0.0.1,'.repeat(63)}10.0.0.1\r\n`)).toMatch(
      /^HTTP\/1\.1 502 [^]*64 proxies/,
    );
    expect(await wish('/ws', 'host: b\r\n')).toMatch(/^HTTP\/1\.1 400 [^]*one host header/);
    expect(decoder.legs).toEqual([]);
  });

  it('reaches the model server with thousands of header lines, and is a 400 with more', async () => {
    let received = '';
    const server = await rawServer((socket) =>
      socket.on('data', (piece) => {
        received += piece.toString('latin1');
        if (received.endsWith('{"a":1}')) socket.write('HTTP/1.1 204 No Content\r\n\r\n');
      }),
    );
    await sidecar.close({ drainMs: 0 });
    sidecar = await startSidecar(server.port);
    const withLines = (count: number): string =>
      requestText('/v1/score', '{"a":1}', `${'x-a: b\r\n'.repeat(count)}connection: close\r\nx-last: c\r\n`);
    expect(await rawExchange(sidecar.port, withLines(5000))).toMatch(/^HTTP\/1\.1 204 /);
    expect(received).toContain('x-last: c\r\n');
    expect(await rawExchange(sidecar.port, withLines(9000))).toMatch(/^HTTP\/1\.1 400 [^]*8192 header lines/);
    await server.close();
  });

  it('with a prefiller that no URL can name is a 400 that names the header, in both profiles', async () => {
    for (const profile of ['A', 'B'] as const) {
      await sidecar.close({ drainMs: 0 });
      sidecar = await startSidecar(decoder.port, { profile });
      const headers = 'x-prefiller-host-port: xn--a:8000\r\nconnection: close\r\n';
      const text = await rawExchange(sidecar.port, requestText(CHAT, '{}', headers));
      expect(text).toMatch(/^HTTP\/1\.1 400 [^]*x-prefiller-host-port/);
    }
    expect(decoder.legs).toEqual([]);
  });

  it('may wish for h2c as often as it likes on one connection', async () => {
    const warnings: Error[] = [];
    const warned = (warning: Error): void => void warnings.push(warning);
    process.on('warning', warned);
    const client = await opened(sidecar.port);
    for (let i = 0; i < 12; i++) {
      client.write('GET /a HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n');
      await once(client, 'data');
    }
    client.destroy();
    await decoder.until(() => decoder.legs.length === 12);
    await new Promise((resolve) => setImmediate(resolve));
    process.off('warning', warned);
    expect(warnings).toEqual([]);
  });
});

describe('a model server on this host', () => {
  it('is dialled without the threads in which names are resolved, which anybody can keep busy with names', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'kvpeer-fifo-'));
    const fifo = join(folder, 'fifo');
    execFileSync('mkfifo', [fifo]);
    const decoder = await ModelServer.start();
    sidecar = await startSidecar(decoder.port);
    // Opening a pipe that nobody writes blocks a thread as a name server does that is slow to answer.
    const blocked = Array.from({ length: 8 }, () => openFile(fifo, 'r'));
    try {
      expect(await rawExchange(sidecar.port, requestText(CHAT, '{}'))).toMatch(/^HTTP\/1\.1 200 /);
    } finally {
      const end = openSync(fifo, constants.O_RDWR);
      for (const file of await Promise.all(blocked)) await file.close();
      closeSync(end);
      await rm(folder, { recursive: true });
      await decoder.close();
    }
  });
});
