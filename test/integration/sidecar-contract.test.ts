// The rows of the llm-d contract's section 6 (upstream's tests, one line each) that concern the sidecar, by number:
//
//   1  both legs at once, sections and limits (A)          here, "profile A"
//   2  no max_completion_tokens invented (A)               unit/sidecar-rules, "the prefill leg"
//   3  which connectors pull                               unit/sidecar-options: others end the start
//   4  P2P port of a serving port, ten rows                unit/sidecar-rules, "the P2P port", "the prefiller"
//   5  source params with the rank's port                  sidecar-ranks, "a source"
//   6  the base survives a listener per rank               sidecar-ranks, "a source"
//   7  scheme-prefixed endpoints, port                     sidecar-ranks, "a prefiller"
//   8  another rank of the pod is pulled from              sidecar-ranks, "a source"
//   9  source that is the prefiller                        sidecar, "gives the source an id of its own"
//  10  the same with a scheme only                         here, "the source of a prefill leg"
//  11  scheme-qualified other rank, bare host              sidecar-ranks, "a prefiller"
//  12  endpoint spellings                                  unit/sidecar-rules, "one endpoint"
//  13  decoder only + source                               here, "the source of a decoder"
//  14  prefill and decode + source                         sidecar, "gives the source an id of its own"
//  15  source that is the prefiller                        sidecar, as 9
//  16  no header, nothing added                            here, "the source of a decoder"
//  17  malformed source                                    sidecar, "ignores and counts the source"
//  18  client's params replaced                            here, "the source of a decoder"
//  19  empty host                                          unit/sidecar-rules, "the source"
//  20  own rank                                            sidecar-ranks, "a source"
//  21  other rank of the pod                               sidecar-ranks, "a source"
//  22  ids differ between requests                         here, "the source of a decoder"
//  23-26  the connector nixlv2                             not here: unit/sidecar-options, refused at start
//  27-31  P2P port, ranks, overflow, pull flag, YAML       unit/sidecar-options
//  32  offloading is a connector                           unit/sidecar-options
//  33  prefiller header, ten rows                          unit/sidecar-rules, "the prefiller"
//  34  encoders                                            here, "encoders" (there is no encoder leg)
//  35  other paths pass, with and without TLS              here, "everything else", "TLS to the model servers"
//  36  trace context                                       sidecar, "adds no accept-encoding, passes trace context"
//  37  data-parallel header                                sidecar-ranks, "x-data-parallel-host-port"
//  38  allow-list                                          allow-list, and sidecar, "denies a prefiller"
//  39  every spelling of a path (B)                        here, "the paths"
//  40  stateful fields of Responses (B)                    sidecar, and here, "Responses"
//  41-49  llm-d's endpoint picker                          another program
//
// Without an upstream test, by the contract: a failed prefill (A)      here, "profile A"
//   a client that leaves mid-prefill                                   sidecar, sidecar-connections, here "profile A"
//   null body, big integers, key order, caps, min_tokens               sidecar, "bodies", "prefill and decode"; unit/sidecar-rules
//   IPv6 end to end                                                    here, "IPv6"
//   client params without a header                                     sidecar, "what clients write"
//   both data-parallel and source header                               sidecar-ranks
//   source header in the encoder path                                  here, "encoders"
//   SSE flush timing                                                   sidecar-slow

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { request } from 'undici';
import { packageRoot } from '../../src/shared/nixl-dir.js';
import type { SidecarOptions } from '../../src/main/sidecar/options.js';
import type { Sidecar } from '../../src/main/sidecar/sidecar.js';
import { freePort } from '../helpers/free-port.js';
import { makeCertificate } from './support/certificate.js';
import { ModelServer } from './support/model-server.js';
import { CHAT, counted, opened, requestText, startSidecar } from './support/sidecar.js';

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

async function restart(options: SidecarOptions): Promise<void> {
  await sidecar.close({ drainMs: 0 });
  sidecar = await startSidecar(decoder.port, options);
}

async function ask(
  path: string,
  headers: Record<string, string> = {},
  body: string | null = '{"a":1}',
  method: 'POST' | 'GET' | 'PUT' | 'HEAD' = 'POST',
): Promise<{ readonly status: number; readonly text: string }> {
  const answer = await request(`http://127.0.0.1:${sidecar.port}${path}`, { method, headers, body });
  return { status: answer.statusCode, text: await answer.body.text() };
}

/** Bodies, with ids replaced. */
function bodies(server: ModelServer): string[] {
  return server.legs.map(({ body }) => body.toString().replaceAll(/[0-9a-f-]{36}/g, '<id>'));
}

