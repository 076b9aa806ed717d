// Peers that stand still in the middle of a write. Over TCP on both sides: with CMA the write completes although the
// target is stopped.

import { afterEach, expect, test } from 'vitest';
import { NixlNode } from '../fixtures/nixl-node.js';

const TCP = { UCX_TLS: 'tcp,self' };
const PAGES_PER_BLOCK = 16;
const BLOCK_BYTES = PAGES_PER_BLOCK * 4096;
const BLOCKS = 512;
const OLD = 1;
const NEW = 2;
/** What may still land after a hard stop: posted requests, most of it in socket buffers. */
const MAX_OLD_PAGES = (16 << 20) / 4096;

const nodes: NixlNode[] = [];
afterEach(async () => {
  await Promise.all(nodes.splice(0).map((node) => node.kill()));
});

async function start(numBlocks: number) {
  const node = await NixlNode.start({ numBlocks, blockBytes: BLOCK_BYTES, env: TCP });
  nodes.push(node);
  return node;
}

const inOrder = (count: number, first = 0): number[] => Array.from({ length: count }, (_, i) => first + i);

/** Connected, poisoned, and then still: what is written to it from now on does not end. */
async function startFrozen(producer: NixlNode, peerId: number) {
  const node = await start(BLOCKS);
  await node.poison(0, BLOCKS);
  await producer.addPeer(peerId, node.address);
  await producer.serve(1_000_000 + peerId, peerId, [0], [0]);
  await producer.serveEnd(1_000_000 + peerId);
  await node.poison(0, 1);
  node.freeze();
  return node;
}

/** What the pages of a peer that stood still hold, once what had arrived has landed. */
async function settledCensus(node: NixlNode) {
  node.resume();
  await node.run({ kind: 'waitUntilLanded' });
  return node.census(0, inOrder(BLOCKS), [OLD, NEW]);
}

test('after a hard stop no byte written to the source afterwards arrives, and a healthy peer on the same agent is right', async () => {
  const producer = await start(BLOCKS);
  await producer.fill(0, BLOCKS, OLD);
  const frozen = await startFrozen(producer, 1);
  const healthy = await start(BLOCKS);
  await healthy.poison(0, BLOCKS);
  await producer.addPeer(2, healthy.address);

  await producer.serve(1, 1, inOrder(BLOCKS), inOrder(BLOCKS));
  await producer.serve(2, 2, inOrder(256), inOrder(256));
  await producer.hardStop(1);
  expect(await producer.serveEnd(1)).toMatchObject({ status: 'stopped' });
  // On whichever agent it is by now: the old one, or cut and posted again on the new one.
  await producer.serve(3, 2, inOrder(256, 256), inOrder(256, 256));
  expect((await producer.serveEnd(2)).status).toBe('done');
  expect((await producer.serveEnd(3)).status).toBe('done');

  await producer.fill(0, BLOCKS, NEW);
  const census = await settledCensus(frozen);
  expect(census.bySalt[NEW]).toBe(0);
  expect(census.other).toBeLessThanOrEqual(4);
  expect(census.bySalt[OLD]).toBeLessThanOrEqual(MAX_OLD_PAGES);
  expect(await frozen.census(0, inOrder(BLOCKS), [OLD, NEW])).toEqual(census);
  expect(await healthy.census(0, inOrder(BLOCKS), [OLD])).toEqual({
    poisoned: 0,
    bySalt: { [OLD]: BLOCKS * PAGES_PER_BLOCK },
    other: 0,
  });

  // The stopped peer needs no handshake to be served again.
  await producer.serve(4, 1, inOrder(BLOCKS), inOrder(BLOCKS));
  expect((await producer.serveEnd(4)).status).toBe('done');
  expect((await frozen.census(0, inOrder(BLOCKS), [NEW])).bySalt[NEW]).toBe(BLOCKS * PAGES_PER_BLOCK);
});

