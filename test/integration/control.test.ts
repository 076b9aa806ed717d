// The control transport over real ZeroMQ: what peers that behave rely on.

import { createServer, type AddressInfo } from 'node:net';
import { networkInterfaces } from 'node:os';
import { Router } from 'zeromq';
import { afterEach, describe, expect, test } from 'vitest';
import { createControlTransport } from '../../src/main/control/zeromq-transport.js';
import { freePort } from '../helpers/free-port.js';
import { ControlBench, PATIENT, text, until } from './support/control.js';

const bench = new ControlBench();
afterEach(() => bench.closeAll());

const ignore = {
  onMessage: () => undefined,
  onRead: () => undefined,
  onPeerGone: () => undefined,
  onRejected: () => undefined,
};

describe('two transports', () => {
  test('exchange frames, each known to the other by its advertised address', async () => {
    const a = await bench.bound();
    const b = await bench.bound();
    const toB = bench.dealer(a, b.transport.localAddress);
    expect(toB.handle.send(Buffer.from('hello'))).toBe(true);
    await until(() => b.messages.length === 1, 'the first frame');
    expect(b.messages[0].from).toBe(a.transport.localAddress);
    const toA = bench.dealer(b, b.messages[0].from);
    toA.handle.send(Buffer.from('hello yourself'));
    await until(() => a.messages.length === 1, 'the answer');
    expect(text(a.messages)).toEqual(['hello yourself']);
    expect(a.messages[0].from).toBe(b.transport.localAddress);
    await until(() => toB.handle.isConnected && toA.handle.isConnected, 'both handshakes');
    expect([toB.connects.length, toB.downs, toA.downs]).toEqual([1, [], []]);
  });

  test('a burst of 20,000 frames arrives whole and in order, small and large mixed', async () => {
    const a = await bench.bound();
    const b = await bench.bound();
    const { handle } = bench.dealer(a, b.transport.localAddress);
    const count = 20_000;
    for (let i = 0; i < count;) {
      const frame = Buffer.alloc(i % 100 === 0 ? 20_000 : 8);
      frame.writeUInt32LE(i);
      if (handle.send(frame)) i++;
      else await new Promise((resolve) => setImmediate(resolve));
    }
    await until(() => b.messages.length === count, 'all frames');
    expect(b.messages.every(({ payload }, i) => payload.readUInt32LE() === i)).toBe(true);
    expect([handle.queuedFrames, handle.queuedBytes]).toEqual([0, 0]);
  });

  test('a frame leaves by itself, in whatever microtask after an earlier one it is sent', async () => {
    const a = await bench.bound();
    const b = await bench.bound();
    const { handle } = bench.dealer(a, b.transport.localAddress);
    await until(() => handle.isConnected, 'the handshake');
    for (let microtasks = 0; microtasks < 12; microtasks++) {
      const before = b.messages.length;
      handle.send(Buffer.from('earlier'));
      for (let i = 0; i < microtasks; i++) await Promise.resolve();
      handle.send(Buffer.from('later'));
      await until(() => b.messages.length === before + 2, `both, ${microtasks} microtasks apart`);
    }
  });

  test('what was sent just before close() still arrives', async () => {
    const a = await bench.bound();
    const b = await bench.bound();
    const { handle, downs } = bench.dealer(a, b.transport.localAddress);
    handle.send(Buffer.from('connect'));
    await until(() => handle.isConnected, 'the handshake');
    handle.send(Buffer.alloc(1_000_000, 1));
    handle.send(Buffer.from('disconnect'));
    const closed = handle.close();
    expect(handle.send(Buffer.from('too late'))).toBe(false);
    await closed;
    await until(() => b.messages.length === 3, 'the last frames');
    expect(b.messages[2].payload.toString()).toBe('disconnect');
    await until(() => b.gone.length === 1, 'the end of the connection');
    expect(b.gone).toEqual([a.transport.localAddress]);
    expect(downs).toEqual([]);
  });

  test('number 1: ten times dead and reconnected, the first frame is delivered each time and no socket is left', async () => {
    const b = await bench.bound();
    for (let cycle = 0; cycle < 10; cycle++) {
      const a = await bench.bound({ bindPort: 0, advertisePort: 7_000 });
      const { handle } = bench.dealer(a, b.transport.localAddress);
      handle.send(Buffer.from(`cycle ${cycle}`));
      await until(() => b.messages.length === cycle + 1, `the frame of cycle ${cycle}`);
      // In odd cycles the old connection is still up when the next one comes.
      if (cycle % 2 === 0) await a.transport.close();
      expect(b.messages[cycle]).toMatchObject({ from: '127.0.0.1:7000' });
    }
    expect(text(b.messages)).toEqual(Array.from({ length: 10 }, (_, i) => `cycle ${i}`));
    expect(b.transport.socketCount).toBe(1);
  });

  test('number B, restarted-peer-is-mute: a second connection with a live identity takes over at once', async () => {
    const b = await bench.bound();
    const old = bench.raw(b, '127.0.0.1:7001');
    await old.send('old');
    await until(() => b.messages.length === 1, 'the old frame');
    for (let restart = 0; restart < 5; restart++) {
      const young = bench.raw(b, '127.0.0.1:7001');
      await young.send(`young ${restart}`);
      await until(() => b.messages.length === restart + 2, 'the new frame');
    }
    expect(b.messages.every(({ from }) => from === '127.0.0.1:7001')).toBe(true);
    old.close();
    await new Promise((resolve) => setTimeout(resolve, 50));
    // The end of a connection that was taken over is no news of the one that took over.
    expect(b.gone).toEqual([]);
  });
});

