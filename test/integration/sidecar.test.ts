// The sidecar over HTTP, between model servers that are real HTTP servers; bodies are compared byte for byte.

import { once } from 'node:events';
import { connect } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { request } from 'undici';
import { createLogger } from '../../src/main/observe/log.js';
import type { Decision } from '../../src/main/sidecar/hooks.js';
import type { SidecarOptions } from '../../src/main/sidecar/options.js';
import { createSidecar, type Sidecar } from '../../src/main/sidecar/sidecar.js';
import { freePort } from '../helpers/free-port.js';
import { ModelServer, rawExchange, type RecordedLeg } from './support/model-server.js';

const CHAT = '/v1/chat/completions';
const ID = '[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}';

let decoder: ModelServer;
let prefiller: ModelServer;
let sidecar: Sidecar;
let decisions: Decision[];

beforeEach(async () => {
  decoder = await ModelServer.start();
  prefiller = await ModelServer.start();
  decisions = [];
  await start();
});

afterEach(async () => {
  await sidecar.close({ drainMs: 0 });
  await decoder.close();
  await prefiller.close();
});

async function start(options: SidecarOptions = {}): Promise<void> {
  sidecar = await createSidecar(
    { port: 0, host: '127.0.0.1', modelServerPort: decoder.port, secureServing: false, ...options },
    {
      logger: createLogger('silent'),
      hooks: { onDecision: (decision) => decisions.push(decision) },
    },
  );
}

async function restart(options: SidecarOptions): Promise<void> {
  await sidecar.close({ drainMs: 0 });
  await start(options);
}

interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly text: string;
}

