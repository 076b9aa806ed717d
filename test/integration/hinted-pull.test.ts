// Real peers whose requests come with kv_hints: only what a hint names is asked for and pulled.

import { expect, test } from 'vitest';

import type { Peer } from '../../src/main/peer.js';
import { testKey, testKeys } from '../fixtures/keys.js';
import { named, startPeer } from '../fixtures/local-peers.js';

function fetchOf(peer: Peer, indexes: readonly number[]): Record<string, unknown> {
  return {
    action_id: 'a',
    action_type: 'kv.fetch',
    action_version: '1.0',
    payload: {
      source_control_endpoint: `tcp://${peer.address}`,
      block_hashes: indexes.map((index) => testKey(index).readBigUInt64BE(24)),
      mode: 'copy',
    },
  };
}

function envelopeOf(...actions: unknown[]): Record<string, unknown> {
  return { protocol_version: '0.1', message_id: 'm', actions };
}

const EVEN = [0, 2, 4, 6, 8];
const ODD = [1, 3, 5, 7, 9];

test('keys that the hint names are found and pulled, others that the source holds too are not asked for', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 10));
  const request = b.open(undefined, { kvHints: envelopeOf(fetchOf(a, EVEN)) });
  const hits = await request.lookup(testKeys(0, 10));
  expect(Array.from({ length: 10 }, (_, i) => i).filter((i) => hits.has(i))).toEqual(EVEN);
  const load = await request.load(testKeys(0, 10), { poison: true });
  expect(load.pulledCount).toBe(5);
  expect(await b.content.verify(load)).toBe(0);
  load.release();
  request.finish();
});

test('two hinted sources each give their own keys, as JSON text too', async () => {
  const [a, b, c] = [await startPeer(), await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 10));
  await b.content.storeFilled(testKeys(0, 10));
  const hints = envelopeOf(fetchOf(a, EVEN), fetchOf(b, ODD));
  const text = JSON.stringify(hints, (_, value: unknown) =>
    typeof value === 'bigint' ? `BIGINT${String(value)}` : value,
  ).replaceAll(/"BIGINT(\d+)"/g, '$1');
  const request = c.open({}, { kvHints: text });
  expect((await request.lookup(testKeys(0, 10))).hitCount).toBe(10);
  const load = await request.load(testKeys(0, 10));
  expect(load.pulledCount).toBe(10);
  expect([a.stats().bytesServed, b.stats().bytesServed]).toEqual([5 * 4096, 5 * 4096]);
  load.release();
  request.finish();
});

test('params win, denied and useless hints have no effect, and all of it is counted', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 10));
  const kvHints = envelopeOf(fetchOf(a, EVEN), { action_type: 'kv.retain' });
  const withParams = b.open({ remote_kv_source: named(a, 'both') }, { kvHints });
  expect((await withParams.lookup(testKeys(0, 10))).hitCount).toBe(10);
  withParams.finish();
  const denied = b.open({}, { kvHints, allowsHint: () => false });
  expect(denied.kvRequestId).toBeUndefined();
  expect((await denied.lookup(testKeys(20, 10))).hitCount).toBe(0);
  denied.finish();
  const useless = b.open({}, { kvHints: '{' });
  useless.finish();
  const self = b.open({}, { kvHints: envelopeOf(fetchOf(b, EVEN)) });
  self.finish();
  const metrics = await b.metrics.metrics();
  for (const reason of ['params-win', 'endpoint-denied', 'action-type', 'malformed', 'self']) {
    expect(metrics).toContain(`kvpeer_hints_ignored_total{reason="${reason}"} 1`);
  }
});