test('number B: closed and opened again at once, 30 times, a ROUTER without handover hears every first frame', async () => {
  const vllm = new Router({ context: bench.context, linger: 0 });
  await vllm.bind('tcp://127.0.0.1:0');
  const a = await bench.bound();
  for (let i = 0; i < 30; i++) {
    const { handle } = bench.dealer(a, String(vllm.lastEndpoint).replace('tcp://', ''));
    handle.send(Buffer.from(`connect ${i}`));
    const [from, frame] = await vllm.receive();
    expect([from.toString(), frame.toString()]).toEqual([a.transport.localAddress, `connect ${i}`]);
    await until(() => handle.isConnected, 'the handshake');
    void handle.close();
  }
  vllm.close();
});

describe('the end of a connection', () => {
  test('a refused port is a dead DEALER at once', async () => {
    const a = await bench.bound();
    const { handle, downs } = bench.dealer(a, `127.0.0.1:${await freePort()}`);
    handle.send(Buffer.from('connect'));
    await until(() => downs.length > 0, 'the refusal');
    expect(downs).toEqual(['refused']);
    expect(handle.send(Buffer.from('x'))).toBe(false);
    expect(a.transport.socketCount).toBe(1);
  });

  test('a dial that nobody answers is a refusal also when frames wait for it', async () => {
    const a = await bench.bound();
    const ports = await Promise.all(Array.from({ length: 20 }, freePort));
    const dealers = ports.map((port) => bench.dealer(a, `127.0.0.1:${port}`));
    for (const { handle } of dealers) handle.send(Buffer.from('hello'));
    await until(() => dealers.every(({ downs }) => downs.length > 0), 'the end of every attempt');
    expect(new Set(dealers.flatMap(({ downs }) => downs))).toEqual(new Set(['refused']));
  });

  test('a name without an address is told apart', async () => {
    const a = await bench.bound();
    // No label of a name is longer than 63 characters, so no resolver needs to be asked.
    const { downs } = bench.dealer(a, `${'x'.repeat(70)}.example:5710`);
    await until(() => downs.length > 0, 'the failure');
    expect(downs).toEqual(['unresolved']);
  });

  test('a listener that does not speak ZMTP is told apart', async () => {
    const server = createServer((socket) => {
      socket.on('error', () => undefined);
      socket.end('HTTP/1.1 400 Bad Request\r\n\r\n');
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const a = await bench.bound();
    const { downs } = bench.dealer(a, `127.0.0.1:${(server.address() as AddressInfo).port}`);
    await until(() => downs.length > 0, 'the failure');
    expect(downs).toEqual(['handshake-failed']);
    server.close();
  });

  test('both halves of the survivor hear of it when a node closes', async () => {
    const a = await bench.bound();
    const b = await bench.bound();
    const toB = bench.dealer(a, b.transport.localAddress);
    const toA = bench.dealer(b, a.transport.localAddress);
    toB.handle.send(Buffer.from('1'));
    toA.handle.send(Buffer.from('2'));
    await until(() => a.messages.length === 1 && b.messages.length === 1, 'both frames');
    await until(() => toB.handle.isConnected, 'the handshake');
    await b.transport.close();
    await until(() => toB.downs.length === 1 && a.gone.length === 1, 'the news');
    expect(toB.downs).toEqual(['disconnected']);
    expect(a.gone).toEqual([b.transport.localAddress]);
    expect(toB.handle.isConnected).toBe(false);
    expect(toA.downs).toEqual([]);
  });

  test('a DEALER closed by its owner reports nothing more', async () => {
    const a = await bench.bound();
    const b = await bench.bound();
    const { handle, downs } = bench.dealer(a, b.transport.localAddress);
    await handle.close();
    await handle.close();
    await b.transport.close();
    expect(downs).toEqual([]);
    expect(a.transport.socketCount).toBe(1);
  });
});

describe('numbers M and P: nothing waits without bound', () => {
  test('send() says no when the queue to a peer that never answers is full, by frames', async () => {
    const silent = createServer(() => undefined);
    await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
    const a = await bench.bound({ queueFrames: 10, sendHighWaterMark: 5 });
    const { handle } = bench.dealer(a, `127.0.0.1:${(silent.address() as AddressInfo).port}`);
    let accepted = 0;
    for (let i = 0; i < 1_000; i++) {
      if (handle.send(Buffer.from('lookup'))) accepted++;
      await Promise.resolve();
    }
    // Ours, ZeroMQ's, and the one in the hands of the pump.
    expect(accepted).toBeGreaterThanOrEqual(10);
    expect(accepted).toBeLessThanOrEqual(10 + 5 + 1);
    expect(handle.queuedFrames).toBeLessThanOrEqual(10);
    await handle.close();
    silent.close();
  });

  test('and by bytes', async () => {
    const a = await bench.bound({ queueBytes: 1_000 });
    const b = await bench.bound();
    const { handle } = bench.dealer(a, b.transport.localAddress);
    expect(handle.send(Buffer.alloc(600))).toBe(true);
    expect(handle.send(Buffer.alloc(600))).toBe(false);
    expect(handle.queuedBytes).toBe(600);
    expect(handle.send(Buffer.alloc(400))).toBe(true);
    await until(() => b.messages.length === 2, 'what was accepted');
  });
});

test('number 8: timers run while a peer floods the node', async () => {
  const a = await bench.bound();
  const b = await bench.bound();
  const { handle } = bench.dealer(a, b.transport.localAddress);
  for (let i = 0; i < 4_000; i++) handle.send(Buffer.from('x'));
  let longestRun = 0;
  let run = 0;
  b.onMessage = () => {
    longestRun = Math.max(longestRun, ++run);
  };
  const timer = setInterval(() => {
    run = 0;
  }, 0);
  await until(() => b.messages.length === 4_000, 'the flood');
  clearInterval(timer);
  expect(longestRun).toBeLessThan(4_000);
});

describe('addresses', () => {
  test('number 16: bind and advertised address are two settings', async () => {
    const a = await bench.bound({ bindHost: '0.0.0.0', advertiseHost: 'localhost', advertisePort: 7_002 });
    expect(a.transport.localAddress).toBe('localhost:7002');
    const b = await bench.bound();
    bench.dealer(a, b.transport.localAddress).handle.send(Buffer.from('x'));
    await until(() => b.messages.length === 1, 'the frame');
    expect(b.messages[0].from).toBe('localhost:7002');
  });

  test('number 16: a wildcard cannot be advertised', () => {
    for (const bindHost of ['0.0.0.0', '::', '*']) {
      expect(() => createControlTransport({ bindHost, bindPort: 0 }, ignore)).toThrow(/--advertise/);
    }
  });

  test('number 16: a loopback address is not told to a peer on another host', async () => {
    const a = await bench.bound();
    // 192.0.2.0/24 is reserved for documentation; nothing is sent there, for the check comes first.
    const { downs } = bench.dealer(a, '192.0.2.1:5710');
    await until(() => downs.length > 0, 'the refusal');
    expect(downs).toEqual(['not-advertisable']);
  });

  test('number K: IPv6 literals work, in brackets; without IPv6 the error names the address', async () => {
    const interfaces = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
    if (!interfaces.some(({ address }) => address === '::1')) {
      await expect(bench.bound({ bindHost: '::1' })).rejects.toThrow(/::1:0 /);
      return;
    }
    const a = await bench.bound({ bindHost: '::1' });
    const b = await bench.bound({ bindHost: '::1' });
    expect(b.transport.localAddress).toMatch(/^\[::1\]:\d+$/);
    bench.dealer(a, b.transport.localAddress).handle.send(Buffer.from('six'));
    await until(() => b.messages.length === 1, 'the frame');
    expect(b.messages[0].from).toBe(a.transport.localAddress);
  });

  test('a taken port is named, with the reason and the remedy', async () => {
    const a = await bench.bound();
    const port = Number(a.transport.localAddress.split(':')[1]);
    const second = createControlTransport({ bindHost: '127.0.0.1', bindPort: port, ...PATIENT }, ignore);
    const error = await second.bind().catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: 'KVPEER_BIND' });
    expect(String(error)).toMatch(new RegExp(`127\\.0\\.0\\.1:${port} \\(EADDRINUSE\\).*--port`));
    await second.close();
    expect(second.socketCount).toBe(0);
  });

  test('an address of another host cannot be bound, and the error says so', async () => {
    const transport = createControlTransport({ bindHost: '192.0.2.1', bindPort: 0 }, ignore);
    const error = await transport.bind().catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: 'KVPEER_BIND' });
    expect(String(error)).toContain('choose another --host');
    await transport.close();
  });

  test('a malformed address and a closed transport are refused by name', async () => {
    const a = await bench.bound();
    expect(() => bench.dealer(a, 'nocolon')).toThrow(/no colon/);
    await a.transport.close();
    expect(() => bench.dealer(a, '127.0.0.1:5710')).toThrow(/closed/);
  });
});
