// Blocks pulled ahead of a request, between two real peers: they are here before the engine asks, within bounds.

import { pino } from 'pino';
import { describe, expect, it, onTestFinished } from 'vitest';

import { BlockHasher } from '../../src/main/hashes/index.js';
import type { Peer } from '../../src/main/peer.js';
import {
  type PullDecision,
  type SpeculativePullOptions,
  SpeculativePulls,
} from '../../src/main/sidecar/speculative-pull.js';
import { startPeer } from '../fixtures/local-peers.js';

const TOKENS = 4;
const log = pino({ level: 'silent' });
const prompt = Uint32Array.from({ length: 300 * TOKENS }, (_, i) => (i * 7919) % 50_000);

async function keysOfPrompt(): Promise<Buffer> {
  const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: TOKENS });
  return hasher.blockKeys(prompt);
}

function decisionFor(source: Pick<Peer, 'address'>, signal = new AbortController().signal): PullDecision {
  const at = source.address.lastIndexOf(':');
  return {
    kind: 'pull',
    params: {
      remote_kv_source: {
        kv_request_id: 'the-engine-uses-this-one',
        remote_host: source.address.slice(0, at),
        remote_port: Number(source.address.slice(at + 1)),
      },
    },
    tokenIds: () => prompt,
    signal,
  };
}

async function pullsInto(
  peer: Peer,
  options: Partial<SpeculativePullOptions> = {},
): Promise<SpeculativePulls> {
  const pulls = await SpeculativePulls.create(
    peer,
    { tokensPerHash: TOKENS, maxMs: 20_000, maxBytes: 2 ** 30, maxRunning: 4, ...options },
    { log, registry: peer.metrics },
  );
  onTestFinished(() => pulls.close());
  return pulls;
}

/** Waits until a pull has ended, by the peer's metrics. */
async function outcome(peer: Peer): Promise<string> {
  for (;;) {
    const text = await peer.metrics.metrics();
    const found = /kvpeer_speculative_pulls_total\{outcome="(\w+)"\} 1/.exec(text);
    if (found !== null) return found[1];
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

async function twoPeers(): Promise<{ readonly source: Peer; readonly peer: Peer; readonly keys: Buffer }> {
  // A peer may pin a quarter of its source's pool.
  const poolBytes = 2048 * 4096;
  const [source, peer] = [await startPeer({ poolBytes }), await startPeer()];
  const keys = await keysOfPrompt();
  await source.content.storeFilled(keys);
  return { source, peer, keys };
}

describe('a speculative pull', () => {
  it('brings the blocks of the prompt from its source, byte for byte, before anyone asks for them', async () => {
    const { source, peer, keys } = await twoPeers();
    const pulls = await pullsInto(peer);
    pulls.onDecision(decisionFor(source));
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
    pulls.onDecision(decisionFor(source));
    expect(await outcome(peer)).toBe('pulled');
    expect((await peer.probe(keys)).hitCount).toBe(10);
  });

  it('is given up with its request, and nothing stays pinned', async () => {
    const { source, peer } = await twoPeers();
    const pulls = await pullsInto(peer);
    const ending = new AbortController();
    pulls.onDecision(decisionFor(source, ending.signal));
    ending.abort();
    expect(await outcome(peer)).toBe('cancelled');
    await expect.poll(() => peer.stats().pins).toBe(0);
  });

  it('is given up at its time when the source does not answer', async () => {
    const peer = await startPeer();
    const pulls = await pullsInto(peer, { maxMs: 30 });
    pulls.onDecision(decisionFor({ address: '127.0.0.1:9' }));
    expect(['late', 'nothing']).toContain(await outcome(peer));
  });

  it('does not begin when too many are running, without token ids, or for a prefiller that writes on its own', async () => {
    const { source, peer } = await twoPeers();
    const pulls = await pullsInto(peer, { maxRunning: 0 });
    pulls.onDecision({ ...decisionFor(source), tokenIds: () => undefined });
    pulls.onDecision({ ...decisionFor(source), kind: 'decode' });
    pulls.onDecision(decisionFor(source));
    expect(await outcome(peer)).toBe('busy');
    expect(peer.stats().bytesPulled).toBe(0);
  });

  it('is refused for keys whose hashes cannot be computed here', async () => {
    const peer = await startPeer({ keyBytes: 12, dataPlane: 'none' });
    await expect(pullsInto(peer)).rejects.toMatchObject({ code: 'KVPEER_INVALID_OPTION' });
  });
});
