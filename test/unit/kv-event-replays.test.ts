// Replays, with a recorded socket and a clock of the test's own: each client by itself, nothing without a bound.

import { pino } from 'pino';
import { describe, expect, it } from 'vitest';

import type { NumberedBatch } from '../../src/main/events/numbering.js';
import { Replays, type ReplaySocket } from '../../src/main/events/replays.js';

const END = -1n;

class ZmqError extends Error {
  constructor(readonly code: string) {
    super(code);
  }
}

/** A ROUTER: what it got is fed, what it sent is kept per client. A client takes messages up to its room. */
class FakeRouter implements ReplaySocket {
  readonly sent: { readonly to: string; readonly sequence: bigint }[] = [];
  readonly room = new Map<string, number>();
  readonly #incoming: Buffer[][] = [];
  #wake: (() => void) | undefined;
  #isClosed = false;

  feed(...messages: Buffer[][]): void {
    this.#incoming.push(...messages);
    this.#wake?.();
  }

  close(): void {
    this.#isClosed = true;
    this.#wake?.();
  }

  send(message: Parameters<ReplaySocket['send']>[0]): Promise<void> {
    const [to, , , sequence] = message as Buffer[];
    const name = to.toString();
    const room = this.room.get(name) ?? Infinity;
    if (room < 0) return Promise.reject(new ZmqError('EHOSTUNREACH'));
    if (room === 0) return Promise.reject(new ZmqError('EAGAIN'));
    this.room.set(name, room - 1);
    this.sent.push({ to: name, sequence: sequence.readBigInt64BE() });
    return Promise.resolve();
  }

  to(name: string): bigint[] {
    return this.sent.filter(({ to }) => to === name).map(({ sequence }) => sequence);
  }

  async *[Symbol.asyncIterator](): AsyncIterator<Buffer[], undefined> {
    while (!this.#isClosed) {
      const message = this.#incoming.shift();
      if (message !== undefined) yield message;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    return undefined;
  }
}

function asking(name: string, from = 0): Buffer[] {
  const start = Buffer.alloc(8);
  start.writeBigUInt64BE(BigInt(from));
  return [Buffer.from(name), Buffer.alloc(0), start];
}

function started(count: number): {
  readonly router: FakeRouter;
  readonly replays: Replays;
  readonly clock: { ms: number };
  /** Until every request was looked at and no answer can go on. */
  readonly settle: () => Promise<void>;
} {
  const router = new FakeRouter();
  const clock = { ms: 0 };
  const batches: NumberedBatch[] = Array.from({ length: count }, (_, sequence) => ({
    sequence,
    payload: Buffer.from('x'),
  }));
  const replays = new Replays(router, {
    topic: Buffer.from('kv@p@m'),
    log: pino({ level: 'silent' }),
    replay: (from) => batches.slice(from),
    nowMs: () => clock.ms,
    pause: (ms) => {
      clock.ms += ms;
      return new Promise((resolve) => setImmediate(resolve));
    },
  });
  void replays.run();
  const settle = async (): Promise<void> => {
    for (let turn = 0; turn < 100; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  };
  return { router, replays, clock, settle };
}

describe('a replay', () => {
  it('has every batch from the number asked for, and the end mark', async () => {
    const { router, settle } = started(300);
    router.feed(asking('a'), asking('b', 298), asking('c', 300), asking('d', 2 ** 53));
    await settle();
    expect(router.to('a')).toEqual([...Array.from({ length: 300 }, (_, i) => BigInt(i)), END]);
    expect(router.to('b')).toEqual([298n, 299n, END]);
    expect(router.to('c')).toEqual([END]);
    expect(router.to('d')).toEqual([END]);
  });

  it('that is short does not wait for the end of a long one', async () => {
    const { router, settle } = started(5000);
    router.feed(asking('long'), asking('short', 4990));
    await settle();
    const end = router.sent.findIndex(({ to, sequence }) => to === 'short' && sequence === END);
    expect(end).toBeGreaterThan(0);
    expect(end).toBeLessThan(200);
    expect(router.to('long')).toHaveLength(5001);
  });

  it.each([
    ['no number', [Buffer.from('a')]],
    ['a number of 7 bytes', [Buffer.from('a'), Buffer.alloc(0), Buffer.alloc(7)]],
    ['a number of 24 bytes', [Buffer.from('a'), Buffer.alloc(24)]],
    ['a frame too many', [Buffer.from('a'), Buffer.alloc(0), Buffer.alloc(0), Buffer.alloc(8)]],
  ])('that is asked for with %s is refused and counted', async (_, frames) => {
    const { router, replays, settle } = started(3);
    router.feed(frames);
    await settle();
    expect(router.sent).toEqual([]);
    expect([replays.answeredCount, replays.refusedCount]).toEqual([0, 1]);
  });

  it('is refused to a client that asks too often, and to nobody else', async () => {
    const { router, replays, clock, settle } = started(1);
    for (let i = 0; i < 500; i += 1) router.feed(asking('flood'));
    await settle();
    router.feed(asking('router'));
    await settle();
    expect(router.to('router')).toEqual([0n, END]);
    expect(router.to('flood').length).toBeLessThanOrEqual(16);
    expect(replays.refusedCount).toBeGreaterThanOrEqual(492);
    for (let i = 0; i < 20; i += 1) {
      router.feed(asking('flood'));
      await settle();
    }
    expect(router.to('flood')).toHaveLength(16);
    clock.ms += 1000;
    router.feed(asking('flood'), asking('flood'));
    await settle();
    expect(router.to('flood')).toHaveLength(18);
  });

  it('waits for a client that reads slowly, while others get theirs', async () => {
    const { router, replays, settle } = started(1000);
    router.room.set('slow', 10);
    router.feed(asking('slow'), asking('quick'));
    await settle();
    expect(router.to('quick')).toHaveLength(1001);
    expect(router.to('slow')).toHaveLength(10);
    router.room.set('slow', 2000);
    await settle();
    expect(router.to('slow')).toEqual([...Array.from({ length: 1000 }, (_, i) => BigInt(i)), END]);
    expect(replays.abandonedCount).toBe(0);
  });

  it('is given up when its client takes nothing for ten seconds, or is gone', async () => {
    const { router, replays, settle } = started(1000);
    router.room.set('frozen', 3);
    router.room.set('gone', -1);
    router.feed(asking('frozen'), asking('gone'));
    while (replays.abandonedCount < 2) await settle();
    router.room.set('frozen', 100);
    await settle();
    expect(router.to('frozen')).toEqual([0n, 1n, 2n]);
  });

  it('that is asked for again meanwhile comes next, once', async () => {
    const { router, replays, settle } = started(200);
    router.room.set('a', 5);
    router.feed(asking('a'));
    await settle();
    router.feed(asking('a', 198), asking('a', 1));
    await settle();
    router.room.set('a', 1000);
    await settle();
    expect(router.to('a').slice(-4)).toEqual([END, 198n, 199n, END]);
    expect(replays.refusedCount).toBe(1);
  });

  it('is one of 64 at most at a time', async () => {
    const { router, replays, settle } = started(10);
    for (let i = 0; i < 70; i += 1) {
      router.room.set(`c${i}`, 1);
      router.feed(asking(`c${i}`));
    }
    await settle();
    expect([replays.answeredCount, replays.refusedCount]).toEqual([64, 6]);
  });
});