async function post(
  path: string,
  body: string | Buffer,
  headers: Record<string, string> = {},
): Promise<Answer> {
  const answer = await request(`http://127.0.0.1:${sidecar.port}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body,
  });
  return { status: answer.statusCode, headers: answer.headers, text: await answer.body.text() };
}

function viaPrefiller(): Record<string, string> {
  return { 'x-prefiller-host-port': `127.0.0.1:${prefiller.port}` };
}

const FROM_SOURCE = { 'x-kv-cache-source-host-port': '10.0.0.9:8000' };

function bodyOf(leg: RecordedLeg | undefined): string {
  return leg?.body.toString('utf8') ?? '';
}

function only(server: ModelServer): RecordedLeg {
  expect(server.legs).toHaveLength(1);
  return server.legs[0];
}

/** Ids are random: the pattern keeps every other byte. */
function pattern(text: string): RegExp {
  const escaped = text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
  return new RegExp(`^${escaped.replaceAll('<id>', ID)}$`);
}

describe('prefill and decode', () => {
  it('sends the prefill to its end, then the decode, and changes no byte but the fields of the contract', async () => {
    const inner =
      '"tools":[{"z":1,"a":{"10":1,"2":[1.0,1e3,12345678901234567890]}}],"t":"\\ud800 <&> \\u00e9"';
    await post(
      CHAT,
      `{ ${inner}, "stream": true, "min_tokens":5,"stream_options":{"x":1},"max_tokens":77 }`,
      {
        ...viaPrefiller(),
      },
    );
    expect(bodyOf(only(prefiller))).toMatch(
      pattern(
        `{ ${inner}, "stream": false,"max_tokens":1 ,"max_completion_tokens":1,"kv_transfer_params":{"remote_decoder":{"kv_request_id":"<id>"}}}`,
      ),
    );
    expect(bodyOf(only(decoder))).toMatch(
      pattern(
        `{ ${inner}, "stream": true, "min_tokens":5,"stream_options":{"x":1},"max_tokens":77 ,"kv_transfer_params":{"remote_prefiller":{"kv_request_id":"<id>","remote_host":"127.0.0.1","remote_port":7777}}}`,
      ),
    );
    const idOf = (text: string): string | undefined => new RegExp(ID).exec(text)?.[0];
    expect(idOf(bodyOf(prefiller.legs[0]))).toBe(idOf(bodyOf(decoder.legs[0])));
  });

  it('gives the source an id of its own, and leaves it out when it is the prefiller', async () => {
    await post(CHAT, '{}', { ...viaPrefiller(), ...FROM_SOURCE });
    expect(bodyOf(prefiller.legs[0])).toMatch(
      pattern(
        '{"max_tokens":1,"max_completion_tokens":1,"stream":false,"kv_transfer_params":{"remote_decoder":{"kv_request_id":"<id>"},"remote_kv_source":{"kv_request_id":"<id>","remote_host":"10.0.0.9","remote_port":7777}}}',
      ),
    );
    const ids = bodyOf(prefiller.legs[0]).match(new RegExp(ID, 'g'));
    expect(new Set(ids).size).toBe(2);
    const same = `127.0.0.1:${prefiller.port}`;
    await post(CHAT, '{}', { ...viaPrefiller(), 'x-kv-cache-source-host-port': same });
    expect(bodyOf(prefiller.legs[1])).not.toContain('remote_kv_source');
  });

  it.each([
    ['/v1/completions', '{"max_tokens":1,"stream":false,'],
    ['/v1/messages', '{"max_tokens":1,"stream":false,'],
    ['/v1/responses', '{"store":false,"max_output_tokens":1,"stream":false,'],
    ['/inference/v1/generate', '{"stream":false,'],
  ])('holds %s to one token by its own field', async (path, start) => {
    await post(path, '{}', viaPrefiller());
    expect(bodyOf(prefiller.legs[0]).startsWith(start)).toBe(true);
    if (path === '/inference/v1/generate') {
      expect(bodyOf(prefiller.legs[0])).toMatch(
        /"sampling_params":\{"max_tokens":1,"extra_args":\{"kv_transfer_params":/,
      );
    }
  });

  it('removes the stateful fields of Responses from both legs in profile B', async () => {
    const body = '{"a":1,"previous_response_id":"r","conversation":"c","background":true,"store":true,"b":2}';
    await post('/v1/responses', body, viaPrefiller());
    for (const leg of [only(prefiller), only(decoder)]) {
      expect(bodyOf(leg)).toMatch(/^\{"a":1,"store":false,"b":2,/);
    }
  });

  it('caps max_completion_tokens of chat also where the client sent none, also behind a second sidecar', async () => {
    await post(CHAT, '{"a":1}', { 'x-prefiller-host-port': `127.0.0.1:${sidecar.port}` });
    const [prefill, decode] = decoder.legs.map(bodyOf);
    expect(prefill).toMatch(
      pattern(
        '{"a":1,"max_tokens":1,"max_completion_tokens":1,"stream":false,"kv_transfer_params":{"remote_decoder":{"kv_request_id":"<id>"}}}',
      ),
    );
    expect(decode).toContain('remote_prefiller');
    expect(decoder.legs[0].headers['x-kvpeer-leg-signature']).toBeUndefined();
  });

  it('hands a failed prefill to the client and sends no decode', async () => {
    prefiller.script = (_leg, response) => {
      response.writeHead(418, { 'x-reason': 'tea', 'content-type': 'text/plain' }).end('short');
    };
    const answer = await post(CHAT, '{}', viaPrefiller());
    expect(answer).toMatchObject({ status: 418, text: 'short' });
    expect(answer.headers['x-reason']).toBe('tea');
    expect(decoder.legs).toHaveLength(0);
  });

  it('cancels the prefill with the client, and sends no decode', async () => {
    prefiller.script = () => undefined;
    const leaving = new AbortController();
    const answer = request(`http://127.0.0.1:${sidecar.port}${CHAT}`, {
      method: 'POST',
      headers: viaPrefiller(),
      body: '{}',
      signal: leaving.signal,
    });
    await prefiller.until(() => prefiller.legs.length === 1);
    leaving.abort();
    await expect(answer).rejects.toThrow();
    await prefiller.until(() => prefiller.abortedCount === 1);
    expect(decoder.legs).toHaveLength(0);
    expect(decisions[0].signal.aborted).toBe(true);
  });

  it('sends both legs at once in profile A, and a failed prefill is not seen', async () => {
    await restart({ profile: 'A' });
    prefiller.script = (_leg, response) => {
      response.writeHead(500).end();
    };
    expect(await post(CHAT, '{"min_tokens":3}', viaPrefiller())).toMatchObject({ status: 200 });
    await prefiller.until(() => prefiller.legs.length === 1);
    expect(bodyOf(only(prefiller))).toMatch(/^\{"min_tokens":3,"max_tokens":1,"stream":false,"kv_/);
  });
});

