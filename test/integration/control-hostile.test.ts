// The control transport over real ZeroMQ: strangers, floods, silence, and what must not bring a node down.

import { spawn, type ChildProcess } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { Router } from 'zeromq';
import { afterEach, describe, expect, test } from 'vitest';
import { ControlBench, QUICK, text, until } from './support/control.js';

const bench = new ControlBench();
const children: ChildProcess[] = [];
afterEach(async () => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
  await bench.closeAll();
});

/** A process of its own that runs a few lines with zeromq at hand; resolves with the first line it prints. */
async function child(lines: string): Promise<{ process: ChildProcess; said: string }> {
  const zeromq = createRequire(import.meta.url).resolve('zeromq');
  const script = `const { Router, Dealer } = require(${JSON.stringify(zeromq)}); (async () => { ${lines} })();`;
  const process_ = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
  children.push(process_);
  const said = await new Promise<string>((resolve) => {
    process_.stdout.once('data', (data: Buffer) => {
      resolve(data.toString().trim());
    });
  });
  return { process: process_, said };
}

describe('number A: identities that nobody could call back', () => {
  test.each([
    ['identity-without-port', Buffer.from('nocolon')],
    ['identity-bad-port', Buffer.from('127.0.0.1:notaport')],
    ['identity-not-utf8', Buffer.from('ff3a35373130', 'hex')],
    ['port 0', Buffer.from('127.0.0.1:0')],
    ['a wildcard', Buffer.from('0.0.0.0:5710')],
    ['number K: an IPv6 literal without brackets', Buffer.from('::1:5710')],
    ['no host name', Buffer.from('a b/c:5710')],
  ])('%s is counted, and the next peer is heard', async (_, identity) => {
    const node = await bench.bound();
    const bad = bench.raw(node, identity);
    for (let i = 0; i < 60; i++) await bad.send('frame');
    await bench.raw(node, '127.0.0.1:7100').send('good');
    await until(() => node.messages.length === 1 && node.rejected.length === 60, 'all frames');
    expect(node.messages[0].from).toBe('127.0.0.1:7100');
    expect(new Set(node.rejected.map(({ reason }) => reason))).toEqual(new Set(['bad_identity']));
    bad.close();
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect([node.gone, node.rejected.length]).toEqual([[], 60]);
  });

  test('an anonymous sender is counted', async () => {
    const node = await bench.bound();
    await bench.raw(node).send('frame');
    await until(() => node.rejected.length === 1, 'the frame');
    expect(node.rejected[0]).toMatchObject({ reason: 'bad_identity' });
    expect(node.rejected[0].detail).toMatch(/^identity 0x00[0-9a-f]{8}: /);
  });
});

test('a message of several parts is counted and dropped', async () => {
  const node = await bench.bound();
  const sender = bench.raw(node, '127.0.0.1:7101');
  await sender.send(['one', 'two']);
  await sender.send('whole');
  await until(() => node.messages.length === 1, 'the whole frame');
  expect(node.rejected).toEqual([{ reason: 'frame_count', detail: '2 parts from 127.0.0.1:7101' }]);
});

test('what waits behind a message whose handler throws is heard, without anything new coming', async () => {
  const thrown: unknown[] = [];
  const aroundReceive = (receive: () => void): void => {
    try {
      receive();
    } catch (error) {
      thrown.push(error);
    }
  };
  const node = await bench.bound({}, { aroundReceive });
  node.onMessage = (_, payload) => {
    if (payload.toString() === 'bad') throw new Error('not understood');
  };
  const sender = bench.raw(node, '127.0.0.1:7104');
  for (let i = 0; i < 200; i++) await sender.send(i % 10 === 0 ? 'bad' : 'good');
  await until(() => node.messages.length === 200, 'all frames');
  expect(thrown).toHaveLength(20);
});

