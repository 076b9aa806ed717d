// Two sidecars, one engine with a kvpeer, the other with vLLM's own P2P tier: blocks move as headers say, both ways.

import { randomBytes } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { pino } from 'pino';
import { request } from 'undici';
import { expect, it, onTestFinished } from 'vitest';

import { Peer } from '../../src/main/peer.js';
import { createSidecar, type Sidecar } from '../../src/main/sidecar/index.js';
import { type CacheSide, FakeEngine, PeerCache, type Used } from '../fixtures/peer-engine.js';
import { VllmPeer } from './support/vllm-peer.js';

interface Named {
  readonly kv_request_id: string;
  readonly remote_host: string;
  readonly remote_port: number;
}

/** An engine whose cache side is vLLM's tier. It holds blocks 0 to 63 of the conformance set from the start. */
class VllmCache implements CacheSide {
  readonly #vllm: VllmPeer;

  constructor(vllm: VllmPeer) {
    this.#vllm = vllm;
  }

  get p2pPort(): number {
    return this.#vllm.port;
  }

  async run(params: unknown, blocks: readonly number[]): Promise<Used> {
    const named = params as Partial<Record<string, Named>> | undefined;
    const mode = named?.remote_prefiller === undefined ? 'remote_kv_source' : 'remote_prefiller';
    const source = named?.[mode];
    if (source === undefined) {
      const decoderId = named?.remote_decoder?.kv_request_id;
      if (decoderId !== undefined) {
        this.#vllm.store(`id=${decoderId};blocks=${blocks[0]}-${blocks[blocks.length - 1]}`);
      }
      return { pulled: 0, local: 0, computed: blocks.length, bad: 0 };
    }
    const pull = await this.#vllm.pull({
      remote: `${source.remote_host}:${source.remote_port}`,
      mode,
      kvRequestId: source.kv_request_id,
      keys: `${blocks[0]}-${blocks[blocks.length - 1]}`,
    });
    return { pulled: pull.loaded, local: 0, computed: pull.missing.length, bad: pull.bad.length };
  }
}

function range(first: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => first + i);
}

async function sidecarFor(cache: CacheSide, legKeyFile: string, p2pConnectorPort: number): Promise<Sidecar> {
  const engine = await FakeEngine.start(cache);
  const sidecar = await createSidecar(
    {
      ...{ port: 0, host: '127.0.0.1', modelServerPort: engine.port, secureServing: false },
      ...{ legKeyFile, p2pConnectorPort },
    },
    { logger: pino({ level: 'silent' }) },
  );
  onTestFinished(async () => {
    await sidecar.close({ drainMs: 0 });
    await engine.close();
  });
  return sidecar;
}

async function complete(
  sidecar: Sidecar,
  header: string,
  other: Sidecar,
  blocks: readonly number[],
): Promise<unknown> {
  const answer = await request(`http://127.0.0.1:${sidecar.port}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', [header]: `127.0.0.1:${other.port}` },
    body: JSON.stringify({ model: 'm', prompt: blocks }),
  });
  expect(answer.statusCode).toBe(200);
  return answer.body.json();
}

it('a prefill/decode request and a decoder-only pull move their blocks between kvpeer and vLLM', async () => {
  const vllm = await VllmPeer.start({
    args: ['--blocks', '1024', '--block-bytes', '4096', '--count', '64'],
  });
  onTestFinished(() => vllm.destroy());
  const peer = await Peer.start({
    host: '127.0.0.1',
    port: 0,
    blockBytes: 4096,
    poolBytes: 1024 * 4096,
    shards: 2,
    logLevel: 'fatal',
  });
  onTestFinished(() => peer.close({ drainMs: 0 }));
  const folder = await mkdtemp(join(tmpdir(), 'kvpeer-legs-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  const legKeyFile = join(folder, 'key');
  await writeFile(legKeyFile, randomBytes(32));
  const [ours, theirs] = [new PeerCache(peer), new VllmCache(vllm)];
  const ofKvpeer = await sidecarFor(ours, legKeyFile, theirs.p2pPort);
  const ofVllm = await sidecarFor(theirs, legKeyFile, ours.p2pPort);
  const source = 'x-kv-cache-source-host-port';
  const prefiller = 'x-prefiller-host-port';

  // kvpeer pulls what vLLM holds, and computes what it does not.
  expect(await complete(ofKvpeer, source, ofVllm, range(0, 70))).toMatchObject({
    used: { pulled: 64, local: 0, computed: 6, bad: 0 },
  });
  // kvpeer computes, vLLM decodes.
  expect(await complete(ofVllm, prefiller, ofKvpeer, range(100, 48))).toMatchObject({
    used: { pulled: 48, computed: 0, bad: 0 },
  });
  // vLLM pulls what kvpeer has computed.
  await complete(ofKvpeer, source, ofVllm, range(300, 20));
  expect(await complete(ofVllm, source, ofKvpeer, range(300, 20))).toMatchObject({
    used: { pulled: 20, computed: 0, bad: 0 },
  });
  expect(peer.stats()).toMatchObject({ bytesPulled: 64 * 4096, bytesServed: 68 * 4096 });
});