describe('what a header may say', () => {
  it.each([
    'h:1/base',
    'h:1?q=1',
    'user:secret@h:1',
    'https://h:1',
    'HTTP://h:1',
    'h',
    'h:99999',
    'h:0',
    'h:text',
    '::1',
    'a b:1',
    '%zz:1',
  ])('answers 400 that names the header for the prefiller %s', async (value) => {
    const answer = await post(CHAT, '{}', { 'x-prefiller-host-port': value });
    expect(answer.status).toBe(400);
    expect(JSON.parse(answer.text)).toMatchObject({
      object: 'error',
      type: 'BadRequestError',
      param: '',
      code: 400,
    });
    expect(answer.text).toContain('x-prefiller-host-port');
    expect(decoder.legs).toHaveLength(0);
  });

  it.each(['h:', 'h:port', 'h:0', 'h:99999', 'h:80/path', 'a b:1', 'user@h:1', 'a:1,b:2', '::1:80'])(
    'ignores and counts the source %s',
    async (value) => {
      expect(await post(CHAT, '{"a":1}', { 'x-kv-cache-source-host-port': value })).toMatchObject({
        status: 200,
      });
      expect(bodyOf(only(decoder))).toBe('{"a":1}');
      const text = await sidecar.metrics.registry.metrics();
      expect(text).toContain('kvpeer_sidecar_ignored_total{reason="source-malformed"} 1');
    },
  );

  it('knows its own address in every spelling of IPv6', async () => {
    await restart({ podIp: 'fd00::1' });
    await post(CHAT, '{"a":1}', { 'x-kv-cache-source-host-port': `[fd00:0::1]:${sidecar.port}` });
    expect(bodyOf(only(decoder))).toBe('{"a":1}');
  });

  it('denies a prefiller that is not allowed with 403, at its very port, and drops such a source', async () => {
    await restart({ ssrfAllow: [`127.0.0.1:${prefiller.port}`] });
    const denied = await post(CHAT, '{}', { 'x-prefiller-host-port': `127.0.0.1:${prefiller.port + 1}` });
    expect(denied).toMatchObject({
      status: 403,
      text: 'Forbidden: prefill target not allowed by SSRF protection',
    });
    await post(CHAT, '{"a":1}', FROM_SOURCE);
    expect(bodyOf(only(decoder))).toBe('{"a":1}');
    expect(await post(CHAT, '{}', viaPrefiller())).toMatchObject({ status: 200 });
  });
});

describe('what clients write into kv_transfer_params', () => {
  const theirs =
    '"kv_transfer_params":{"remote_kv_source":{"kv_request_id":"x","remote_host":"h","remote_port":1}}';

  it('is taken out on every route, and nothing else changes', async () => {
    for (const path of [CHAT, '/v1/embeddings', `${CHAT}/render`]) {
      await post(path, `{"a":1, ${theirs} , "b":"\\ud800"}`);
    }
    const blank = ' '.repeat(theirs.length + 2);
    for (const leg of decoder.legs) expect(bodyOf(leg)).toBe(`{"a":1${blank} , "b":"\\ud800"}`);
    expect(decoder.legs).toHaveLength(3);
  });

  it('is taken out where the generate API would read it', async () => {
    await post(
      '/inference/v1/generate',
      `{"sampling_params":{"extra_args":{${theirs},"k":1}},"token_ids":[1]}`,
    );
    const text = bodyOf(only(decoder));
    expect(JSON.parse(text)).toEqual({ sampling_params: { extra_args: { k: 1 } }, token_ids: [1] });
  });

  it('is checked and made canonical for a trusted client', async () => {
    await restart({ trustClientParams: true });
    await post(CHAT, '{"a":1,"kv_transfer_params":{"remote_kv_source":[{"remote_url":"p2p://[::1]:7"}]}}');
    expect(bodyOf(only(decoder))).toMatch(
      pattern(
        '{"a":1,"kv_transfer_params":{"remote_kv_source":{"kv_request_id":"<id>","remote_host":"::1","remote_port":7}}}',
      ),
    );
    const illegal = await post(CHAT, '{"kv_transfer_params":[1]}');
    expect(illegal.status).toBe(400);
    expect(decoder.legs).toHaveLength(1);
    const huge = `{"kv_transfer_params":{"x":"${'y'.repeat(1 << 20)}"}}`;
    expect((await post(CHAT, huge)).text).toContain('kv_transfer_params have more than 1048576 bytes');
  });
});

describe('params of other connectors that a trusted client wrote', () => {
  it('keep every byte and every digit beside the roles', async () => {
    await restart({ trustClientParams: true });
    const others =
      '"max_offload_tokens" : 9007199254740993, "remote_block_ids":[12345678901234567890, 1.0,1e3]';
    const source = '"remote_kv_source":{"remote_port":7,"remote_host":"h","kv_request_id":"i"}';
    const canonical = '"remote_kv_source":{"kv_request_id":"i","remote_host":"h","remote_port":7}';
    await post(CHAT, `{"kv_transfer_params":{ ${others},${source},"__proto__":{"a":1} }}`);
    expect(bodyOf(decoder.legs[0])).toBe(
      `{"kv_transfer_params":{ ${others},${canonical},"__proto__":{"a":1} }}`,
    );
    const inside = (params: string): string =>
      `{"token_ids":[1],"sampling_params":{"extra_args":{"kv_transfer_params":{${params}}}}}`;
    await post('/inference/v1/generate', inside(`${source},${others}`));
    expect(bodyOf(decoder.legs[1])).toBe(inside(`${canonical},${others}`));
  });
});