function via(target: ModelServer | number, host = '127.0.0.1'): Record<string, string> {
  return { 'x-prefiller-host-port': `${host}:${typeof target === 'number' ? target : target.port}` };
}
const from = (value: string): Record<string, string> => ({ 'x-kv-cache-source-host-port': value });
const SOURCE = '{"kv_request_id":"<id>","remote_host":"10.0.0.9","remote_port":7777}';

describe('the source of a decoder', () => {
  it('is all that the decoder gets as params, whatever the client wrote there', async () => {
    await ask(CHAT, from('10.0.0.9:8000'));
    await ask(CHAT, from('10.0.0.9:8000'), '{"kv_transfer_params":{"do_remote_decode":true,"x":1},"a":1}');
    await ask(CHAT, from('10.0.0.9:8000'), '{"kv_transfer_params":1,"kv_transfer_params":2}');
    expect(bodies(decoder)).toEqual([
      `{"a":1,"kv_transfer_params":{"remote_kv_source":${SOURCE}}}`,
      `{"kv_transfer_params":{"remote_kv_source":${SOURCE}},"a":1}`,
      `{"kv_transfer_params":{"remote_kv_source":${SOURCE}},"kv_transfer_params":{"remote_kv_source":${SOURCE}}}`,
    ]);
    const ids = decoder.legs.map(({ body }) => /[0-9a-f-]{36}/.exec(body.toString())?.[0]);
    expect(new Set(ids).size).toBe(3);
  });

  it('is none without the header: then no byte changes', async () => {
    const body = '{ "a" : 1.0e0,\n"b":"\\ud800\\/", "a":2 }';
    await ask(CHAT, {}, body);
    expect(bodies(decoder)).toEqual([body]);
  });

  it('is put into a body whatever bytes its strings have, and no other byte changes', async () => {
    const raw = Buffer.from('{"a":"\xff\xfe\xc3","n":0.' + '1'.repeat(10_000) + '}', 'latin1');
    const text = requestText(
      CHAT,
      raw,
      `connection: close\r\nx-kv-cache-source-host-port: 10.0.0.9:8000\r\n`,
    );
    const client = await opened(sidecar.port);
    client.write(Buffer.from(text, 'latin1'));
    await decoder.until(() => decoder.legs.length === 1);
    expect(decoder.legs[0].body.subarray(0, raw.length - 1).equals(raw.subarray(0, -1))).toBe(true);
    client.destroy();
  });
});

describe('the source of a prefill leg', () => {
  it.each(['', 'http://'])('is left out when it is the prefiller (written %j)', async (scheme) => {
    await ask(CHAT, {
      'x-prefiller-host-port': `${scheme}127.0.0.1:${prefiller.port}`,
      ...from(`127.0.0.1:${prefiller.port}`),
    });
    expect(bodies(prefiller)[0]).toContain('remote_decoder');
    expect(bodies(prefiller)[0]).not.toContain('remote_kv_source');
  });
});

describe('profile A', () => {
  beforeEach(() => restart({ profile: 'A' }));

  it('sends both legs at once, and answers while the prefill is still running', async () => {
    let finish: () => void = () => undefined;
    prefiller.script = (_leg, response) => {
      finish = () => response.end('{}');
    };
    expect(await ask(CHAT, via(prefiller))).toMatchObject({ status: 200 });
    await prefiller.until(() => prefiller.legs.length === 1);
    const decode = `{"a":1,"kv_transfer_params":{"remote_prefiller":{"kv_request_id":"<id>","remote_host":"127.0.0.1","remote_port":7777}}}`;
    expect(bodies(prefiller)).toEqual([
      '{"a":1,"max_tokens":1,"stream":false,"kv_transfer_params":{"remote_decoder":{"kv_request_id":"<id>"}}}',
    ]);
    expect(bodies(decoder)).toEqual([decode]);
    finish();
  });

  it('hides that no prefiller listens', async () => {
    expect(await ask(CHAT, via(await freePort()))).toMatchObject({ status: 200, text: '{"ok":true}' });
  });

  it('lets the prefill go on when the client leaves, or no model server listens', async () => {
    let finish: () => void = () => undefined;
    prefiller.script = (_leg, response) => {
      finish = () => response.end('{}');
    };
    decoder.script = () => undefined;
    const client = await opened(sidecar.port);
    client.write(requestText(CHAT, '{}', `x-prefiller-host-port: 127.0.0.1:${prefiller.port}\r\n`));
    await prefiller.until(() => prefiller.legs.length === 1);
    await decoder.until(() => decoder.legs.length === 1);
    client.destroy();
    await decoder.until(() => decoder.abortedCount === 1);
    expect(prefiller.abortedCount).toBe(0);
    finish();
    await sidecar.close();
    sidecar = await startSidecar(await freePort(), { profile: 'A' });
    expect(await ask(CHAT, via(prefiller))).toMatchObject({ status: 503 });
    await prefiller.until(() => prefiller.legs.length === 2);
    finish();
    await sidecar.close();
    expect(prefiller.abortedCount).toBe(0);
  });

  it('passes SGLang, and a slash at the end of a path, to the model server as they are', async () => {
    for (const path of ['/generate', `${CHAT}/`])
      await ask(path, { ...via(prefiller), ...from('10.0.0.9:8000') });
    expect(bodies(decoder)).toEqual(['{"a":1}', '{"a":1}']);
    expect(decoder.legs.map(({ path }) => path)).toEqual(['/generate', `${CHAT}/`]);
    expect(prefiller.legs).toHaveLength(0);
  });
});

