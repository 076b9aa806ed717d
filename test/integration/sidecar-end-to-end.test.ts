// Two sidecars, two engines whose cache side is a real peer each: blocks move by NIXL as headers say, byte for byte.

import { randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { pino } from 'pino';
import { request } from 'undici';
import { expect, it, onTestFinished } from 'vitest';

import { BlockHasher } from '../../src/main/hashes/index.js';
import { createSidecar, type Sidecar, type SidecarOptions } from '../../src/main/sidecar/index.js';
import { startPeer } from '../fixtures/local-peers.js';
import { type CacheSide, FakeEngine, PeerCache } from '../fixtures/peer-engine.js';

const logger = pino({ level: 'silent' });
const BLOCKS = Array.from({ length: 96 }, (_, i) => i);

async function keyFile(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'kvpeer-legs-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  await writeFile(join(folder, 'key'), randomBytes(32));
  return join(folder, 'key');
}

async function sidecarFor(
  engine: FakeEngine,
  options: SidecarOptions,
  parts: Parameters<typeof createSidecar>[1] = {},
): Promise<Sidecar> {
  const sidecar = await createSidecar(
    { port: 0, host: '127.0.0.1', modelServerPort: engine.port, secureServing: false, ...options },
    { logger, ...parts },
  );
  onTestFinished(() => sidecar.close({ drainMs: 0 }));
  return sidecar;
}

async function engineOf(cache: CacheSide): Promise<FakeEngine> {
  const engine = await FakeEngine.start(cache);
  onTestFinished(() => engine.close());
  return engine;
}

async function complete(
  sidecar: Sidecar,
  headers: Record<string, string>,
  blocks: readonly number[],
): Promise<unknown> {
  const answer = await request(`http://127.0.0.1:${sidecar.port}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model: 'm', prompt: blocks }),
  });
  expect(answer.statusCode).toBe(200);
  return answer.body.json();
}

it('a prefill/decode request and a decoder-only pull move their blocks between the engines', async () => {
  const [one, two] = [await startPeer(), await startPeer()];
  const [prefill, decode] = [new PeerCache(one), new PeerCache(two)];
  const [prefillEngine, decodeEngine] = [await engineOf(prefill), await engineOf(decode)];
  const legKeyFile = await keyFile();
  const first = await sidecarFor(prefillEngine, { legKeyFile, p2pConnectorPort: decode.p2pPort });
  const second = await sidecarFor(decodeEngine, { legKeyFile, p2pConnectorPort: prefill.p2pPort });

  const viaPrefiller = { 'x-prefiller-host-port': `127.0.0.1:${first.port}` };
  expect(await complete(second, viaPrefiller, BLOCKS)).toMatchObject({
    used: { pulled: 96, local: 0, computed: 0, bad: 0 },
  });
  expect(prefillEngine.used).toEqual([{ pulled: 0, local: 0, computed: 96, bad: 0 }]);
  expect(Object.keys(prefillEngine.params[0] as object)).toEqual(['remote_decoder']);
  expect(Object.keys(decodeEngine.params[0] as object)).toEqual(['remote_prefiller']);

  // Twelve blocks that only the first engine has, asked for at the second.
  const more = [...BLOCKS.slice(0, 12), 200, 201, 202];
  await complete(first, {}, more);
  const fromSource = { 'x-kv-cache-source-host-port': `127.0.0.1:${first.port}` };
  expect(await complete(second, fromSource, more)).toMatchObject({
    used: { pulled: 3, local: 12, computed: 0, bad: 0 },
  });

  expect([one.stats().bytesServed, two.stats().bytesPulled]).toEqual([99 * 4096, 99 * 4096]);
  await expect.poll(() => [one.stats().pins, two.stats().pins]).toEqual([0, 0]);
});

it('with an embedded peer a prompt of token ids is pulled before the engine has the request', async () => {
  const [source, peer] = [await startPeer(), await startPeer()];
  const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: 16 });
  const tokenIds = Array.from({ length: 40 * 16 }, (_, i) => i);
  const keys = hasher.blockKeys(tokenIds);
  await source.content.storeFilled(keys);

  const sourceCache = new PeerCache(source);
  const seenAtEngine: number[] = [];
  const engine = await engineOf({
    p2pPort: 0,
    run: async () => {
      // What the engine's tier finds when it asks the local peer.
      await expect.poll(async () => (await peer.probe(keys)).leadingCount).toBe(40);
      seenAtEngine.push(40);
      return { pulled: 0, local: 40, computed: 0, bad: 0 };
    },
  });
  const sidecar = await sidecarFor(
    engine,
    { p2pConnectorPort: sourceCache.p2pPort },
    { peer, admin: { host: '127.0.0.1', port: 0 } },
  );
  const answer = await request(`http://127.0.0.1:${sidecar.port}/inference/v1/generate`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-kv-cache-source-host-port': '127.0.0.1:1' },
    body: JSON.stringify({ token_ids: tokenIds, sampling_params: {} }),
  });
  expect(answer.statusCode).toBe(200);
  await answer.body.dump();
  expect(seenAtEngine).toEqual([40]);
  const pinned = await peer.pin(keys);
  expect(await peer.content.verify(pinned)).toBe(0);
  pinned.release();

  const metrics = await request(`http://${sidecar.metricsAddress ?? ''}/metrics`);
  const text = await metrics.body.text();
  expect(text).toContain('kvpeer_speculative_blocks_total 40');
  expect(text).toContain('kvpeer_slots{phase="ready"} 40');
  expect((await request(`http://${sidecar.metricsAddress ?? ''}/readyz`)).statusCode).toBe(200);
});

it('a prefill leg that names a source is pulled ahead at the sidecar of the prefiller, and at no other', async () => {
  const [source, peer] = [await startPeer(), await startPeer()];
  const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: 16 });
  const tokenIds = Array.from({ length: 40 * 16 }, (_, i) => i);
  const keys = hasher.blockKeys(tokenIds);
  await source.content.storeFilled(keys);
  const engineOfPrefiller = await engineOf({
    p2pPort: 0,
    run: async () => {
      await expect.poll(async () => (await peer.probe(keys)).leadingCount).toBe(40);
      return { pulled: 0, local: 40, computed: 0, bad: 0 };
    },
  });
  const nothing = { pulled: 0, local: 0, computed: 0, bad: 0 };
  const engineOfDecoder = await engineOf({ p2pPort: 0, run: () => Promise.resolve(nothing) });
  const legKeyFile = await keyFile();
  const prefiller = await sidecarFor(
    engineOfPrefiller,
    { legKeyFile, pullWaitMs: 20_000 },
    { peer, admin: { host: '127.0.0.1', port: 0 } },
  );
  const { p2pPort } = new PeerCache(source);
  const decoder = await sidecarFor(engineOfDecoder, { legKeyFile, p2pConnectorPort: p2pPort });
  const answer = await request(`http://127.0.0.1:${decoder.port}/inference/v1/generate`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      'x-kv-cache-source-host-port': '127.0.0.1:1',
      'x-prefiller-host-port': `127.0.0.1:${prefiller.port}`,
    },
    body: JSON.stringify({ token_ids: tokenIds, sampling_params: { temperature: 0.5 } }),
  });
  expect(answer.statusCode).toBe(200);
  await answer.body.dump();
  const { p2pPort: peerPort } = new PeerCache(peer);
  expect(engineOfPrefiller.params).toMatchObject([
    { remote_decoder: {}, remote_kv_source: { remote_host: '127.0.0.1', remote_port: peerPort } },
  ]);
  expect(engineOfDecoder.params).toMatchObject([{ remote_prefiller: {} }]);
});