describe('the decision hook', () => {
  it('is told the params that the engine gets, and the prompt of the generate API', async () => {
    await post('/inference/v1/generate', '{"token_ids":[1,2,4294967295],"sampling_params":{}}', FROM_SOURCE);
    expect(decisions).toHaveLength(1);
    const [decision] = decisions;
    expect(decision).toMatchObject({
      api: 'generate',
      kind: 'pull',
      path: '/inference/v1/generate',
      rank: 0,
    });
    expect([...(decision.tokenIds() ?? [])]).toEqual([1, 2, 4_294_967_295]);
    const sent = JSON.parse(bodyOf(only(decoder))) as Record<string, unknown>;
    expect(sent.kv_transfer_params).toEqual(decision.params);
    expect(sent.sampling_params).toEqual({ extra_args: { kv_transfer_params: decision.params } });
  });
});

describe('bodies', () => {
  it.each([
    'null',
    '[]',
    '"x"',
    '1',
    '',
    '{',
    '{}x',
    '{"a":NaN}',
    '{"a":1e999}',
    '{"a":01}',
    '{"a":"\n"}',
    '\ufeff{}',
  ])('answers 400 to %j where it must be rewritten', async (body) => {
    for (const headers of [FROM_SOURCE, viaPrefiller()]) {
      expect((await post(CHAT, body, headers)).status).toBe(400);
    }
    expect([...decoder.legs, ...prefiller.legs]).toHaveLength(0);
  });

  it('edits every one of repeated keys, 100 levels deep, and keeps long numbers', async () => {
    const deep = `${'['.repeat(100)}${']'.repeat(100)}`;
    const long = '1'.repeat(300);
    await post(CHAT, `{"stream":1,"d":${deep},"n":${long},"stream":2}`, viaPrefiller());
    expect(
      bodyOf(only(prefiller)).startsWith(`{"stream":false,"d":${deep},"n":${long},"stream":false,`),
    ).toBe(true);
    expect((await post(CHAT, `{"n":${'1'.repeat(10_000)}}`, FROM_SOURCE)).status).toBe(400);
    expect((await post(CHAT, '['.repeat(20_000), FROM_SOURCE)).status).toBe(400);
  });

  function largeBody(): Buffer {
    const body = Buffer.alloc(64 << 20, 0x61);
    body.write('{"p":"');
    body.write('"}', body.length - 2);
    return body;
  }

  it('passes a 64 MiB body to the model server, cut nowhere', async () => {
    const body = largeBody();
    await post(CHAT, body);
    expect(only(decoder).body.equals(body)).toBe(true);
    expect(only(decoder).headers['content-length']).toBe(String(body.length));
  });

  it('rewrites a 64 MiB body for both legs, and nothing of it but the end', async () => {
    const body = largeBody();
    await post(CHAT, body, viaPrefiller());
    for (const leg of [only(prefiller), only(decoder)]) {
      expect(leg.headers['content-length']).toBe(String(leg.body.length));
      expect(leg.body.subarray(0, body.length - 1).equals(body.subarray(0, -1))).toBe(true);
      expect(leg.body.subarray(body.length - 1).toString()).toMatch(/^,.*"kv_transfer_params":\{.*\}\}$/);
    }
  });
});