describe('profile B', () => {
  it('answers 502 when no prefiller listens, and sends no decode', async () => {
    const { status, text } = await ask(CHAT, via(await freePort()));
    expect(status).toBe(502);
    expect(JSON.parse(text)).toMatchObject({ type: 'BadGateway' });
    expect(decoder.legs).toHaveLength(0);
  });

  it('answers 502 when the prefiller breaks off inside its answer', async () => {
    prefiller.script = (_leg, response) => {
      response.writeHead(200, { 'content-length': '10' });
      response.write('abc', () => response.destroy());
    };
    expect(await ask(CHAT, via(prefiller))).toMatchObject({ status: 502 });
    expect(decoder.legs).toHaveLength(0);
  });
});

describe('the paths', () => {
  it.each([
    ['/v1/chat/completions'],
    ['/v1/completions'],
    ['/v1/responses'],
    ['/v1/messages'],
    ['/inference/v1/generate'],
    ['/generate'],
  ])('of %s take a source in every spelling of profile B', async (path) => {
    const [head, ...rest] = path.slice(1).split('/');
    const spellings = [path, `${path}/`, `/${path}`, `${path}?q=1`, `/./${[head, ...rest].join('//')}`];
    for (const spelling of spellings) await ask(spelling, from('10.0.0.9:8000'));
    expect(decoder.legs.map((leg) => leg.path)).toEqual([path, path, path, `${path}?q=1`, path]);
    for (const body of bodies(decoder)) expect(body).toContain('"remote_kv_source"');
  });

  it('keep a percent-encoded letter, and are no route with another one', async () => {
    await ask('/v1/chat/c%6Fmpletions', from('10.0.0.9:8000'));
    await ask('/v1/chat%2Fcompletions', from('10.0.0.9:8000'));
    await ask('/v1/Chat/completions', from('10.0.0.9:8000'));
    expect(decoder.legs.map(({ path }) => path)).toEqual([
      '/v1/chat/c%6Fmpletions',
      '/v1/chat%2Fcompletions',
      '/v1/Chat/completions',
    ]);
    expect(bodies(decoder).map((body) => body.includes('remote_kv_source'))).toEqual([true, false, false]);
  });
});

describe('everything else', () => {
  it('goes straight to the model server, without the routing headers', async () => {
    const routing = { ...via(prefiller), ...from('10.0.0.9:8000'), 'x-encoder-hosts-ports': 'e:1' };
    for (const path of ['/v1/models', '/metrics', '/healthz', '/health/', CHAT]) {
      await ask(path, routing, null, 'GET');
    }
    for (const path of ['/v1/embeddings', `${CHAT}/render`, '/v1/messages/count_tokens', '/health']) {
      await ask(path, routing);
    }
    await ask(CHAT, routing, '{"a":1}', 'PUT');
    expect(decoder.legs).toHaveLength(10);
    expect(prefiller.legs).toHaveLength(0);
    for (const { headers, body } of decoder.legs) {
      expect(Object.keys(headers).filter((name) => name.startsWith('x-'))).toEqual(['x-forwarded-for']);
      expect(['', '{"a":1}']).toContain(body.toString());
    }
  });

  it('but health, which the sidecar answers itself also while no model server is there', async () => {
    await sidecar.close();
    sidecar = await startSidecar(await freePort());
    expect(await ask('/health', {}, null, 'GET')).toEqual({ status: 200, text: '' });
    expect(await ask('/health', {}, null, 'HEAD')).toEqual({ status: 200, text: '' });
    expect(await ask('/v1/models', {}, null, 'GET')).toMatchObject({ status: 503 });
  });
});

describe('encoders', () => {
  it('are ignored and counted; the source goes its usual way', async () => {
    await ask(CHAT, { 'x-encoder-hosts-ports': 'e:1,f:2', ...from('10.0.0.9:8000') });
    expect(bodies(decoder)).toEqual([`{"a":1,"kv_transfer_params":{"remote_kv_source":${SOURCE}}}`]);
    expect(await counted(sidecar, 'kvpeer_sidecar_ignored_total{reason="encoders"}')).toBe(1);
    await ask(CHAT, { 'x-encoder-hosts-ports': 'e:1', ...via(prefiller), ...from('10.0.0.9:8000') });
    expect(bodies(prefiller)[0]).toContain(`"remote_kv_source":${SOURCE}`);
    expect(
      [...decoder.legs, ...prefiller.legs].every((leg) => !('x-encoder-hosts-ports' in leg.headers)),
    ).toBe(true);
  });
});

