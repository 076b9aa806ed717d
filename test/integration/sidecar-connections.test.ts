// Connections of a sidecar that do not go as they should: clients that stop, leave, end one side or read slowly, and model
// servers that answer late, slowly or before they were asked to the end.

import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { connect as connectTls } from 'node:tls';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { request } from 'undici';
import type { SidecarOptions } from '../../src/main/sidecar/options.js';
import type { Sidecar } from '../../src/main/sidecar/sidecar.js';
import { freePort } from '../helpers/free-port.js';
import { certificateFolder } from './support/certificate.js';
import { ModelServer, rawExchange } from './support/model-server.js';
import {
  CHAT,
  FROM_SOURCE,
  counted,
  opened,
  rawServer,
  requestText,
  startSidecar,
} from './support/sidecar.js';

let decoder: ModelServer;
let prefiller: ModelServer;
let sidecar: Sidecar;

beforeEach(async () => {
  decoder = await ModelServer.start();
  prefiller = await ModelServer.start();
  sidecar = await startSidecar(decoder.port);
});

afterEach(async () => {
  await sidecar.close({ drainMs: 0 });
  await decoder.close();
  await prefiller.close();
});

async function restart(options: SidecarOptions & { modelServerPort?: number }): Promise<void> {
  await sidecar.close({ drainMs: 0 });
  sidecar = await startSidecar(decoder.port, options);
}

const viaPrefiller = (): string => `x-prefiller-host-port: 127.0.0.1:${prefiller.port}\r\n`;

describe('a client that gets its answer before it has sent its body', () => {
  const UPLOAD = Buffer.alloc(16 << 20, ' ');

  /** Sends everything before it reads, as simple clients do. */
  async function answerAfterUpload(path: string, headers: string, upload = UPLOAD): Promise<string> {
    const socket = await opened(sidecar.port);
    socket.pause();
    socket.write(`POST ${path} HTTP/1.1\r\nhost: a\r\n${headers}content-length: ${upload.length}\r\n\r\n`);
    await new Promise<void>((resolve) => {
      socket.write(upload, () => {
        resolve();
      });
    });
    return (await buffer(socket)).toString('latin1');
  }

  it.each([
    ['400', 'x-prefiller-host-port: nonsense\r\n', ''],
    ['400', FROM_SOURCE, 'no json'],
    ['403', 'x-prefiller-host-port: 10.0.0.1:8000\r\n', ''],
  ])('gets its %s whole, though the connection was to be closed (%j)', async (status, headers, start) => {
    await restart({ ssrfAllow: ['127.0.0.1:1', '10.0.0.9:8000'] });
    const upload = Buffer.concat([Buffer.from(start), UPLOAD]);
    const text = await answerAfterUpload(CHAT, `connection: close\r\n${headers}`, upload);
    expect(text).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
    const [head, body] = text.split('\r\n\r\n');
    expect(head).toContain(`content-length: ${body.length}`);
  });

  it('gets the 401 of a model server that did not read on', async () => {
    const server = await rawServer((socket) => {
      socket.once('data', () => socket.write('HTTP/1.1 401 No\r\ncontent-length: 2\r\n\r\nno'));
    });
    await restart({ modelServerPort: server.port });
    const text = await answerAfterUpload('/v1/embeddings', 'connection: close\r\n');
    expect(text).toMatch(/^HTTP\/1\.1 401 [^]*\r\n\r\nno$/);
    await server.close();
  });

  it('gets the 503 while no model server listens', async () => {
    await restart({ modelServerPort: await freePort() });
    expect(await answerAfterUpload('/v1/embeddings', 'connection: close\r\n')).toMatch(/^HTTP\/1\.1 503 /);
  });

  it('may send another request on a connection that stays', async () => {
    const first = requestText(CHAT, UPLOAD, 'x-prefiller-host-port: nonsense\r\n');
    const text = await rawExchange(sidecar.port, first + requestText(CHAT, '{"a":1}'));
    expect(text).toMatch(/^HTTP\/1\.1 400 [^]*HTTP\/1\.1 200 /);
    expect(decoder.legs.map(({ body }) => body.toString())).toEqual(['{"a":1}']);
  });
});