test('a healthy peer that is too slow is cut with the agent, posted again, and right', async () => {
  const producer = await start(BLOCKS);
  await producer.fill(0, BLOCKS, OLD);
  await startFrozen(producer, 1);
  const slow = await startFrozen(producer, 2);
  await producer.serve(1, 1, inOrder(BLOCKS), inOrder(BLOCKS));
  await producer.serve(2, 2, inOrder(BLOCKS), inOrder(BLOCKS));
  await producer.hardStop(1);
  slow.resume();
  const end = await producer.serveEnd(2);
  expect(end).toMatchObject({ status: 'done', bytesWritten: BLOCKS * BLOCK_BYTES });
  expect(end.cutRequestCount).toBeGreaterThan(0);
  expect((await slow.census(0, inOrder(BLOCKS), [OLD])).bySalt[OLD]).toBe(BLOCKS * PAGES_PER_BLOCK);
});

test('a cancelled serve to a frozen peer ends only with the hard stop', async () => {
  const producer = await start(BLOCKS);
  await producer.fill(0, BLOCKS, OLD);
  await startFrozen(producer, 1);
  await producer.serve(1, 1, inOrder(BLOCKS), inOrder(BLOCKS));
  expect(await producer.run({ kind: 'removePeer', peerId: 1 })).toBe('waiting');
  await producer.hardStop(1);
  const end = await producer.serveEnd(1);
  expect(end.status).toBe('stopped');
  expect(end.cutRequestCount).toBeGreaterThan(0);
  expect(await producer.run({ kind: 'removePeer', peerId: 1 })).toBe('removed');
});

test('a worker that is terminated in the middle of a write has destroyed its agent when it is gone', async () => {
  const producer = await start(BLOCKS);
  await producer.fill(0, BLOCKS, OLD);
  await producer.run({ kind: 'startThread' });
  const frozen = await startFrozen(producer, 1);
  await producer.serve(1, 1, inOrder(BLOCKS), inOrder(BLOCKS));
  await producer.run({ kind: 'stats' });
  await producer.run({ kind: 'terminateThread' });
  await producer.fill(0, BLOCKS, NEW);
  const census = await settledCensus(frozen);
  expect(census.bySalt[NEW]).toBe(0);
  expect(census.bySalt[OLD]).toBeLessThanOrEqual(MAX_OLD_PAGES);
});

test('a consumer that recycles its receive agent gets nothing more of a writer that stood still', async () => {
  const writer = await start(BLOCKS);
  await writer.fill(0, BLOCKS, OLD);
  const consumer = await start(BLOCKS);
  await consumer.poison(0, BLOCKS);
  await writer.addPeer(1, consumer.address);
  await writer.serve(0, 1, [0], [0]);
  await writer.serveEnd(0);
  // While the consumer stands still the write cannot end, so the writer is in the middle of it when it is stopped.
  consumer.freeze();
  await writer.serve(1, 1, inOrder(BLOCKS), inOrder(BLOCKS));
  writer.freeze();
  consumer.resume();
  const address = await consumer.run({ kind: 'recycleReceiveAgent' });
  expect(address).toMatchObject({ numBlocks: BLOCKS });
  await consumer.poison(0, BLOCKS);
  writer.resume();
  expect((await writer.serveEnd(1)).status).toBe('failed');
  const census = await consumer.census(0, inOrder(BLOCKS), [OLD]);
  expect(census).toEqual({ poisoned: BLOCKS * PAGES_PER_BLOCK, bySalt: { [OLD]: 0 }, other: 0 });

  // A handshake with the new metadata, and it is served again.
  await writer.run({ kind: 'removePeer', peerId: 1 });
  expect(await writer.addPeer(2, address as typeof consumer.address)).toEqual({ status: 'added' });
  await writer.serve(2, 2, inOrder(BLOCKS), inOrder(BLOCKS));
  expect((await writer.serveEnd(2)).status).toBe('done');
  expect((await consumer.census(0, inOrder(BLOCKS), [OLD])).bySalt[OLD]).toBe(BLOCKS * PAGES_PER_BLOCK);
});
