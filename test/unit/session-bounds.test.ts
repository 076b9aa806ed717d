// What a peer can make this node keep: bounds in bytes on everything that waits for the peer.

import { expect, test } from 'vitest';
import type { FetchMessage } from '../../src/main/protocol/messages.js';
import { scan } from '../../src/main/protocol/scan.js';
import { writeFetch, writeLookup } from '../../src/main/protocol/write.js';
import { KEY_BYTES, keysOf, NodeHarness } from '../fixtures/producer-harness.js';
import { connectFrom, FakeNetwork } from '../fixtures/session-network.js';

const NODE = '10.0.0.1:5710';
const PEER = '10.0.0.2:5710';
const MIB = 1024 * 1024;
const FOREIGN_KEY_BYTES = 255;

test('a peer that asks and never acknowledges us loses its session before its answers fill the memory', async () => {
  const network = new FakeNetwork();
  const node = network.node(NODE);
  const peer = network.peer(PEER);
  await peer.dial(NODE);
  await peer.say(connectFrom(PEER));
  expect(node.sessions.find(PEER)?.phase).toBe('acknowledging');

  // 7.4 MiB each: an answer repeats the keys, those of a foreign length too.
  const keys = Buffer.alloc(30_000 * FOREIGN_KEY_BYTES, 7);
  let askedBytes = 0;
  for (let i = 0; node.sessions.find(PEER) !== undefined && askedBytes < 200 * MIB; i++) {
    const frame = writeLookup(`id ${i}`, keys, FOREIGN_KEY_BYTES, 0);
    askedBytes += frame.length;
    await peer.say(frame);
  }
  expect(node.sessions.find(PEER)).toBeUndefined();
  expect(askedBytes).toBeLessThan(80 * MIB);
  expect(node.shards.totals().pins).toBe(0);
});

test('fetches that wait for blocks may keep so many bytes of messages; the others fail at once', () => {
  const node = new NodeHarness();
  const peer = node.session();
  // One key each, in messages that are made large by a field that nobody knows.
  const padded = (id: number): FetchMessage => {
    const plain = writeFetch(`id ${id}`, keysOf(id), KEY_BYTES, Int32Array.of(id), 0);
    const padding = Buffer.alloc(4 * MIB);
    const head = Buffer.from([0xa1, 0x70, 0xc6, 0, 0, 0, 0]);
    head.writeUInt32BE(padding.length, 3);
    // A map of five fields becomes one of six.
    const message = scan(Buffer.concat([Buffer.of(plain[0] + 1), plain.subarray(1), head, padding]));
    if (message.type !== 'fetch') throw new Error('no fetch');
    return message;
  };
  const ask = (count: number, first: number): void => {
    for (let id = first; id < first + count; id++) peer.producer.onFetch(padded(id));
    node.shards.settle();
  };
  ask(20, 0);
  expect(peer.counted.get('rejection max_held_bytes')).toBe(5);
  expect(peer.sent()).toEqual([15, 16, 17, 18, 19].map((id) => `transfer_done id ${id}#0 false`));
  // Once the waiting ones have ended, there is room again.
  node.advance(node.times.plainPostMs + 1_000);
  expect(peer.sent()).toHaveLength(15);
  ask(1, 40);
  expect(peer.sent()).toEqual([]);
  peer.end();
  expect(node.pins).toBe(0);
});