describe('a client that ends its side after its request', () => {
  async function halfClosed(text: string): Promise<Buffer> {
    const socket = await opened(sidecar.port, true);
    socket.end(text);
    return buffer(socket);
  }

  /** Interim answers are not part of the answer. */
  function final(text: Buffer): string {
    return text.toString('latin1').replace(/^(?:HTTP\/1\.1 100 Continue\r\n\r\n)+/, '');
  }

  it('gets its whole answer, however long the prefill takes', async () => {
    let finish: () => void = () => undefined;
    prefiller.script = (_leg, response) => {
      finish = () => response.end('{}');
    };
    const large = Buffer.alloc(1 << 20, 'x');
    decoder.script = (_leg, response) => response.end(large);
    const answer = halfClosed(requestText(CHAT, '{}', viaPrefiller()));
    await prefiller.until(() => prefiller.legs.length === 1);
    setTimeout(finish, 300);
    expect(final(await answer)).toMatch(/^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\n[^]*x{1000,}/);
    expect(decoder.legs).toHaveLength(1);
  });

  it('gets a stream to its end that begins after that', async () => {
    decoder.script = (_leg, response) => {
      setTimeout(() => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write('data: 1\n\n');
        setTimeout(() => response.end('data: 2\n\n'), 50);
      }, 50);
    };
    const text = final(await halfClosed(requestText(CHAT, '{}')));
    expect(text).toMatch(/data: 1\n\n[^]*data: 2\n\n\r\n0\r\n\r\n$/);
  });

  it('is told from one that left: then the prefill is cancelled and no decode is sent', async () => {
    prefiller.script = () => undefined;
    const socket = await opened(sidecar.port);
    socket.write(requestText(CHAT, '{}', viaPrefiller()));
    await prefiller.until(() => prefiller.legs.length === 1);
    socket.destroy();
    await prefiller.until(() => prefiller.abortedCount === 1);
    expect(decoder.legs).toHaveLength(0);
  });

  it('has left when it was a TLS connection', async () => {
    await restart({ secureServing: true, certPath: await certificateFolder() });
    prefiller.script = () => undefined;
    const socket = connectTls({ port: sidecar.port, host: '127.0.0.1', rejectUnauthorized: false });
    socket.on('error', () => undefined);
    socket.write(requestText(CHAT, '{}', viaPrefiller()));
    await prefiller.until(() => prefiller.legs.length === 1);
    socket.end();
    await prefiller.until(() => prefiller.abortedCount === 1);
    expect(decoder.legs).toHaveLength(0);
  });

  it('has left when that happens inside a stream', async () => {
    decoder.script = (_leg, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write('data: 1\n\n');
    };
    const socket = await opened(sidecar.port);
    socket.write(requestText(CHAT, '{}'));
    await once(socket, 'data');
    socket.end();
    await decoder.until(() => decoder.abortedCount === 1);
  });

  it('cancels the leg when it ends inside its body', async () => {
    let began: (leg: Socket) => void;
    const leg = new Promise<Socket>((resolve) => (began = resolve));
    const server = await rawServer((socket) => {
      began(socket);
    });
    await restart({ modelServerPort: server.port });
    const socket = await opened(sidecar.port);
    socket.write('POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nshort');
    const begun = await leg;
    await once(begun, 'data');
    const closed = once(begun, 'close');
    socket.end();
    await closed;
    await server.close();
  });
});

