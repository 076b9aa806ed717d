// Two processes move blocks with NIXL. Every destination is poisoned first and compared byte for byte afterwards.

import { afterEach, describe, expect, test } from 'vitest';
import { transportsIn } from '../../src/main/shards/transports.js';
import { NixlNode } from '../fixtures/nixl-node.js';

const PAGES_PER_BLOCK = 16;
const BLOCK_BYTES = PAGES_PER_BLOCK * 4096;

const nodes: NixlNode[] = [];
afterEach(async () => {
  await Promise.all(nodes.splice(0).map((node) => node.kill()));
});

async function start(numBlocks: number, env: Record<string, string> = {}, blockBytes = BLOCK_BYTES) {
  const node = await NixlNode.start({ numBlocks, blockBytes, env });
  nodes.push(node);
  return node;
}

/** A permutation of 0 .. count - 1 without neighbours that stay together. */
function scattered(count: number): number[] {
  return Array.from({ length: count }, (_, i) => (i * 37) % count);
}

const inOrder = (count: number, first = 0): number[] => Array.from({ length: count }, (_, i) => first + i);

describe.each([
  ['over TCP', { UCX_TLS: 'tcp,self' }],
  ['with the transports that a node chooses', {}],
])('%s', (_, env) => {
  test('blocks arrive complete in the slots that were named, and nothing else is touched', async () => {
    const [producer, consumer] = await Promise.all([start(256, env), start(300, env)]);
    await producer.fill(0, 256, 1);
    await consumer.poison(0, 300);
    expect(await producer.addPeer(7, consumer.address)).toEqual({ status: 'added' });

    const slots = scattered(200);
    await producer.serve(1, 7, slots, inOrder(200, 50));
    expect(await producer.serveEnd(1)).toMatchObject({
      status: 'done',
      bytesWritten: 200 * BLOCK_BYTES,
      cutRequestCount: 0,
    });

    expect(await consumer.census(50, slots, [1])).toEqual({
      poisoned: 0,
      bySalt: { 1: 200 * PAGES_PER_BLOCK },
      other: 0,
    });
    expect((await consumer.census(0, inOrder(50), [])).poisoned).toBe(50 * PAGES_PER_BLOCK);
    expect((await consumer.census(250, inOrder(50), [])).poisoned).toBe(50 * PAGES_PER_BLOCK);
  });

  test('both ways at once', async () => {
    const [a, b] = await Promise.all([start(256, env), start(256, env)]);
    for (const [node, salt] of [
      [a, 1],
      [b, 2],
    ] as const) {
      await node.fill(0, 128, salt);
      await node.poison(128, 128);
    }
    await a.addPeer(1, b.address);
    await b.addPeer(1, a.address);
    await Promise.all([
      a.serve(1, 1, inOrder(128), inOrder(128, 128)),
      b.serve(1, 1, inOrder(128), inOrder(128, 128)),
    ]);
    expect([(await a.serveEnd(1)).status, (await b.serveEnd(1)).status]).toEqual(['done', 'done']);
    expect((await a.census(128, inOrder(128), [2])).bySalt[2]).toBe(128 * PAGES_PER_BLOCK);
    expect((await b.census(128, inOrder(128), [1])).bySalt[1]).toBe(128 * PAGES_PER_BLOCK);
  });
});

test('an agent over TCP only does not offer to be written by CMA', async () => {
  const { address } = await start(8, { UCX_TLS: 'tcp,self' });
  expect(transportsIn(address.metadata, false)).toEqual(['tcp', 'self']);
});

test('small blocks are merged into few descriptors and arrive complete', async () => {
  const [producer, consumer] = await Promise.all([start(3000, {}, 4096), start(3000, {}, 4096)]);
  await producer.fill(0, 3000, 1);
  await consumer.poison(0, 3000);
  await producer.addPeer(1, consumer.address);
  const slots = [...inOrder(1500, 1000), ...scattered(1000)];
  await producer.serve(1, 1, slots, inOrder(2500, 400));
  expect((await producer.serveEnd(1)).bytesWritten).toBe(2500 * 4096);
  expect((await consumer.census(400, slots, [1])).bySalt[1]).toBe(2500);
});

test('a peer without a scratch page is served, too', async () => {
  const [producer, consumer] = await Promise.all([start(8), start(8)]);
  await producer.fill(0, 8, 1);
  await consumer.poison(0, 8);
  await producer.addPeer(1, consumer.address, false);
  await producer.serve(1, 1, inOrder(8), inOrder(8));
  expect((await producer.serveEnd(1)).status).toBe('done');
  expect((await consumer.census(0, inOrder(8), [1])).bySalt[1]).toBe(8 * PAGES_PER_BLOCK);
});

test('wrong handles, indexes and metadata throw, and the process goes on', async () => {
  const [node, other] = await Promise.all([start(64), start(32)]);
  const codes = (await node.run({ kind: 'probeBadCalls', address: other.address })) as Record<string, string>;
  const { 'good metadata after refused ones': good, ...bad } = codes;
  expect(good).toBe('none');
  const rejected = [
    'empty metadata',
    'oversized metadata',
    'metadata that is not NIXL',
    'the metadata of a loaded peer',
    'truncated metadata',
    'more blocks than are registered',
    'a base address outside the registration',
  ];
  for (const [name, code] of Object.entries(bad)) {
    expect([name, code]).toEqual([
      name,
      rejected.includes(name) ? 'KVPEER_PEER_REJECTED' : 'KVPEER_INVALID_ARGUMENT',
    ]);
  }
});

test('a serve that names a slot out of range is refused before anything is written', async () => {
  const [producer, consumer] = await Promise.all([start(16), start(8)]);
  await producer.addPeer(1, consumer.address);
  expect(await producer.serve(1, 1, [0, 1], [0, 8])).toBe('badDestination');
  expect(await producer.serve(2, 1, [0, 16], [0, 1])).toBe('badDestination');
  expect(await producer.serve(3, 1, [0, -1], [0, 1])).toBe('badDestination');
});

test('a killed peer fails its serves within seconds, and its successor is served', async () => {
  const [producer, consumer] = await Promise.all([start(256), start(256)]);
  await producer.fill(0, 256, 1);
  await producer.addPeer(1, consumer.address);
  await producer.serve(1, 1, [0], [0]);
  await producer.serveEnd(1);
  await consumer.kill();
  await producer.serve(2, 1, inOrder(256), inOrder(256));
  expect((await producer.serveEnd(2)).status).toBe('failed');
  expect(await producer.run({ kind: 'removePeer', peerId: 1 })).toBe('removed');

  const successor = await start(256);
  await successor.poison(0, 256);
  expect(await producer.addPeer(2, successor.address)).toEqual({ status: 'added' });
  await producer.serve(3, 2, inOrder(256), inOrder(256));
  expect((await producer.serveEnd(3)).status).toBe('done');
  expect((await successor.census(0, inOrder(256), [1])).bySalt[1]).toBe(256 * PAGES_PER_BLOCK);
});