describe('answers', () => {
  it('streams events at once and unchanged', async () => {
    decoder.script = (_leg, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write('data: 1\n\n');
    };
    const answer = await request(`http://127.0.0.1:${sidecar.port}${CHAT}`, { method: 'POST', body: '{}' });
    const [first] = (await once(answer.body, 'data')) as [Buffer];
    expect(first.toString()).toBe('data: 1\n\n');
    answer.body.on('error', () => undefined).destroy();
    await decoder.until(() => decoder.abortedCount === 1);
  });

  it('is a 502 when the model server cuts an answer of which nothing was sent yet', async () => {
    decoder.script = (_leg, response) => {
      response.writeHead(200, { 'content-length': '10' });
      response.write('abc', () => response.destroy());
    };
    const answer = await post('/v1/x', '{}');
    expect(answer.status).toBe(502);
    expect(JSON.parse(answer.text)).toMatchObject({ object: 'error', type: 'BadGateway', code: 502 });
  });

  it('cuts the client too when a stream is cut', async () => {
    decoder.script = (_leg, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write('data: 1\n\n', () => response.destroy());
    };
    await expect(post(CHAT, '{}')).rejects.toThrow();
  });

  it('is a 503 while nothing listens at the model server', async () => {
    await restart({ modelServerPort: await freePort() });
    const answer = await post(CHAT, '{}', FROM_SOURCE);
    expect(answer.status).toBe(503);
    expect(JSON.parse(answer.text)).toMatchObject({ type: 'ServiceUnavailable', code: 503 });
  });
});

describe('the connection', () => {
  it('adds no accept-encoding, passes trace context to both legs, and keeps repeated headers', async () => {
    await rawExchange(
      sidecar.port,
      `POST ${CHAT} HTTP/1.1\r\nhost: a\r\ntraceparent: 00-a-b-01\r\nx-c: 1\r\nx-c: 2\r\n` +
        `x-prefiller-host-port: 127.0.0.1:${prefiller.port}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}`,
    );
    for (const leg of [only(prefiller), only(decoder)]) {
      expect(leg.headers['accept-encoding']).toBeUndefined();
      expect(leg.headers.traceparent).toBe('00-a-b-01');
      expect(leg.headers['x-c']).toBe('1, 2');
      expect(leg.headers.host).toBe('a');
      expect(leg.headers['x-prefiller-host-port']).toBeUndefined();
      expect(leg.headers['x-forwarded-for']).toBe('127.0.0.1');
    }
  });

  it('answers expect: 100-continue once, and sends it to no leg', async () => {
    const text = await rawExchange(
      sidecar.port,
      `POST ${CHAT} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\nx-prefiller-host-port: 127.0.0.1:${prefiller.port}\r\n` +
        'content-length: 2\r\nconnection: close\r\n\r\n{}',
    );
    expect(text.match(/100 Continue/g)).toHaveLength(1);
    expect(only(decoder).headers.expect).toBeUndefined();
    expect(only(prefiller).headers.expect).toBeUndefined();
  });

  it.each([
    ['//v1//chat/completions', CHAT],
    ['/v1/x/../chat/completions?a=1', `${CHAT}?a=1`],
    ['/v1/chat/completions/', CHAT],
  ])('serves %s as the canonical path, without a redirect', async (path, canonical) => {
    await rawExchange(
      sidecar.port,
      `POST ${path} HTTP/1.1\r\nhost: a\r\nx-kv-cache-source-host-port: 10.0.0.9:8000\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}`,
    );
    expect(only(decoder).path).toBe(canonical);
    expect(bodyOf(only(decoder))).toContain('remote_kv_source');
  });

  it.each([
    `GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n\tb\0c\r\n\r\n`,
    `GET / HTTP/1.1\r\n\r\n`,
    `GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n`,
    `POST ${CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}`,
  ])('answers 400 to the head %j', async (head) => {
    const text = await rawExchange(sidecar.port, head.replace('\r\n\r\n', '\r\nconnection: close\r\n\r\n'));
    expect(text).toMatch(/^HTTP\/1\.1 400 /);
    expect(decoder.legs).toHaveLength(0);
  });

  it('reads past a wish for h2c', async () => {
    const text = await rawExchange(
      sidecar.port,
      `POST ${CHAT} HTTP/1.1\r\nhost: a\r\nconnection: upgrade, close, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n` +
        'content-length: 7\r\n\r\n{"a":1}',
    );
    expect(text).toMatch(/^HTTP\/1\.1 200 /);
    expect(bodyOf(only(decoder))).toBe('{"a":1}');
  });

  it('drains running streams and takes no new connections', async () => {
    let finish: () => void = () => undefined;
    decoder.script = (_leg, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write('data: 1\n\n');
      finish = () => response.end('data: 2\n\n');
    };
    const { port } = sidecar;
    const answer = await request(`http://127.0.0.1:${port}${CHAT}`, { method: 'POST', body: '{}' });
    const closed = sidecar.close();
    finish();
    expect(await answer.body.text()).toBe('data: 1\n\ndata: 2\n\n');
    await closed;
    const refused = connect(port, '127.0.0.1');
    const [error] = (await once(refused, 'error')) as [NodeJS.ErrnoException];
    expect(error.code).toBe('ECONNREFUSED');
  });
});
