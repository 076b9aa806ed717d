// KV events against clients that flood, send garbage or stand still: they are bounded, and nobody else notices.

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';

import { pino } from 'pino';
import { describe, expect, it, onTestFinished } from 'vitest';
import { Context, Dealer } from 'zeromq';

import { Numbering } from '../../src/main/events/numbering.js';
import { EventSockets } from '../../src/main/events/sockets.js';
import type { PeerOptions } from '../../src/main/options.js';
import type { Peer } from '../../src/main/peer.js';
import { packageRoot } from '../../src/shared/nixl-dir.js';
import { EventSubscriber, replayFrom } from '../fixtures/event-subscriber.js';
import { startPeer } from '../fixtures/local-peers.js';

const BLOCK_BYTES = 4096;
const EVENTS = {
  dataPlane: 'none',
  keyBytes: 12,
  kvEventsPort: 0,
  kvEventsReplayPort: 0,
  kvEventsModel: 'm',
  kvEventsPod: '10.0.0.7:8000',
  // The numbering is not to begin again: our subscriber asks for no replay, as a router would.
  kvEventsSettleMs: 3_600_000,
  kvEventsResubscribeMs: 3_600_000,
  kvEventsBufferBatches: 10_000_000,
  kvEventsBufferBytes: 4 * 1024 ** 3,
} as const satisfies PeerOptions;

function keyOf(id: number): Buffer {
  const key = Buffer.alloc(12);
  key.writeUInt32BE(id, 4);
  return key;
}

/** One batch for the block's arrival, one for its departure. */
async function comeAndGo(peer: Peer, id: number, tokens = 4): Promise<void> {
  const tokenIds = Uint32Array.from({ length: tokens }, (_, i) => i);
  peer.describe(keyOf(id), { tokenIds, tokensPerBlock: tokens });
  await peer.store(keyOf(id), new Uint8Array(BLOCK_BYTES));
  await nextTurn();
  await peer.evict(keyOf(id));
  await nextTurn();
}

async function startedPeer(options: PeerOptions = {}): Promise<{
  readonly peer: Peer;
  readonly port: number;
  readonly replayPort: number;
  readonly subscriber: EventSubscriber;
}> {
  const peer = await startPeer({ ...EVENTS, ...options });
  const { port = 0, replayPort = 0 } = peer.kvEvents ?? {};
  const subscriber = new EventSubscriber(port);
  onTestFinished(() => subscriber.close());
  for (let id = 1; subscriber.messages.length === 0; id += 1) await comeAndGo(peer, id);
  return { peer, port, replayPort, subscriber };
}

async function metric(peer: Peer, name: string): Promise<number> {
  const text = await peer.metrics.metrics();
  return Number(new RegExp(`^${name} (\\d+)$`, 'm').exec(text)?.[1]);
}