describe('Responses', () => {
  it('lose their stateful fields also without any header, and must be JSON (profile B)', async () => {
    const body = '{"store":true,"a":1,"previous_response_id":"r","conversation":"c","background":true}';
    await ask('/v1/responses', {}, body);
    await ask('/v1/responses/', {}, '{"a":1}');
    expect(bodies(decoder)).toEqual(['{"store":false,"a":1}', '{"a":1,"store":false}']);
    expect(await ask('/v1/responses', {}, 'no json')).toMatchObject({ status: 400 });
    await restart({ profile: 'A' });
    await ask('/v1/responses', {}, body);
    await ask('/v1/responses', {}, 'no json');
    expect(bodies(decoder).slice(2)).toEqual([body, 'no json']);
  });
});

describe('IPv6', () => {
  it('works from the header to the leg, and the params have the address without brackets', async () => {
    const over6 = await ModelServer.start({ host: '::1' });
    await ask(CHAT, { ...via(over6, '[::1]'), ...from('[fd00::9]:8000') });
    expect(bodies(over6)[0]).toContain('"remote_host":"fd00::9"');
    expect(bodies(decoder)[0]).toContain('"remote_prefiller":{"kv_request_id":"<id>","remote_host":"::1"');
    await over6.close();
  });
});

describe('TLS to the model servers', () => {
  it('is used for the legs that --enable-tls names; a certificate that cannot be verified is a 502', async () => {
    const tls = await makeCertificate('localhost');
    const secure = await ModelServer.start({ tls });
    await restart({ modelServerPort: secure.port, enableTls: ['decoder'] });
    expect(await ask('/v1/models', {}, null, 'GET')).toMatchObject({ status: 502 });
    await restart({
      ...{ modelServerPort: secure.port, enableTls: ['decoder', 'prefiller'] },
      tlsInsecureSkipVerify: ['decoder', 'prefiller'],
    });
    expect(await ask('/v1/models', {}, null, 'GET')).toMatchObject({ status: 200 });
    expect(await ask(CHAT, { 'x-prefiller-host-port': `https://127.0.0.1:${secure.port}` })).toMatchObject({
      status: 200,
    });
    expect(bodies(secure)).toEqual([
      '',
      expect.stringContaining('remote_decoder'),
      expect.stringContaining('remote_prefiller'),
    ]);
    await secure.close();
  });
});

describe('--metrics-port', () => {
  it('has the durations of requests and of their legs, by outcome, and the first bytes', async () => {
    await restart({ metricsPort: await freePort() });
    await ask(CHAT, via(prefiller));
    const answer = await request(`http://${sidecar.metricsAddress ?? ''}/metrics`);
    expect(answer.headers['content-type']).toContain('text/plain; version=0.0.4');
    const text = await answer.body.text();
    for (const line of [
      'kvpeer_sidecar_request_duration_seconds_count{kind="prefill-decode",outcome="ok"} 1',
      'kvpeer_sidecar_leg_duration_seconds_count{leg="prefill",outcome="ok"} 1',
      'kvpeer_sidecar_leg_duration_seconds_count{leg="decode",outcome="ok"} 1',
      'kvpeer_sidecar_leg_first_byte_seconds_count{leg="decode"} 1',
      'kvpeer_sidecar_running_requests 0',
    ]) {
      expect(text).toContain(`${line}\n`);
    }
    // Go's own metrics are those of another program.
    expect(text).not.toMatch(/^go_/m);
  });
});

describe('a start with a part of the reference that is not here', () => {
  it.each([
    ['--kv-connector=nixlv2', '--kv-connector is "nixlv2"'],
    ['--enable-p2p-pull', '--enable-p2p-pull is for the connector nixlv2'],
    ['--decode-chunk-size=4', '--decode-chunk-size is 4'],
    ['--ec-connector=x', '--ec-connector is "x"'],
  ])('ends with status 2 and says so: %s', async (flag, said) => {
    const child = spawn(
      process.execPath,
      [join(packageRoot, 'dist/src/main/cli/kvpeer.js'), 'sidecar', flag],
      {
        stdio: ['ignore', 'ignore', 'pipe'],
      },
    );
    const closed = once(child, 'close') as Promise<[number]>;
    const text = await buffer(child.stderr);
    const [status] = await closed;
    expect(text.toString()).toContain(said);
    expect(status).toBe(2);
  });
});
