// Fetches that are answered in parts: which blocks a producer writes all the same, and what a consumer takes of it.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { bitmapBytes, countBits, hasBit, packBits, positionsOf } from '../../src/shared/bitmap.js';
import { Outcome } from '../../src/shared/operations.js';
import { scan } from '../../src/main/protocol/scan.js';
import { writeTransferDone } from '../../src/main/protocol/write.js';
import type { ConsumerHarness } from '../fixtures/consumer-harness.js';
import { ConsumerNode, loadedOf } from '../fixtures/consumer-harness.js';
import type { HarnessOptions, ProducerHarness } from '../fixtures/producer-harness.js';
import { packedKeys } from '../fixtures/fake-shards.js';
import { keysOf, NodeHarness } from '../fixtures/producer-harness.js';

const PARTIAL = { isKvpeer: true, features: ['partial_fetch'] } as const;
const CLEAN = { pins: 0, openSets: 0, writing: 0, quarantined: 0, waiting: 0 };

describe('a bitmap', () => {
  it('has the bits of its positions, least significant first, and nothing else', () => {
    expect([...packBits(10, (i) => i === 0 || i === 9)]).toEqual([1, 2]);
    expect(countBits(Uint8Array.of(1, 2), 10)).toBe(2);
    expect(countBits(Uint8Array.of(1, 4), 10)).toBeUndefined();
    expect(countBits(Uint8Array.of(1), 10)).toBeUndefined();
    expect(countBits(Uint8Array.of(1, 2, 0), 10)).toBeUndefined();
    expect(countBits(Uint8Array.of(255), 8)).toBe(8);
  });

  it('says of every list what was put in', () => {
    fc.assert(
      fc.property(fc.array(fc.boolean(), { minLength: 1, maxLength: 70 }), (bits) => {
        const bitmap = packBits(bits.length, (i) => bits[i]);
        expect(bitmap.length).toBe(bitmapBytes(bits.length));
        expect(bits.map((_, i) => hasBit(bitmap, i))).toEqual(bits);
        expect(countBits(bitmap, bits.length)).toBe(bits.filter((bit) => bit).length);
        const positions = [
          ...positionsOf(bitmap, bits.length, true),
          ...positionsOf(bitmap, bits.length, false),
        ];
        expect(positions.sort((a, b) => a - b)).toEqual(bits.map((_, i) => i));
      }),
    );
  });
});

describe('the message', () => {
  it('is read as it was written', () => {
    fc.assert(
      fc.property(
        fc.boolean(),
        fc.option(fc.uint8Array({ maxLength: 300 }), { nil: undefined }),
        fc.option(
          fc.uint8Array({ maxLength: 40 }).map((bytes) => bytes.subarray(0, bytes.length & ~7)),
          { nil: undefined },
        ),
        (success, written, checksums) => {
          const message = scan(writeTransferDone('id', success, 7, { written, checksums }));
          expect(message).toMatchObject({ type: 'transfer_done', success, roundSeq: 7 });
          if (message.type !== 'transfer_done') return;
          expect(message.written && [...message.written]).toEqual(written && [...written]);
          expect(message.checksums && [...message.checksums]).toEqual(checksums && [...checksums]);
        },
      ),
    );
  });

  it.each([
    ['text', 'a177'],
    ['a list', '91c3'],
    ['a number', '07'],
    ['nil', 'c0'],
  ])('with %s in place of the bitmap is one without it', (_, value) => {
    const frame = writeTransferDone('id', false, 7, { written: Uint8Array.of(1) }).toString('hex');
    const changed = Buffer.from(frame.replace('a77772697474656ec40101', `a77772697474656e${value}`), 'hex');
    expect(scan(changed)).toMatchObject({ type: 'transfer_done', success: false, written: undefined });
  });
});

