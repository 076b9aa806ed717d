// The native sockets by themselves: what arrives, what is kept, what an answer looks like on the wire, and matches that
// read their keys out of a message.

import { randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { afterEach, expect, test } from 'vitest';
import 'zeromq';
import { unpackMatch } from '../../native/index.js';
import {
  loadZmq,
  ReceivedField,
  ReceivedKind,
  SendResult,
  type ContextHandle,
  type DealerHandle,
  type MessageToken,
  type ReceiverHandle,
} from '../../native/zmq.js';
import { HIT, MISS } from '../../src/main/protocol/messages.js';
import { writeLookup, writeNumberedAnswer } from '../../src/main/protocol/write.js';
import { ExtentFlag, ExtentWord, PositionStatus } from '../../src/shared/operations.js';
import { Phase } from '../../src/shared/slot-state.js';
import { SharedPool, keyOf } from '../helpers/shared-pool.js';
import { until } from './support/control.js';

const KEY_BYTES = 36;
const zmq = loadZmq();

interface Received {
  readonly kind: number;
  readonly content: Buffer | string | undefined;
  readonly fields: Float64Array;
  readonly from: string;
}

/** One receiver, and a dealer that sends to it. */
class Pair {
  readonly received: Received[] = [];
  readonly dealer: DealerHandle;
  private readonly context: ContextHandle = zmq.createContext();
  private readonly receiver: ReceiverHandle;
  private readonly fields = new Float64Array(ReceivedField.Count);

  constructor() {
    const { handle } = zmq.createReceiver(this.context, this.takeAll, {
      maxMessageBytes: 1 << 23,
      keyBytes: KEY_BYTES,
      maxKeys: 10_000,
      maxIdBytes: 512,
      notice: randomBytes(32),
    });
    this.receiver = handle;
    const endpoint = zmq.bindReceiver(handle, 'tcp://127.0.0.1:*', false);
    this.dealer = zmq.createDealer(this.context, () => undefined, {
      routingId: '127.0.0.1:7000',
      heartbeatMs: 1_000,
      heartbeatTimeoutMs: 5_000,
      sendHighWaterMark: 10_000,
      maxInboundBytes: 1_024,
      ipv6: false,
    });
    zmq.connectDealer(this.dealer, endpoint);
  }

  async next(count = 1): Promise<Received[]> {
    await until(() => this.received.length >= count, 'what was sent');
    return this.received.splice(0, count);
  }

  close(): void {
    zmq.closeDealer(this.dealer);
    zmq.closeReceiver(this.receiver);
    zmq.closeContext(this.context);
  }

  private readonly takeAll = (): void => {
    for (;;) {
      const content = zmq.receive(this.receiver, this.fields);
      const kind = this.fields[ReceivedField.Kind];
      if (kind === ReceivedKind.None) return;
      const from = zmq.receivedFrom(this.receiver);
      this.received.push({ kind, content, fields: this.fields.slice(), from });
    }
  };
}

let open: Pair | undefined;

function pair(): Pair {
  open = new Pair();
  return open;
}

afterEach(() => {
  open?.close();
  open = undefined;
  expect(zmq.keptMessageCount()).toBe(0);
});

test('an answer has the bytes of the writer in JavaScript, whatever its numbers and lengths', async () => {
  const sockets = pair();
  const { dealer } = sockets;
  const number = fc.oneof(
    fc.integer({ min: 0, max: 300 }),
    fc.integer({ min: 65_530, max: 65_540 }),
    fc.integer({ min: 2 ** 32 - 3, max: 2 ** 32 + 3 }),
    fc.maxSafeNat(),
  );
  const hits = fc.oneof(
    fc.array(fc.constantFrom(HIT, MISS), { maxLength: 40 }),
    fc.integer({ min: 65_530, max: 65_540 }).map((length) => new Array<number>(length).fill(HIT)),
  );
  await fc.assert(
    fc.asyncProperty(
      fc.string({ unit: 'grapheme', maxLength: 300 }),
      hits,
      number,
      number,
      async (kvRequestId, flags, roundSeq, lookupSeq) => {
        const answer = { kvRequestId, hits: Uint8Array.from(flags), roundSeq, lookupSeq };
        expect(zmq.sendAnswer(dealer, kvRequestId, answer.hits, roundSeq, lookupSeq)).toBe(SendResult.Sent);
        const [{ content }] = await sockets.next();
        expect(writeNumberedAnswer(answer).equals(content as Buffer)).toBe(true);
      },
    ),
    { numRuns: 60 },
  );
});

test('a lookup is kept until it is dropped, and a view of it lives longer', async () => {
  const sockets = pair();
  const { dealer } = sockets;
  const packed = randomBytes(1_000 * KEY_BYTES);
  const frame = writeLookup('kept', packed, KEY_BYTES, 7, { lookupSeq: 9 });
  zmq.sendDealer(dealer, frame);
  const [{ kind, content, fields, from }] = await sockets.next();
  expect([kind, content, from]).toEqual([ReceivedKind.Lookup, 'kept', '127.0.0.1:7000']);
  expect(fields[ReceivedField.KeyCount]).toBe(1_000);
  expect(zmq.keptMessageCount()).toBe(1);
  const token = fields[ReceivedField.Token] as MessageToken;
  const view = zmq.messageBytes(token);
  zmq.dropMessage(token);
  expect(() => zmq.messageBytes(token)).toThrow('no such message');
  expect(view.equals(frame)).toBe(true);
});

test.each(['list', 'packed'])(
  'a match reads a %s of keys out of the message as out of the extent',
  async (form) => {
    const sockets = pair();
    const { dealer } = sockets;
    const pool = new SharedPool({ numBlocks: 4_096, keyBytes: KEY_BYTES, arenaBytes: 1 << 20 });
    const keys = Array.from({ length: 700 }, (_, i) => keyOf(i, KEY_BYTES));
    keys.forEach((key, i) => {
      if (i % 3 !== 0) pool.insert(key, i % 3 === 1 ? Phase.Ready : Phase.Writing, 5);
    });
    zmq.sendDealer(
      dealer,
      writeLookup('match', Buffer.concat(keys), KEY_BYTES, 0, { isPacked: form === 'packed' }),
    );
    const [{ fields }] = await sockets.next();
    const token = fields[ReceivedField.Token] as MessageToken;
    const there = pool.extent({ keys, flags: ExtentFlag.Pin });
    const here = pool.extent({ keys, flags: ExtentFlag.Pin | ExtentFlag.KeysInMessage });
    const place = (word: number, value: number): void => {
      here.words[word] = value;
    };
    place(ExtentWord.PeerNumBlocks, token);
    place(ExtentWord.KeysOffset, fields[ReceivedField.First]);
    place(ExtentWord.KeyStride, fields[ReceivedField.Stride]);
    const match = (offset: number): ReturnType<typeof unpackMatch> =>
      unpackMatch(pool.native.match(pool.controlHandle, offset, 0, -1, -1, -1));
    expect(match(here.offset)).toEqual(match(there.offset));
    expect([...here.statuses]).toEqual([...there.statuses]);
    expect([...here.slots]).toEqual([...there.slots]);
    expect(here.statuses.filter((status) => status === PositionStatus.Pinned)).toHaveLength(233);
    // What does not lie inside the message is refused, and so is everything that has no business with messages.
    for (const [word, value] of [
      [ExtentWord.KeysOffset, fields[ReceivedField.Bytes] - 1],
      [ExtentWord.KeysOffset, -1],
      [ExtentWord.KeyStride, KEY_BYTES - 1],
      [ExtentWord.KeyStride, fields[ReceivedField.Stride] + 1],
      [ExtentWord.PeerNumBlocks, 0],
      [ExtentWord.PeerNumBlocks, token + 1],
    ]) {
      const before = here.words[word];
      place(word, value);
      expect(() => match(here.offset), `word ${word} = ${value}`).toThrow(RangeError);
      place(word, before);
    }
    expect(() => pool.native.resolve(pool.controlHandle, here.offset)).toThrow('in a message');
    expect(() => {
      pool.native.hashKeys(pool.controlHandle, here.offset, 0, 1, 0);
    }).toThrow('in a message');
    zmq.dropMessage(token);
    expect(() => match(here.offset)).toThrow('not kept');
  },
);

test('a context with sockets is not closed, and handles mean nothing once they are', () => {
  const context = zmq.createContext();
  const { handle } = zmq.createReceiver(context, () => undefined, {
    maxMessageBytes: 1_000,
    keyBytes: KEY_BYTES,
    maxKeys: 10,
    maxIdBytes: 10,
    notice: randomBytes(32),
  });
  expect(() => {
    zmq.closeContext(context);
  }).toThrow('still has sockets');
  zmq.closeReceiver(handle);
  zmq.closeContext(context);
  expect(() => {
    zmq.closeReceiver(handle);
  }).toThrow('no such receiver');
  expect(() => {
    zmq.closeContext(context);
  }).toThrow('no such context');
});

test('the handle of a closed object names nothing, whatever is made after it', () => {
  const context = zmq.createContext();
  const make = (): DealerHandle =>
    zmq.createDealer(context, () => undefined, {
      routingId: '127.0.0.1:7000',
      heartbeatMs: 1_000,
      heartbeatTimeoutMs: 5_000,
      sendHighWaterMark: 10,
      maxInboundBytes: 1_024,
      ipv6: false,
    });
  const first = make();
  zmq.closeDealer(first);
  // One of them gets the memory of the first.
  const later = Array.from({ length: 50 }, make);
  expect(() => zmq.sendDealer(first, randomBytes(1))).toThrow('no such dealer');
  for (const dealer of later) zmq.closeDealer(dealer);
  zmq.closeContext(context);
});
