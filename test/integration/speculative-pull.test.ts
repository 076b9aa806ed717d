// Blocks pulled ahead of a request, between two real peers: they are here before the engine asks, within bounds.

import { pino } from 'pino';
import { describe, expect, it, onTestFinished } from 'vitest';

import { BlockHasher, type HashContext } from '../../src/main/hashes/index.js';
import type { PeerOptions } from '../../src/main/options.js';
import type { Peer } from '../../src/main/peer.js';
import type { Prompt, PromptFault } from '../../src/main/sidecar/prompt.js';
import type { ServedModel } from '../../src/main/sidecar/served-models.js';
import {
  type PullDecision,
  type SpeculativePullOptions,
  SpeculativePulls,
} from '../../src/main/sidecar/speculative-pull.js';
import { EventSubscriber } from '../fixtures/event-subscriber.js';
import { startPeer } from '../fixtures/local-peers.js';
import { RemotePeer } from '../fixtures/remote-peer.js';

const TOKENS = 4;
const log = pino({ level: 'silent' });
const tokenIds = Uint32Array.from({ length: 300 * TOKENS }, (_, i) => (i * 7919) % 50_000);
const plain: Prompt = { tokenIds, model: undefined, cacheSalt: undefined, multimodal: [] };
const MODELS: Readonly<Record<string, ServedModel>> = {
  llama: { kind: 'base' },
  'sql-adapter': { kind: 'adapter', adapter: { name: 'sql-adapter', path: '/adapters/sql' } },
};

async function keysOfPrompt(context: HashContext = {}): Promise<Buffer> {
  const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: TOKENS });
  return hasher.blockKeys(tokenIds, context);
}

function decisionFor(
  source: Pick<Peer, 'address'>,
  more: Partial<PullDecision> = {},
  prompt: Partial<Prompt> | PromptFault = {},
): PullDecision {
  const at = source.address.lastIndexOf(':');
  return {
    api: 'generate',
    kind: 'pull',
    params: {
      remote_kv_source: {
        kv_request_id: 'the-engine-uses-this-one',
        remote_host: source.address.slice(0, at),
        remote_port: Number(source.address.slice(at + 1)),
      },
    },
    rank: 0,
    prompt: () => (typeof prompt === 'string' ? prompt : { ...plain, ...prompt }),
    signal: new AbortController().signal,
    ...more,
  };
}

async function pullsInto(
  peer: Peer,
  options: Partial<SpeculativePullOptions> = {},
): Promise<SpeculativePulls> {
  const pulls = await SpeculativePulls.create(
    peer,
    {
      ...{ tokensPerHash: TOKENS, maxMs: 20_000, maxBytes: 2 ** 30, maxRunning: 4 },
      ...{ engineAsks: 'source', waitMs: 20_000, ...options },
    },
    { log, registry: peer.metrics, models: { find: (_, name) => Promise.resolve(MODELS[name]) } },
  );
  onTestFinished(() => pulls.close());
  return pulls;
}

function sessionsOf(peer: Peer): Readonly<Record<string, number>> {
  return peer.stats().sessions;
}

