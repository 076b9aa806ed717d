// A sidecar in front of two data-parallel ranks: two ports, two model servers, and which of them a request reaches.

import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { request } from 'undici';
import type { SidecarOptions } from '../../src/main/sidecar/options.js';
import type { Sidecar } from '../../src/main/sidecar/sidecar.js';
import { freePorts } from '../helpers/free-port.js';
import { ModelServer } from './support/model-server.js';
import { CHAT, startSidecar } from './support/sidecar.js';

let ranks: ModelServer[];
let sidecar: Sidecar;
let port: number;

beforeEach(async () => {
  const modelPort = await freePorts(2);
  ranks = await Promise.all([0, 1].map((rank) => ModelServer.start({ port: modelPort + rank })));
  port = await freePorts(2);
  sidecar = await startSidecar(modelPort, { port, dataParallelSize: 2, podIp: '127.0.0.1' });
});

afterEach(async () => {
  await sidecar.close({ drainMs: 0 });
  await Promise.all(ranks.map((rank) => rank.close()));
});

async function restart(options: SidecarOptions): Promise<void> {
  await sidecar.close({ drainMs: 0 });
  sidecar = await startSidecar(ranks[0].port, { port, dataParallelSize: 2, podIp: '127.0.0.1', ...options });
}

async function post(rank: number, headers: Record<string, string> = {}, body = '{"a":1}'): Promise<number> {
  const answer = await request(`http://127.0.0.1:${port + rank}${CHAT}`, { method: 'POST', headers, body });
  await answer.body.dump();
  return answer.statusCode;
}

/** Bodies by rank, with ids replaced. */
function bodies(): string[][] {
  return ranks.map(({ legs }) =>
    legs.map(({ body }) => body.toString().replaceAll(/[0-9a-f-]{36}/g, '<id>')),
  );
}

function pulled(host: string, p2pPort: number): string {
  const source = `{"kv_request_id":"<id>","remote_host":"${host}","remote_port":${p2pPort}}`;
  return `{"a":1,"kv_transfer_params":{"remote_kv_source":${source}}}`;
}

describe('the listeners', () => {
  it('are one per rank, each in front of its own model server', async () => {
    expect(sidecar.addresses).toEqual([`127.0.0.1:${port}`, `127.0.0.1:${port + 1}`]);
    await post(0, {}, '{"at":0}');
    await post(1, {}, '{"at":1}');
    expect(bodies()).toEqual([['{"at":0}'], ['{"at":1}']]);
    for (const rank of [0, 1]) {
      const { statusCode } = await request(`http://127.0.0.1:${port + rank}/health`);
      expect(statusCode).toBe(200);
    }
  });

  it('all go when one of their ports is taken', async () => {
    await sidecar.close();
    const taken = await ModelServer.start({ port: port + 1 });
    await expect(restart({})).rejects.toThrow('cannot be bound');
    await taken.close();
    const again = await ModelServer.start({ port });
    await again.close();
    await restart({});
  });
});

describe('x-data-parallel-host-port', () => {
  const to = (rank: number): Record<string, string> => ({
    'x-data-parallel-host-port': `127.0.0.1:${port + rank}`,
  });

  it('chooses the rank, whichever port the request came to', async () => {
    await post(0, to(1));
    await post(1, to(0));
    await post(1, to(1));
    expect(bodies()).toEqual([['{"a":1}'], ['{"a":1}', '{"a":1}']]);
    expect(ranks[1].legs[0].headers['x-data-parallel-host-port']).toBe(`127.0.0.1:${port + 1}`);
  });

  it('wins over the source, which is not passed on', async () => {
    await post(0, { ...to(1), 'x-kv-cache-source-host-port': '10.0.0.9:8000' });
    expect(bodies()).toEqual([[], ['{"a":1}']]);
    expect(ranks[1].legs[0].headers['x-kv-cache-source-host-port']).toBeUndefined();
  });

  it.each(['10.0.0.9:8000', '127.0.0.1:1', 'x'])('is an empty 400 for %s', async (value) => {
    expect(await post(0, { 'x-data-parallel-host-port': value })).toBe(400);
    expect(bodies()).toEqual([[], []]);
  });

  it('is not looked at beside a prefiller', async () => {
    const prefiller = await ModelServer.start();
    await post(0, { ...to(1), 'x-prefiller-host-port': `127.0.0.1:${prefiller.port}` });
    expect(prefiller.legs).toHaveLength(1);
    expect(bodies().map(({ length }) => length)).toEqual([1, 0]);
    await prefiller.close();
  });
});

describe('a source', () => {
  const from = (value: string): Record<string, string> => ({ 'x-kv-cache-source-host-port': value });

  it('has the P2P port of its rank: the base and the distance of its port from the first', async () => {
    for (const [servingPort, p2pPort] of [
      [port, 7777],
      [port + 1, 7778],
      [port + 2, 7777],
      [port - 1, 7777],
    ]) {
      await post(0, from(`10.0.0.9:${servingPort}`));
      expect(bodies()[0].at(-1)).toBe(pulled('10.0.0.9', p2pPort));
    }
    await restart({ p2pConnectorPort: 5710 });
    await post(1, from(`10.0.0.9:${port + 1}`));
    expect(bodies()[1]).toEqual([pulled('10.0.0.9', 5711)]);
  });

  it('may be another rank of the same pod, but not the rank itself', async () => {
    await post(0, from(`127.0.0.1:${port + 1}`));
    await post(1, from(`127.0.0.1:${port + 1}`));
    await post(1, from(`127.0.0.1:${port}`));
    await post(0, from(`127.0.0.1:${port}`));
    expect(bodies()).toEqual([
      [pulled('127.0.0.1', 7778), '{"a":1}'],
      ['{"a":1}', pulled('127.0.0.1', 7777)],
    ]);
  });
});

describe('a prefiller', () => {
  it('may be another rank of the same pod; its leg keeps its params on the way through this sidecar', async () => {
    await post(0, { 'x-prefiller-host-port': `http://127.0.0.1:${port + 1}` });
    const [[decode], [prefill]] = bodies();
    expect(prefill).toBe(
      '{"a":1,"max_tokens":1,"max_completion_tokens":1,"stream":false,"kv_transfer_params":{"remote_decoder":{"kv_request_id":"<id>"}}}',
    );
    expect(decode).toBe(
      '{"a":1,"kv_transfer_params":{"remote_prefiller":{"kv_request_id":"<id>","remote_host":"127.0.0.1","remote_port":7778}}}',
    );
  });
});
