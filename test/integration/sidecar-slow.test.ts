// Slow clients and slow model servers: the pace of the slower side is the pace of the other, nothing is cut, and nothing
// piles up in the sidecar.

import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { request } from 'undici';
import type { Sidecar } from '../../src/main/sidecar/sidecar.js';
import { ModelServer } from './support/model-server.js';
import { CHAT, FROM_SOURCE, opened, rawServer, requestText, startSidecar } from './support/sidecar.js';

const MIB = 1 << 20;
/** What the buffers of two connections on this host and of both streams can hold; the kernel's alone are up to 6 MiB each. */
const HELD_BYTES = 32 * MIB;
const TOTAL_BYTES = 96 * MIB;

let decoder: ModelServer;
let sidecar: Sidecar;

beforeEach(async () => {
  decoder = await ModelServer.start();
  sidecar = await startSidecar(decoder.port);
});

afterEach(async () => {
  await sidecar.close({ drainMs: 0 });
  await decoder.close();
});

/** Writes 96 MiB as fast as they are taken. @returns how much was, so far */
function pourInto(response: ServerResponse, piece: Buffer): { readonly bytes: () => number } {
  let sent = 0;
  const pour = (): void => {
    while (sent < TOTAL_BYTES) {
      sent += piece.length;
      if (!response.write(piece)) return;
    }
    response.end();
  };
  response.on('drain', pour);
  pour();
  return { bytes: () => sent };
}

/** Waits until a figure has stood still for a while. */
async function settled(figure: () => number): Promise<number> {
  for (;;) {
    const before = figure();
    await sleep(250);
    if (figure() === before && before > 0) return before;
  }
}

/** Reads one byte at a time. */
async function readBytes(socket: Socket, count: number, pauseMs: number): Promise<Buffer> {
  const bytes: Buffer[] = [];
  while (bytes.length < count) {
    const byte = socket.read(1) as Buffer | null;
    if (byte === null) await once(socket, 'readable');
    else {
      bytes.push(byte);
      await sleep(pauseMs);
    }
  }
  return Buffer.concat(bytes);
}

describe('a client that reads a byte at a time', () => {
  const EVENT = Buffer.from(`data: ${'x'.repeat(1016)}\n\n`);

  it.each([
    ['an event stream', { 'content-type': 'text/event-stream' }],
    ['a body of known length', { 'content-type': 'text/plain', 'content-length': String(TOTAL_BYTES) }],
  ])(
    'holds up the model server with %s, and what it has not read is not in the sidecar',
    async (_what, head) => {
      let poured: { readonly bytes: () => number } | undefined;
      decoder.script = (_leg, response) => {
        response.writeHead(200, head);
        poured = pourInto(response, EVENT);
      };
      const before = process.memoryUsage().arrayBuffers;
      const client = await opened(sidecar.port);
      client.write(requestText(CHAT, '{}', ''));
      const first = await readBytes(client, 15, 5);
      expect(first.toString()).toBe('HTTP/1.1 200 OK');
      const sent = await settled(() => poured?.bytes() ?? 0);
      expect(sent).toBeLessThan(HELD_BYTES);
      await readBytes(client, 50, 5);
      expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(HELD_BYTES);
      // Then it reads on, and the model server goes on.
      let received = 0;
      client.on('data', (piece: Buffer) => {
        received += piece.length;
      });
      await expect.poll(() => received).toBeGreaterThanOrEqual(TOTAL_BYTES);
      client.destroy();
    },
  );

  it('costs no other client its pace', async () => {
    decoder.script = (leg, response) => {
      if (leg.path === CHAT) pourInto(response, EVENT);
      else response.end('quick');
    };
    const client = await opened(sidecar.port);
    client.write(requestText(CHAT, '{}', ''));
    await readBytes(client, 1, 0);
    const { body } = await request(`http://127.0.0.1:${sidecar.port}/v1/models`);
    expect(await body.text()).toBe('quick');
    client.destroy();
    await decoder.until(() => decoder.abortedCount === 1);
  });
});

describe('a client that sends slowly', () => {
  it.each([
    ['streamed on', ''],
    ['rewritten', FROM_SOURCE],
  ])('has its body %s whole', async (_how, headers) => {
    const text = requestText(CHAT, '{"a":"slow"}', `connection: close\r\n${headers}`);
    const client = await opened(sidecar.port);
    const answer = buffer(client);
    for (const character of text.slice(0, -1)) {
      client.write(character);
      await sleep(2);
    }
    await sleep(300);
    client.write(text.slice(-1));
    expect((await answer).toString()).toMatch(/^HTTP\/1\.1 200 /);
    expect(decoder.legs[0].body.toString().startsWith('{"a":"slow"')).toBe(true);
  });
});

describe('a model server that reads slowly', () => {
  it('holds up the upload of its client', async () => {
    let onLeg: (leg: Socket) => void;
    const leg = new Promise<Socket>((resolve) => (onLeg = resolve));
    const server = await rawServer((socket) => {
      onLeg(socket.pause());
    });
    await sidecar.close();
    sidecar = await startSidecar(server.port);
    const client = await opened(sidecar.port);
    client.write(`POST ${CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: ${TOTAL_BYTES}\r\n\r\n`);
    let sent = 0;
    const piece = Buffer.alloc(64 * 1024, ' ');
    const pour = (): void => {
      while (sent < TOTAL_BYTES) {
        sent += piece.length;
        if (!client.write(piece)) return;
      }
    };
    client.on('drain', pour);
    pour();
    const upload = await leg;
    expect(await settled(() => sent)).toBeLessThan(HELD_BYTES);
    let received = 0;
    upload.on('data', (part: Buffer) => {
      received += part.length;
    });
    upload.resume();
    await expect.poll(() => received).toBeGreaterThan(TOTAL_BYTES);
    client.destroy();
    await server.close();
  });
});

describe('a model server that answers slowly', () => {
  it('is waited for: longer than idle connections live, and between the bytes of its head and of its body', async () => {
    const IDLE_MS = 4_000;
    const server = await rawServer((socket) => {
      socket.once('data', () => {
        void (async () => {
          await sleep(IDLE_MS + 1_000);
          for (const character of 'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nslow text') {
            socket.write(character);
            await sleep(10);
          }
        })();
      });
    });
    await sidecar.close();
    sidecar = await startSidecar(server.port);
    const { statusCode, body } = await request(`http://127.0.0.1:${sidecar.port}/v1/models`);
    expect([statusCode, await body.text()]).toEqual([200, 'slow text']);
    await server.close();
  });

  it('has each of its events sent on as it comes, the head before the first', async () => {
    let write: (text: string) => void = () => undefined;
    decoder.script = (_leg, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
      write = (text) => response.write(text);
    };
    const { headers, body } = await request(`http://127.0.0.1:${sidecar.port}${CHAT}`, {
      method: 'POST',
      body: '{}',
    });
    expect(headers['content-type']).toBe('text/event-stream');
    for (const text of ['data: 1\n\n', 'data: [DO', 'NE]\n\n']) {
      write(text);
      const [piece] = (await once(body, 'data')) as [Buffer];
      expect(piece.toString()).toBe(text);
    }
    body.on('error', () => undefined).destroy();
    await decoder.until(() => decoder.abortedCount === 1);
  });
});