describe('a model server that ends its side', () => {
  it('is read to the end of its answer, which the client gets', async () => {
    const server = await rawServer((socket) => {
      socket.once('data', () => socket.end('HTTP/1.1 200 OK\r\n\r\nwithout a length'));
    });
    await restart({ modelServerPort: server.port });
    const { statusCode, body } = await request(`http://127.0.0.1:${sidecar.port}/v1/models`);
    expect(statusCode).toBe(200);
    expect(await body.text()).toBe('without a length');
    await server.close();
  });

  it('is not asked for longer than its connection, and the next leg gets a new one', async () => {
    const server = await rawServer((socket) => {
      socket.once('data', () => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok'));
    });
    await restart({ modelServerPort: server.port });
    for (let i = 0; i < 3; i++) {
      const { statusCode, body } = await request(`http://127.0.0.1:${sidecar.port}/v1/models`);
      expect([statusCode, await body.text()]).toEqual([200, 'ok']);
    }
    await server.close();
  });
});

describe('a drain', () => {
  /** Ends at once, or the test times out: the drain would last an hour. */
  const HOUR = { drainMs: 3_600_000 };

  async function ended(socket: Socket): Promise<void> {
    if (!socket.closed) await once(socket.resume(), 'close');
  }

  it('closes a connection at once that has never sent a request', async () => {
    const silent = await opened(sidecar.port);
    // Its own connection is accepted after the silent one.
    await rawExchange(sidecar.port, requestText(CHAT, '{}'));
    await sidecar.close(HOUR);
    await ended(silent);
  });

  it('closes a TLS connection at once that has never sent a request, or is not through its handshake', async () => {
    await restart({ secureServing: true, certPath: await certificateFolder() });
    const handshake = await opened(sidecar.port);
    handshake.write(Buffer.from([0x16, 0x03, 0x01]));
    const silent = connectTls({ port: sidecar.port, host: '127.0.0.1', rejectUnauthorized: false });
    silent.on('error', () => undefined);
    await once(silent, 'secureConnect');
    // Both sides are through: the server's tickets come after its handshake.
    await once(silent, 'session');
    await sidecar.close(HOUR);
    await Promise.all([ended(handshake), ended(silent)]);
  });

  it('closes a connection at once that waits for its next request', async () => {
    const socket = await opened(sidecar.port);
    socket.write(requestText(CHAT, '{}', ''));
    await once(socket, 'data');
    await sidecar.close(HOUR);
    await ended(socket);
  });

  it('waits for a request whose head is on its way', async () => {
    const socket = connect(sidecar.port, '127.0.0.1');
    const text = requestText(CHAT, '{"a":1}');
    socket.write(text.slice(0, 20));
    await rawExchange(sidecar.port, requestText('/v1/models', '', 'connection: close\r\n'));
    const closed = sidecar.close(HOUR);
    socket.write(text.slice(20));
    expect((await buffer(socket)).toString()).toMatch(/^HTTP\/1\.1 200 /);
    await closed;
  });
});

describe('connections to a model server', () => {
  it('stay open up to --max-idle-conns-per-host, and no more of them', async () => {
    await restart({ maxIdleConnsPerHost: 2 });
    const release: (() => void)[] = [];
    const sockets = new Set<unknown>();
    decoder.script = (_leg, response) => {
      sockets.add(response.socket);
      release.push(() => response.end('{}'));
    };
    const asked = Array.from({ length: 5 }, async () => {
      const { body } = await request(`http://127.0.0.1:${sidecar.port}/v1/models`);
      await body.dump();
    });
    await decoder.until(() => release.length === 5);
    const closing = decoder.legs.filter(({ headers }) => headers.connection === 'close');
    expect(closing).toHaveLength(3);
    for (const each of release) each();
    await Promise.all(asked);
    await decoder.until(() => decoder.connectionCount <= 2);
    const again = request(`http://127.0.0.1:${sidecar.port}/v1/models`);
    await decoder.until(() => release.length === 6);
    release[5]();
    await (await again).body.dump();
    expect(sockets.size).toBe(5);
  });
});

describe('the request metrics', () => {
  const refused = 'kvpeer_sidecar_request_duration_seconds_count{kind="local",outcome="client-error"}';

  it('count the answers that the sidecar gives itself', async () => {
    await restart({ ssrfAllow: ['127.0.0.1:1', '10.0.0.9:8000'] });
    await rawExchange(
      sidecar.port,
      requestText(CHAT, '{}', 'connection: close\r\nx-prefiller-host-port: x\r\n'),
    );
    await rawExchange(
      sidecar.port,
      requestText(CHAT, '{}', 'connection: close\r\nx-prefiller-host-port: 10.0.0.1:80\r\n'),
    );
    await rawExchange(sidecar.port, requestText(CHAT, 'null', `connection: close\r\n${FROM_SOURCE}`));
    expect(await counted(sidecar, refused)).toBe(3);
    await rawExchange(sidecar.port, 'GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n');
    expect(await counted(sidecar, refused)).toBe(3);
  });
});