describe('a producer', () => {
  function start(options: HarnessOptions = PARTIAL): { node: NodeHarness; peer: ProducerHarness } {
    const node = new NodeHarness(options);
    return { node, peer: node.session(options) };
  }

  it('writes what the lease holds when a key is not in it, and says which', () => {
    const { node, peer } = start();
    node.put(1, 2, 3);
    peer.lookup('r', 0, 1, 2, 3);
    peer.sent();
    peer.fetch('r', 0, 1, 9, 3);
    expect(peer.serves.map(({ blockCount }) => blockCount)).toEqual([2]);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 false 10100000']);
    expect(node.pins).toBe(0);
  });

  it('says nothing of parts when all was written', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r', 0, 1, 2);
    peer.sent();
    peer.fetch('r', 0, 1, 2);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 true']);
  });

  it('fails the whole fetch for a peer without the extension', () => {
    const { node, peer } = start({ isKvpeer: true });
    node.put(1, 2, 3);
    peer.lookup('r', 0, 1, 2, 3);
    peer.sent();
    peer.fetch('r', 0, 1, 9, 3);
    expect(peer.serves).toEqual([]);
    expect(peer.sent()).toEqual(['transfer_done r#0 false']);
  });

  it('says that nothing was written when the lease holds none of the keys', () => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r', 0, 1);
    peer.sent();
    peer.fetch('r', 0, 8, 9);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 false 00000000']);
    expect(node.pins).toBe(0);
  });

  it('looks again when the lease has lapsed: what is still there is pinned and written', () => {
    const { node, peer } = start();
    node.put(1, 2, 3);
    peer.lookup('r', 0, 1, 2, 3);
    node.advance(30_000);
    expect(node.pins).toBe(0);
    node.evict(2);
    peer.sent();
    peer.fetch('r', 0, 1, 2, 3);
    expect(node.pins).toBe(2);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 false 10100000']);
    expect(node.pins).toBe(0);
  });

  it.each(['WriteFailed', 'Cancelled', 'Stopped', 'WorkerLost'] as const)(
    'fails the whole fetch when its write ends with %s: nobody knows what has landed',
    (outcome) => {
      const { node, peer } = start();
      node.put(1, 2);
      peer.lookup('r', 0, 1, 2);
      peer.sent();
      peer.fetch('r', 0, 1, 9);
      peer.endServe(Outcome[outcome]);
      expect(peer.sent()).toEqual(['transfer_done r#0 false']);
      expect(node.pins).toBe(0);
    },
  );

  it('fails the whole fetch when a destination is given twice', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r', 0, 1, 2);
    peer.sent();
    peer.fetch('r', 0, 1, 9, 9);
    expect(peer.sent()).toEqual(['transfer_done r#0 false']);
    expect(peer.counted.get('rejection bad_destination')).toBe(1);
  });

  it('acknowledges an abort instead, and only when the part that was posted has ended', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r', 0, 1, 2);
    peer.fetch('r', 0, 1, 9);
    peer.sent();
    peer.abort('r', 0);
    expect(peer.sent()).toEqual([]);
    peer.endServe();
    expect(peer.sent()).toEqual(['abort_ack r#0']);
  });

  it('sends the checksums of the written blocks only', () => {
    const { node, peer } = start({ isKvpeer: true, features: ['partial_fetch', 'checksums'] });
    node.put(1, 2, 3);
    peer.lookup('r', 0, 1, 2, 3);
    peer.sent();
    peer.fetch('r', 0, 1, 9, 3);
    peer.endServe();
    const [message] = peer.frames.map((frame) => scan(frame));
    expect(message).toMatchObject({ success: false, written: Buffer.of(0b101), checksums: { length: 16 } });
  });

  describe('whose blocks are still being made', () => {
    it('gives what was stored when the local request ends with fewer', () => {
      const { node, peer } = start();
      node.decoderRequests.open('r');
      node.storeFor('r', 1, 3);
      peer.fetch('r', 0, 1, 2, 3);
      peer.endServe();
      expect(peer.sent()).toEqual([]);
      node.decoderRequests.finish('r');
      node.shards.settle();
      expect(peer.sent()).toEqual(['transfer_done r#0 false 10100000']);
      expect(peer.producer.stats()).toMatchObject({ parkedCount: 0, serveCount: 0 });
    });

    it('waits for what is being written when the local request ends, and counts it', () => {
      const { node, peer } = start();
      node.decoderRequests.open('r');
      node.storeFor('r', 1);
      peer.fetch('r', 0, 1, 2);
      node.decoderRequests.finish('r');
      node.shards.settle();
      expect(peer.sent()).toEqual([]);
      peer.endServe();
      expect(peer.sent()).toEqual(['transfer_done r#0 false 10000000']);
    });

    it('gives what was written when nobody stores the rest in time', () => {
      const { node, peer } = start();
      node.put(1);
      peer.fetch('r', 0, 1, 9);
      peer.endServe();
      node.advance(node.times.unclaimedStoreMs);
      expect(peer.sent()).toEqual(['transfer_done r#0 false 10000000']);
      expect(node.pins).toBe(0);
    });

    it('fails the whole fetch when one of its writes fails', () => {
      const { node, peer } = start();
      node.put(1);
      peer.fetch('r', 0, 1, 9);
      peer.endServe(Outcome.WriteFailed);
      expect(peer.sent()).toEqual(['transfer_done r#0 false']);
    });

    it('fails it for a peer without the extension', () => {
      const { node, peer } = start({ isKvpeer: true });
      node.put(1);
      peer.fetch('r', 0, 1, 9);
      peer.endServe();
      node.advance(node.times.unclaimedStoreMs);
      expect(peer.sent()).toEqual(['transfer_done r#0 false']);
    });
  });
});

