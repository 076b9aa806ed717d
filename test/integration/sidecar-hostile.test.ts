// What hostile clients and model servers do to a sidecar, between real HTTP servers.

import { once } from 'node:events';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
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
let sidecar: Sidecar;

beforeEach(async () => {
  decoder = await ModelServer.start();
  sidecar = await startSidecar(decoder.port);
});

afterEach(async () => {
  await sidecar.close({ drainMs: 0 });
  await decoder.close();
});

async function restart(options: SidecarOptions): Promise<void> {
  await sidecar.close({ drainMs: 0 });
  sidecar = await startSidecar(decoder.port, options);
}

function post(path: string, body: string | Buffer, headers = 'content-type: application/json\r\n'): string {
  return requestText(path, body, `connection: close\r\n${headers}`);
}

describe('a close', () => {
  it('ends WebSockets that outlast the drain', async () => {
    const server = await rawServer((socket) => {
      socket.once('data', () =>
        socket.write('HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n'),
      );
    });
    await restart({ modelServerPort: server.port });
    const client = await opened(sidecar.port);
    client.write('GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n');
    await once(client, 'data');
    await sidecar.close({ drainMs: 1 });
    client.resume();
    if (!client.closed) await once(client, 'close');
    await server.close();
  });

  it('does not wait for a client that stopped inside its TLS handshake', async () => {
    await restart({ secureServing: true, certPath: await certificateFolder() });
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
  it('refuses nesting without end on a path that changes nothing, before the body is complete', async () => {
    const client = await opened(sidecar.port);
    let text = '';
    client.on('data', (chunk: Buffer) => (text += chunk.toString()));
    client.write(
      `POST ${CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: ${1 << 30}\r\n\r\n${'['.repeat(1 << 20)}`,
    );
    await once(client, 'data');
    expect(text).toMatch(/^HTTP\/1\.1 400 [^]*nested deeper than 10000 levels/);
    client.destroy();
  });

  it.each(['content-length: 2\r\n', ''])(
    'answers 502 when the head of the model server may not be sent on (%j), and is done with it',
    async (length) => {
      const head = `HTTP/1.1 200 OK\r\nx a: b\r\nconnection: close\r\n${length}\r\n`;
      const server = await rawServer((socket) => {
        socket.once('data', () => socket.end(`${head}ok`));
      });
      await restart({ modelServerPort: server.port });
      const text = await rawExchange(sidecar.port, post(CHAT, '{}'));
      expect(text).toMatch(/^HTTP\/1\.1 502 [^]*"BadGateway"/);
      await server.close();
    },
  );

  it('answers 502 when its model server is the sidecar itself, instead of going round without end', async () => {
    const port = await freePort();
    await restart({ port, modelServerPort: port });
    for (const headers of ['', FROM_SOURCE]) {
      const text = await rawExchange(sidecar.port, post(CHAT, '{}', headers));
      expect(text).toMatch(/^HTTP\/1\.1 502 [^]*correct --model-server-port/);
    }
  });

  it('refuses a target that is no path', async () => {
    const text = await rawExchange(
      sidecar.port,
      'OPTIONS * HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n',
    );
    expect(text).toMatch(/^HTTP\/1\.1 400 [^]*target is no path/);
  });

  it('refuses an object of a million members instead of remembering them', async () => {
    const body = `{${'"":0,'.repeat(1_000_000)}"z":0}`;
    const text = await rawExchange(sidecar.port, post(CHAT, body, FROM_SOURCE));
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

describe('a head that says two things', () => {
  const LENGTH = 'content-length: 7\r\n';

  it.each([
    ['a header in the value of another', 'x-prefiller-host-port: a:1\rx-evil: 1\r\n'],
    ['a line that ends without a return', 'x-a: 1\nx-evil: 1\r\n'],
    ['a folded line', 'x-a: 1\r\n x-evil: 1\r\n'],
    ['a zero byte', 'x-kv-cache-source-host-port: a\0b:1\r\n'],
    ['a blank before the colon', 'x-prefiller-host-port : a:1\r\n'],
    ['no name', ': x\r\n'],
    ['two lengths', 'content-length: 5\r\n'],
    ['a length with a sign', 'content-length: +7\r\n'],
    ['an unknown coding', 'transfer-encoding: xchunked\r\n'],
    ['a coding after chunked', 'transfer-encoding: chunked, identity\r\n'],
  ])('is answered 400, without a leg: %s', async (_what, line) => {
    const head = `POST ${CHAT} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n`;
    const length = line.startsWith('transfer-encoding') ? '' : LENGTH;
    const text = await rawExchange(sidecar.port, `${head}${line}${length}\r\n{"a":1}`);
    expect(text).toMatch(/^HTTP\/1\.1 400 /);
    expect(decoder.legs).toHaveLength(0);
  });

  it.each([
    'connection: close, x-b, X-Prefiller-Host-Port\r\n',
    'connection: close\r\nx-forwarded-for: 1.2.3.4\r\n',
  ])('loses what it says of its own connection, and adds no header of its own choice (%j)', async (lines) => {
    const text = `POST ${CHAT} HTTP/1.1\r\nhost: a\r\n${lines}x-b: 1\r\nte: gzip\r\n${LENGTH}\r\n{"a":1}`;
    await rawExchange(sidecar.port, text);
    const headers = decoder.legs[0]?.headers;
    expect(headers['x-b']).toBe(lines.includes('x-b') ? undefined : '1');
    expect(headers.te).toBeUndefined();
    expect(headers['x-forwarded-for']).toBe(lines.includes('1.2.3.4') ? '1.2.3.4, 127.0.0.1' : '127.0.0.1');
  });

  it.each([
    ['a header in the value of another', 'x-a: 1\rx-evil: 1\r\n'],
    ['a zero byte', 'x-a: a\0b\r\n'],
    ['two lengths', 'content-length: 2\r\ncontent-length: 3\r\n'],
  ])('of a model server reaches no client: %s', async (_what, line) => {
    const server = await rawServer((socket) => {
      socket.once('data', () => socket.end(`HTTP/1.1 200 OK\r\n${line}\r\nok`));
    });
    await restart({ modelServerPort: server.port });
    const text = await rawExchange(sidecar.port, post('/v1/models', ''));
    expect(text).toMatch(/^HTTP\/1\.1 502 /);
    expect(text).not.toContain('x-evil');
    await server.close();
  });
});

describe('a client that leaves', () => {
  it('while it uploads a body that is to be rewritten: no leg is sent', async () => {
    const client = await opened(sidecar.port);
    client.write(`POST ${CHAT} HTTP/1.1\r\nhost: a\r\n${FROM_SOURCE}content-length: 100\r\n\r\n{"a":`);
    client.destroy();
    await rawExchange(sidecar.port, post(CHAT, '{"b":1}'));
    await sidecar.close();
    const left = 'kvpeer_sidecar_request_duration_seconds_count{kind="local",outcome="left"}';
    expect(await counted(sidecar, left)).toBe(1);
    expect(decoder.legs.map(({ body }) => body.toString())).toEqual(['{"b":1}']);
  });

  it('resetting its connection while the model server computes: the leg is cancelled', async () => {
    decoder.script = () => undefined;
    const client = await opened(sidecar.port);
    client.write(post(CHAT, '{}'));
    await decoder.until(() => decoder.legs.length === 1);
    client.resetAndDestroy();
    await decoder.until(() => decoder.abortedCount === 1);
  });
});

describe('whatever comes', () => {
  const REQUESTS = [
    post(CHAT, '{"a":[1,"x"],"stream":true}', `${FROM_SOURCE}content-type: application/json\r\n`),
    post('/inference/v1/generate', '{"sampling_params":{"extra_args":{}},"token_ids":[1,2]}'),
    post('/v1/responses', '{"store":true}', 'x-prefiller-host-port: 127.0.0.1:1\r\n'),
    'GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n',
    `POST ${CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{"a\r\n5\r\n":NaN\r\n1\r\n}\r\n0\r\n\r\n`,
    `POST ${CHAT} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}`,
  ];
  const damage = fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 }), fc.nat(2)), { maxLength: 3 });
  const end = fc.constantFrom('end', 'destroy', 'reset', 'wait');

  /** Replaces, inserts or drops single bytes. */
  function damaged(text: string, changes: readonly (readonly [number, number, number])[]): Buffer {
    let bytes = Buffer.from(text, 'latin1');
    for (const [at, byte, how] of changes) {
      const i = at % bytes.length;
      const middle = how === 2 ? [] : [byte];
      bytes = Buffer.concat([
        bytes.subarray(0, i),
        Buffer.from(middle),
        bytes.subarray(how === 1 ? i : i + 1),
      ]);
    }
    return bytes;
  }

  it('resetting its connection as it wrongly asks to upgrade: the refusal reaches nobody, and ends nothing', async () => {
    const wish =
      'GET /ws HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n';
    for (let i = 0; i < 200; i++) {
      const client = await opened(sidecar.port);
      client.write(wish);
      client.resetAndDestroy();
    }
    expect(await rawExchange(sidecar.port, post(CHAT, '{}'))).toMatch(/^HTTP\/1\.1 200 /);
  });

  it('and however it ends, the sidecar serves the next client, and no request stays behind', async () => {
    const property = fc.asyncProperty(
      ...[fc.constantFrom(...REQUESTS), damage, fc.nat(), end],
      async (text, changes, cut, how) => {
        const bytes = damaged(text, changes);
        const client = await opened(sidecar.port);
        client.write(cut % 3 === 0 ? bytes.subarray(0, cut % bytes.length) : bytes);
        if (how === 'end') client.end();
        if (how === 'destroy') client.destroy();
        if (how === 'reset') client.resetAndDestroy();
        const answer = await rawExchange(sidecar.port, post(CHAT, '{}'));
        client.destroy();
        expect(answer).toMatch(/^HTTP\/1\.1 200 /);
      },
    );
    await fc.assert(property, { numRuns: 300 });
    await sidecar.close();
    expect(await counted(sidecar, 'kvpeer_sidecar_running_requests')).toBe(0);
  });
});