/** A process with a ZeroMQ socket; it prints a line when it is there. */
async function child(script: string): Promise<ChildProcess> {
  const started = spawn(process.execPath, ['-e', script], {
    cwd: packageRoot,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  onTestFinished(() => {
    started.kill('SIGKILL');
  });
  await once(started.stdout, 'data');
  return started;
}

/** No number is missing from the first message on. */
function expectNoGap(subscriber: EventSubscriber): void {
  const numbers = subscriber.messages.map(({ sequence }) => Number(sequence));
  expect(numbers).toEqual(numbers.map((_, i) => numbers[0] + i));
}

async function expectAllArrived(peer: Peer, subscriber: EventSubscriber): Promise<void> {
  const { batches } = { batches: await metric(peer, 'kvpeer_kv_events_batches_total') };
  await subscriber.until((messages) => Number(messages[messages.length - 1].sequence) === batches - 1);
  expectNoGap(subscriber);
}

describe('KV events', () => {
  it('answer other clients while one floods the replay port with requests and garbage', async () => {
    const { peer, replayPort, subscriber } = await startedPeer();
    const flood = new Dealer({ context: new Context(), linger: 0, sendHighWaterMark: 0 });
    onTestFinished(() => {
      flood.close();
    });
    flood.connect(`tcp://127.0.0.1:${replayPort}`);
    /** Whole requests, one in five; each of the others is refused for its form. */
    const garbage = [
      ['', Buffer.alloc(8)],
      ['', Buffer.alloc(7)],
      [Buffer.alloc(1000, 0xff)],
      ['', '', Buffer.alloc(8), Buffer.alloc(8)],
      [''],
    ];
    const startedMs = performance.now();
    let sentCount = 0;
    const sendSome = async (): Promise<void> => {
      for (let i = 0; i < 100; i += 1) await flood.send(garbage[sentCount++ % garbage.length]);
    };
    while (sentCount < 10_000) await sendSome();
    // It goes on until the others have their answers.
    let isFlooding = true;
    const flooding = (async (): Promise<void> => {
      while (isFlooding) {
        await sendSome();
        await nextTurn();
      }
    })();
    const replayed = await replayFrom(replayPort, 0);
    await comeAndGo(peer, 1_000_000);
    isFlooding = false;
    await flooding;
    expect(replayed.length).toBeGreaterThan(1);
    const answered = (): Promise<number> => metric(peer, 'kvpeer_kv_events_replays_total');
    const refused = (): Promise<number> => metric(peer, 'kvpeer_kv_events_refused_replays_total');
    await expect
      .poll(async () => (await refused()) + (await answered()), { timeout: 20_000 })
      .toBe(sentCount + 1);
    // A burst of 8 and then one a second for the flood, one for the other client.
    const seconds = (performance.now() - startedMs) / 1000;
    expect(await answered()).toBeLessThanOrEqual(8 + seconds + 1);
    await expectAllArrived(peer, subscriber);
  });

  it('survive connections that are no ZeroMQ, and frames beyond the limit', async () => {
    const { peer, port, replayPort, subscriber } = await startedPeer();
    for (const at of [port, replayPort]) {
      for (const bytes of [
        Buffer.from('GET / HTTP/1.1\r\n\r\n'),
        Buffer.alloc(4096, 0xff),
        Buffer.alloc(0),
      ]) {
        const socket = connect(at, '127.0.0.1');
        onTestFinished(() => {
          socket.destroy();
        });
        socket.on('error', () => undefined);
        await once(socket, 'connect');
        socket.end(bytes);
      }
    }
    const large = new Dealer({ context: new Context(), linger: 0 });
    onTestFinished(() => {
      large.close();
    });
    large.connect(`tcp://127.0.0.1:${replayPort}`);
    await large.send(['', Buffer.alloc(1 << 20)]);
    await comeAndGo(peer, 1_000_000);
    expect((await replayFrom(replayPort, 0)).length).toBeGreaterThan(1);
    await expectAllArrived(peer, subscriber);
  });

  it('reach every other subscriber while one stands still, and it has what it missed by a replay when it goes on', async () => {
    const { peer, port, replayPort, subscriber } = await startedPeer();
    const frozen = await child(`
      const { Subscriber } = require('zeromq');
      const socket = new Subscriber({ receiveHighWaterMark: 1 });
      socket.connect('tcp://127.0.0.1:${port}');
      socket.subscribe('kv@');
      (async () => { for await (const frames of socket) process.stdout.write(frames[1].readBigUInt64BE() + '\\n'); })();
      setInterval(() => undefined, 1000);
      process.stdout.write('ready\\n');
    `);
    // It has its subscription when it has got something.
    let heard = false;
    frozen.stdout?.on('data', () => (heard = true));
    while (!heard) await comeAndGo(peer, 3);
    frozen.kill('SIGSTOP');
    const before = process.memoryUsage().rss;
    for (let id = 10; id < 310; id += 1) await comeAndGo(peer, id, 4096);
    await expectAllArrived(peer, subscriber);
    // What waits for it are the same buffers that replays are answered from: about 12 KB a batch, once.
    expect(process.memoryUsage().rss - before).toBeLessThan(64 << 20);
    const replayed = await replayFrom(replayPort, 0);
    expect(replayed).toHaveLength(await metric(peer, 'kvpeer_kv_events_batches_total'));
    frozen.kill('SIGCONT');
    const last = BigInt(replayed.length - 1);
    let text = '';
    frozen.stdout?.on('data', (data: Buffer) => (text += data.toString()));
    await expect.poll(() => text.includes(`${last}\n`), { timeout: 20_000 }).toBe(true);
  });

  it('do not heap up replays for a client that stands still', async () => {
    const { peer, replayPort, subscriber } = await startedPeer();
    // 600 batches of 12 KB: more than the queues of a connection hold.
    for (let id = 10; id < 310; id += 1) await comeAndGo(peer, id, 4096);
    const frozen = await child(`
      const { Dealer } = require('zeromq');
      const socket = new Dealer({ receiveHighWaterMark: 1, receiveTimeout: 0 });
      socket.connect('tcp://127.0.0.1:${replayPort}');
      (async () => {
        for (let i = 0; i < 200; i += 1) await socket.send(['', Buffer.alloc(8)]);
        setInterval(() => undefined, 1000);
        process.stdout.write('sent\\n');
      })();
    `);
    // All of its requests are here before it stands still; it reads no answer.
    const requests = async (): Promise<number> =>
      (await metric(peer, 'kvpeer_kv_events_refused_replays_total')) +
      (await metric(peer, 'kvpeer_kv_events_replays_total'));
    await expect.poll(requests, { timeout: 20_000 }).toBe(200);
    frozen.kill('SIGSTOP');
    expect(await metric(peer, 'kvpeer_kv_events_replays_total')).toBeLessThan(100);
    for (let i = 0; i < 3; i += 1) expect((await replayFrom(replayPort, 0)).length).toBeGreaterThan(600);
    await comeAndGo(peer, 5);
    await expectAllArrived(peer, subscriber);
  });

  it('that a subscriber misses, because it stood still too long, are a gap that it sees and a replay fills', async () => {
    const numbering = new Numbering({ batches: 1e6, bytes: 1e12 });
    const sockets = new EventSockets({
      host: '127.0.0.1',
      port: 0,
      replayPort: 0,
      topic: 'kv@10.0.0.7:8000@m',
      log: pino({ level: 'silent' }),
      onSubscribed: () => undefined,
      replay: (from) => numbering.from(from),
    });
    onTestFinished(() => sockets.close());
    const { port, replayPort = 0 } = await sockets.bind();
    const frozen = await child(`
      const { Subscriber } = require('zeromq');
      const socket = new Subscriber({ receiveHighWaterMark: 1 });
      socket.connect('tcp://127.0.0.1:${port}');
      socket.subscribe('kv@');
      process.stdout.write('ready\\n');
      let last = -1n;
      (async () => {
        for await (const [, number] of socket) {
          const sequence = number.readBigUInt64BE();
          if (last >= 0n && sequence !== last + 1n) process.stdout.write('gap ' + last + ' ' + sequence + '\\n');
          if (last < 0n) process.stdout.write('heard\\n');
          last = sequence;
        }
      })();
    `);
    let text = '';
    frozen.stdout?.on('data', (data: Buffer) => (text += data.toString()));
    const publish = (): void => {
      sockets.publish(numbering.append(Buffer.alloc(1024)));
    };
    while (!text.includes('heard')) {
      publish();
      await nextTurn();
    }
    frozen.kill('SIGSTOP');
    // What the kernel's buffers hold is a few thousand of these; 10,000 wait here; the rest is lost to it.
    for (let i = 0; i < 40_000; i += 1) {
      publish();
      if (i % 100 === 0) await nextTurn();
    }
    frozen.kill('SIGCONT');
    while (!text.includes('gap')) {
      publish();
      await nextTurn();
    }
    const [, last, next] = /gap (\d+) (\d+)/.exec(text)?.map(Number) ?? [];
    const filled = await replayFrom(replayPort, last + 1);
    expect(next).toBeGreaterThan(last + 1);
    expect(filled.slice(0, next - last).map(({ sequence }) => Number(sequence))).toEqual(
      Array.from({ length: next - last }, (_, i) => last + 1 + i),
    );
  });
});