describe('a consumer', () => {
  function start(features: HarnessOptions['features'] = PARTIAL.features): {
    node: ConsumerNode;
    peer: ConsumerHarness;
  } {
    const node = new ConsumerNode({ isKvpeer: true });
    return { node, peer: node.session({ isKvpeer: true, features }) };
  }

  it('keeps what was written and gives the slots of the rest back at once', () => {
    const { node, peer } = start();
    const asked = peer.load('r', 1, 2, 3);
    expect(peer.sent()).toEqual(['fetch r#0 (3)']);
    peer.donePartly('r', 0, '101');
    expect(asked.results.map(loadedOf)).toEqual(['101']);
    expect(asked.results[0]).toMatchObject({ loadedCount: 2, pulledCount: 2 });
    expect(node.phases(1, 2, 3)).toEqual(['ready', 'absent', 'ready']);
    expect(peer.counted.get('miss not-held')).toBe(1);
    peer.release(asked);
    expect(node.totals).toMatchObject(CLEAN);
  });

  it('misses every key when nothing was written', () => {
    const { node, peer } = start();
    const asked = peer.load('r', 1, 2, 3);
    peer.donePartly('r', 0, '000');
    expect(asked.results.map(loadedOf)).toEqual(['000']);
    expect(node.phases(1, 2, 3)).toEqual(['absent', 'absent', 'absent']);
    expect(peer.counted.get('miss not-held')).toBe(3);
    peer.release(asked);
    expect(node.totals).toMatchObject(CLEAN);
  });

  it.each([
    ['too short', Uint8Array.of(255)],
    ['too long', Uint8Array.of(255, 1, 0)],
    ['empty', new Uint8Array(0)],
    ['with a bit behind the last key', Uint8Array.of(255, 0b11)],
  ])('takes nothing from a bitmap that is %s', (_, written) => {
    const { node, peer } = start();
    const keys = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    const asked = peer.load('r', ...keys);
    peer.donePartly('r', 0, written);
    expect(asked.results.map(loadedOf)).toEqual(['000000000']);
    expect(node.phases(...keys).every((phase) => phase === 'absent')).toBe(true);
    expect(peer.counted.get('miss load-failed')).toBe(9);
  });

  it('takes nothing from a peer that did not announce the extension', () => {
    const { node, peer } = start([]);
    const asked = peer.load('r', 1, 2);
    peer.donePartly('r', 0, '10');
    expect(asked.results.map(loadedOf)).toEqual(['00']);
    expect(node.phases(1, 2)).toEqual(['absent', 'absent']);
  });

  it('takes nothing without a data plane', () => {
    const node = new ConsumerNode({ isKvpeer: true });
    const peer = node.session({ ...PARTIAL, hasDataPlane: false });
    const asked = peer.load('r', 1, 2);
    peer.donePartly('r', 0, '10');
    expect(asked.results.map(loadedOf)).toEqual(['00']);
  });

  it('reads the bits for the keys of the fetch, not for those that were here or on their way', () => {
    const { node, peer } = start();
    node.shards.put(packedKeys(keysOf(2)));
    const other = node.reserve(4);
    const asked = peer.load('r', 1, 2, 3, 4, 5);
    expect(peer.sent()).toEqual(['fetch r#0 (3)']);
    peer.donePartly('r', 0, '011');
    node.publish(other);
    node.shards.settle();
    expect(asked.results.map(loadedOf)).toEqual(['01111']);
    expect(node.phases(1, 2, 3, 4, 5)).toEqual(['absent', 'ready', 'ready', 'ready', 'ready']);
    peer.release(asked);
    expect(node.totals).toMatchObject(CLEAN);
  });

  it('lets loads that joined an unwritten key miss it at once', () => {
    const { node, peer } = start();
    const first = peer.load('r', 1, 2);
    const second = peer.load('s', 1, 2);
    peer.sent();
    peer.donePartly('r', 0, '10');
    expect(first.results.map(loadedOf)).toEqual(['10']);
    expect(second.results.map(loadedOf)).toEqual(['10']);
    expect(peer.counted.get('miss joined-failed')).toBe(1);
    peer.release(first);
    peer.release(second);
    expect(node.totals).toMatchObject(CLEAN);
  });

  it('publishes the written part of a load that was given up, and frees the rest', () => {
    const { node, peer } = start();
    const asked = peer.load('r', 1, 2);
    peer.finish('r');
    peer.release(asked);
    peer.donePartly('r', 0, '01');
    expect(node.phases(1, 2)).toEqual(['absent', 'ready']);
    expect(node.totals).toMatchObject(CLEAN);
  });

  it('compares the checksums of the written keys, in their order', () => {
    const { node, peer } = start(['partial_fetch', 'checksums']);
    const asked = peer.load('r', 1, 2, 3, 4);
    for (const key of [1, 2, 3, 4])
      node.shards.setContent(node.shards.slotOf(keysOf(key)), new Uint8Array([key]));
    const checksums = new Uint8Array(24);
    // Keys 1, 3 and 4; that of key 3 is another one.
    checksums[0] = 51;
    checksums[8] = 99;
    checksums[16] = 54;
    peer.donePartly('r', 0, '1011', { checksums });
    expect(asked.results.map(loadedOf)).toEqual(['1001']);
    expect(node.phases(1, 2, 3, 4)).toEqual(['ready', 'absent', 'absent', 'ready']);
    expect(peer.counted.get('miss checksum')).toBe(1);
    expect(peer.counted.get('miss not-held')).toBe(1);
    peer.release(asked);
    expect(node.totals).toMatchObject(CLEAN);
  });
});