test('number E: a frame beyond the limit ends its connection, and reaches nobody', async () => {
  const node = await bench.bound({ maxFrameBytes: 10_000 });
  const sender = bench.raw(node, '127.0.0.1:7102', { reconnectInterval: -1 });
  await sender.send(Buffer.alloc(10_000));
  await sender.send(Buffer.alloc(10_001));
  await until(() => node.gone.length === 1, 'the cut');
  expect(node.messages.map(({ payload }) => payload.length)).toEqual([10_000]);
  await bench.raw(node, '127.0.0.1:7103').send('other');
  await until(() => node.messages.length === 2, 'the other peer');
});

test('number 18, many-identities-exhaust-sockets: 400 identities open no socket on this side', async () => {
  const node = await bench.bound();
  const descriptors = (): number => readdirSync('/proc/self/fd').length;
  for (let i = 0; i < 400; i++) {
    const stranger = bench.raw(node, `127.0.0.1:${8_000 + i}`);
    await stranger.send('connect');
    await until(() => node.messages.length === i + 1, 'the frame');
    stranger.close();
  }
  expect(node.transport.socketCount).toBe(1);
  const before = descriptors();
  await until(() => node.gone.length === 400, 'the end of all connections');
  await until(() => descriptors() <= before, 'the descriptors to go');
  expect(node.rejected).toEqual([]);
});

test('a remote that sends on the connection that only we send on is cut off', async () => {
  const node = await bench.bound();
  const router = new Router({ context: bench.context, linger: 0 });
  await router.bind('tcp://127.0.0.1:0');
  const { handle, downs } = bench.dealer(node, String(router.lastEndpoint).replace('tcp://', ''));
  handle.send(Buffer.from('connect'));
  const [identity] = await router.receive();
  expect(identity.toString()).toBe(node.transport.localAddress);
  for (let i = 0; i < 2_000; i++) await router.send([identity, 'surprise']);
  await until(() => downs.length === 1, 'the cut');
  expect(downs).toEqual(['unexpected-frame']);
  router.close();
});

test('a connection that was taken over, goes on sending and is then reset does not abort the process', async () => {
  // With heartbeats on the ROUTER this ends in "Assertion failed: !_io_error" within one heartbeat.
  const node = await bench.bound();
  const fast = { heartbeatInterval: 50, heartbeatTimeout: 200, heartbeatTimeToLive: 200 };
  for (let i = 0; i < 3; i++) {
    const old = bench.raw(node, '127.0.0.1:7104', fast);
    await old.send('old');
    await until(
      () => text(node.messages).filter((message) => message === 'old').length === i + 1,
      'the old frame',
    );
    const young = bench.raw(node, '127.0.0.1:7104', fast);
    await young.send('young');
    await until(
      () => text(node.messages).filter((message) => message === 'young').length === i + 1,
      'the new frame',
    );
    await old.send('from the grave');
    await new Promise((resolve) => setTimeout(resolve, 60));
    old.close();
    young.close();
    await new Promise((resolve) => setTimeout(resolve, 400));
  }
  await bench.raw(node, '127.0.0.1:7105').send('alive');
  await until(() => text(node.messages).includes('alive'), 'a later frame');
});