/** Waits until a pull has ended, by the peer's metrics. */
async function outcome(peer: Peer): Promise<string> {
  for (;;) {
    const text = await peer.metrics.metrics();
    const found = /kvpeer_speculative_pulls_total\{outcome="([\w-]+)"\} 1/.exec(text);
    if (found !== null) return found[1];
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

async function twoPeers(
  context: HashContext = {},
  options: PeerOptions = {},
): Promise<{ readonly source: Peer; readonly peer: Peer; readonly keys: Buffer }> {
  // A peer may pin a quarter of its source's pool.
  const poolBytes = 2048 * 4096;
  const [source, peer] = [await startPeer({ poolBytes }), await startPeer(options)];
  const keys = await keysOfPrompt(context);
  await source.content.storeFilled(keys);
  return { source, peer, keys };
}

describe('a speculative pull', () => {
  it('brings the blocks of the prompt from its source, byte for byte, before anyone asks for them', async () => {
    const { source, peer, keys } = await twoPeers();
    const pulls = await pullsInto(peer);
    void pulls.begin(decisionFor(source));
    expect(await outcome(peer)).toBe('pulled');
    expect((await peer.probe(keys)).hitCount).toBe(300);
    const pinned = await peer.pin(keys);
    expect(await peer.content.verify(pinned)).toBe(0);
    pinned.release();
    await expect.poll(() => peer.stats().pins).toBe(0);
    expect(peer.stats().bytesPulled).toBe(300 * peer.blockBytes);
  });

  it('stops at its bound of bytes', async () => {
    const { source, peer, keys } = await twoPeers();
    const pulls = await pullsInto(peer, { maxBytes: 10 * peer.blockBytes });
    void pulls.begin(decisionFor(source));
    expect(await outcome(peer)).toBe('pulled');
    expect((await peer.probe(keys)).hitCount).toBe(10);
  });

  it('is given up with its request, and nothing stays pinned', async () => {
    const { source, peer } = await twoPeers();
    const pulls = await pullsInto(peer);
    const ending = new AbortController();
    void pulls.begin(decisionFor(source, { signal: ending.signal }));
    ending.abort();
    expect(await outcome(peer)).toBe('cancelled');
    await expect.poll(() => peer.stats().pins).toBe(0);
  });

  it('is given up at its time when the source does not answer', async () => {
    const peer = await startPeer();
    const pulls = await pullsInto(peer, { maxMs: 30 });
    void pulls.begin(decisionFor({ address: '127.0.0.1:9' }));
    expect(['late', 'nothing']).toContain(await outcome(peer));
  });

  it('does not begin when too many are running, for another API, or for a prefiller that writes on its own', async () => {
    const { source, peer } = await twoPeers();
    const pulls = await pullsInto(peer, { maxRunning: 0 });
    expect(pulls.begin(decisionFor(source, { api: 'chat' }))).toBeUndefined();
    expect(pulls.begin(decisionFor(source, { kind: 'decode' }))).toBeUndefined();
    expect(pulls.begin(decisionFor(source, { params: {} }))).toBeUndefined();
    void pulls.begin(decisionFor(source));
    expect(await outcome(peer)).toBe('busy');
    expect(peer.stats().bytesPulled).toBe(0);
  });

  it('is refused for keys whose hashes cannot be computed here', async () => {
    const peer = await startPeer({ keyBytes: 12, dataPlane: 'none' });
    await expect(pullsInto(peer)).rejects.toMatchObject({ code: 'KVPEER_INVALID_OPTION' });
  });

  const items = [
    { identifier: 'image-1', offset: 2, length: 700 },
    { identifier: 'image-2', offset: 704, length: 30 },
  ];
  it.each<[string, Partial<Prompt>, HashContext]>([
    ['a cache salt', { cacheSalt: 'tenant-a' }, { cacheSalt: 'tenant-a' }],
    ['an adapter', { model: 'sql-adapter' }, { lora: { name: 'sql-adapter', path: '/adapters/sql' } }],
    ["the model's own name", { model: 'llama' }, {}],
    ['multimodal items', { multimodal: items }, { multimodal: items }],
    [
      'all that goes together',
      { cacheSalt: 's', multimodal: items, model: 'llama' },
      { cacheSalt: 's', multimodal: items },
    ],
  ])('of a prompt with %s asks for the keys that the engine has for it', async (_, prompt, context) => {
    const { source, peer, keys } = await twoPeers(context);
    const pulls = await pullsInto(peer);
    void pulls.begin(decisionFor(source, {}, prompt));
    expect(await outcome(peer)).toBe('pulled');
    expect((await peer.probe(keys)).hitCount).toBe(300);
  });

  it.each<[string, Partial<Prompt> | PromptFault, string]>([
    ['a model that the server does not name', { model: 'other' }, 'unknown-model'],
    ['an adapter and multimodal items', { model: 'sql-adapter', multimodal: items }, 'unknown-features'],
    ['features that are not understood', 'unknown-features', 'unknown-features'],
    ['a salt that is no text', 'unknown-salt', 'unknown-salt'],
    ['no token ids', 'no-tokens', 'no-tokens'],
    ['less than a block', { tokenIds: tokenIds.subarray(0, 3) }, 'short'],
  ])('of a prompt with %s does not begin: nobody is asked for wrong keys', async (_, prompt, reason) => {
    const { source, peer } = await twoPeers();
    const pulls = await pullsInto(peer);
    void pulls.begin(decisionFor(source, {}, prompt));
    expect(await outcome(peer)).toBe(reason);
    expect(peer.stats()).toMatchObject({ bytesPulled: 0, sessions: sessionsOf(await startPeer()) });
  });

  it('from this very peer does not begin', async () => {
    const peer = await startPeer();
    const pulls = await pullsInto(peer);
    expect(pulls.begin(decisionFor(peer))).toBeUndefined();
    expect(await outcome(peer)).toBe('self');
    expect(sessionsOf(peer)).toEqual(sessionsOf(await startPeer()));
  });

  it('from this very peer under another name ends by itself, and does no harm', async () => {
    const peer = await startPeer({ handshakeMs: 1_000, redialMs: 300 });
    const pulls = await pullsInto(peer, { maxMs: 2_000 });
    void pulls.begin(decisionFor({ address: peer.address.replace('127.0.0.1', 'localhost') }));
    expect(['nothing', 'late']).toContain(await outcome(peer));
    expect(peer.stats().pins).toBe(0);
    await peer.content.storeFilled(await keysOfPrompt());
    expect((await peer.probe(await keysOfPrompt())).hitCount).toBe(300);
  });

  it('announces what it brought, as vLLM would', async () => {
    const { source, peer, keys } = await twoPeers(
      { lora: { name: 'sql-adapter', path: '/adapters/sql' } },
      { kvEventsPort: 0, kvEventsModel: 'llama', kvEventsResubscribeMs: 1 },
    );
    const subscriber = new EventSubscriber(peer.kvEvents?.port ?? 0);
    onTestFinished(() => subscriber.close());
    const pulls = await pullsInto(peer);
    void pulls.begin(decisionFor(source, {}, { model: 'sql-adapter' }));
    expect(await outcome(peer)).toBe('pulled');
    const last = keys.subarray(299 * 36, 299 * 36 + 32);
    await subscriber.until((messages) => messages.some(({ payload }) => payload.includes(last)));
    const { payload } = subscriber.messages.find((message) => message.payload.includes(last)) ?? {};
    // lora_name, then the name in each block's extra keys.
    expect(payload?.toString('latin1').split('sql-adapter').length).toBeGreaterThan(3);
  });

  it('sends the engine to this peer once the blocks are on their way, where that is asked for', async () => {
    const { source, peer, keys } = await twoPeers();
    const pulls = await pullsInto(peer, { engineAsks: 'peer' });
    const at = await pulls.begin(decisionFor(source));
    expect(at && `${at.host}:${at.port}`).toBe(peer.address);
    // An engine's tier that asks now: what is still on its way is waited for, and found.
    const engine = await startPeer();
    const request = engine.open({
      remote_kv_source: { kv_request_id: 'e', remote_host: at?.host, remote_port: at?.port },
    });
    expect((await request.lookup(keys.subarray(0, 200 * 36))).leadingCount).toBe(200);
    const load = await request.load(keys.subarray(0, 200 * 36));
    expect(load.pulledCount).toBe(200);
    expect(await engine.content.verify(load)).toBe(0);
    load.release();
    request.finish();
  });

  it('leaves the engine to the source when that has nothing, or does not answer in time', async () => {
    const [empty, peer] = [await startPeer(), await startPeer()];
    const pulls = await pullsInto(peer, { engineAsks: 'peer' });
    expect(await pulls.begin(decisionFor(empty))).toBeUndefined();
    const impatient = await pullsInto(await startPeer(), { engineAsks: 'peer', waitMs: 1 });
    expect(await impatient.begin(decisionFor({ address: '10.255.255.1:9' }))).toBeUndefined();
  });

  it('ends as nothing or late when its source dies in the middle, with nothing pinned or kept in writing', async () => {
    const blockBytes = 256 << 10;
    const remote = await RemotePeer.start({ poolBytes: 1400 * blockBytes, blockBytes });
    onTestFinished(() => {
      remote.process.kill('SIGKILL');
    });
    const peer = await startPeer({
      ...{ poolBytes: 400 * blockBytes, blockBytes, heartbeatMs: 100, heartbeatTimeoutMs: 400 },
      abortAckMs: 200,
    });
    await remote.call('storeKeys', await keysOfPrompt());
    const pulls = await pullsInto(peer, { engineAsks: 'peer', maxMs: 10_000 });
    await pulls.begin(decisionFor(remote));
    remote.process.kill('SIGKILL');
    expect(['nothing', 'late', 'pulled']).toContain(await outcome(peer));
    await expect.poll(() => [peer.stats().pins, peer.stats().slots.writing]).toEqual([0, 0]);
    // Whatever came is whole.
    const pinned = await peer.pin(await keysOfPrompt());
    expect(await peer.content.verify(pinned)).toBe(0);
    pinned.release();
  });
});