describe('silence', () => {
  test('number 13: a frozen remote is noticed by our DEALER', async () => {
    const node = await bench.bound(QUICK);
    const remote = await child(
      `const r = new Router(); await r.bind('tcp://127.0.0.1:0'); console.log(r.lastEndpoint); for await (const f of r);`,
    );
    const { handle, downs } = bench.dealer(node, remote.said.replace('tcp://', ''));
    handle.send(Buffer.from('connect'));
    await until(() => handle.isConnected, 'the handshake');
    // Heartbeats are answered: more than the time-out passes in peace.
    await new Promise((resolve) => setTimeout(resolve, 2_000));
    expect(downs).toEqual([]);
    remote.process.kill('SIGSTOP');
    await until(() => downs.length === 1, 'the news');
    expect(downs).toEqual(['disconnected']);
  });

  test('a frozen remote is noticed by our ROUTER, by the time-to-live of its own heartbeats', async () => {
    const node = await bench.bound();
    const remote = await child(
      `globalThis.d = new Dealer({ routingId: '127.0.0.1:7106', heartbeatInterval: 250, heartbeatTimeout: 1500, heartbeatTimeToLive: 1500 });
       d.connect('tcp://${node.transport.localAddress}'); await d.send('connect'); console.log('sent'); setInterval(() => 0, 1000);`,
    );
    await until(() => node.messages.length === 1, 'the frame');
    await new Promise((resolve) => setTimeout(resolve, 2_000));
    expect(node.gone).toEqual([]);
    remote.process.kill('SIGSTOP');
    await until(() => node.gone.length === 1, 'the news');
    expect(node.gone).toEqual(['127.0.0.1:7106']);
  });

  test('a killed remote is noticed without heartbeats', async () => {
    const node = await bench.bound();
    const remote = await child(
      `globalThis.d = new Dealer({ routingId: '127.0.0.1:7107' });
       d.connect('tcp://${node.transport.localAddress}'); await d.send('connect'); console.log('sent'); setInterval(() => 0, 1000);`,
    );
    await until(() => node.messages.length === 1, 'the frame');
    remote.process.kill('SIGKILL');
    await until(() => node.gone.length === 1, 'the news');
  });
});

test('a closed transport leaves no handle that keeps a process alive', async () => {
  const a = await bench.bound();
  const b = await bench.bound();
  let sentCount = 0;
  const dialSendClose = async (): Promise<void> => {
    const { handle } = bench.dealer(a, b.transport.localAddress);
    handle.send(Buffer.from('x'));
    sentCount++;
    await until(() => b.messages.length === sentCount, 'the frame');
    await handle.close();
  };
  // libzmq makes the descriptors of its threads with the first connection, and keeps them.
  await dialSendClose();
  const descriptors = readdirSync('/proc/self/fd').length;
  const resources = process.getActiveResourcesInfo().length;
  for (let i = 0; i < 20; i++) await dialSendClose();
  expect([a.transport.socketCount, b.transport.socketCount]).toEqual([1, 1]);
  await until(() => readdirSync('/proc/self/fd').length <= descriptors, 'the descriptors to go');
  await until(() => process.getActiveResourcesInfo().length <= resources, 'the resources to go');
});

test("500 peers are dialled at the same time: libzmq's default of 1,023 sockets would end at 340", async () => {
  const node = await bench.bound();
  const silent = await bench.bound();
  const port = Number(silent.transport.localAddress.split(':')[1]);
  const dealers = Array.from({ length: 500 }, (_, i) =>
    bench.dealer(node, `127.0.${Math.floor(i / 250)}.${(i % 250) + 1}:${port}`),
  );
  // Nothing listens at most of these addresses; what counts is that each got its socket.
  await until(() => dealers.every(({ downs, connects }) => downs.length + connects.length > 0), 'all dials');
  expect(new Set(dealers.flatMap(({ downs }) => downs))).toEqual(new Set(['refused']));
});

test('a burst of messages that take long to handle leaves the event loop its turns', async () => {
  const node = await bench.bound();
  let handledCount = 0;
  let longestRun = 0;
  let run = 0;
  const timer = setInterval(() => {
    run = 0;
  }, 1);
  node.onMessage = () => {
    handledCount++;
    longestRun = Math.max(longestRun, ++run);
    const endMs = performance.now() + 3;
    while (performance.now() < endMs);
  };
  const sender = bench.raw(node, '127.0.0.1:7104');
  for (let i = 0; i < 100; i++) await sender.send('a long list');
  await until(() => handledCount === 100, 'all messages');
  clearInterval(timer);
  expect(longestRun).toBeLessThan(20);
});
