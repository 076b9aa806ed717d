// The native code under several threads: pins against a slot's re-use, wake-ups, and who keeps memory mapped.

import { once } from 'node:events';
import { readFileSync, unlinkSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { loadNative } from '../../native/index.js';
import {
  completionRing,
  mainArmedWord,
  submissionRing,
  workerArmedWord,
  workerStopWord,
} from '../../src/shared/layout.js';
import { RingConsumer, RingProducer, arm, disarm, takeArmed, wakeWorker } from '../../src/shared/ring.js';
import { pinsOf } from '../../src/shared/slot-state.js';
import { SharedPool } from '../helpers/shared-pool.js';
import type { HammerTask, OwnerResult, PinnerResult } from './support/hammer.js';

const HAMMER = new URL('../../dist/test/integration/support/hammer.js', import.meta.url);

function start(task: Partial<HammerTask> & Pick<HammerTask, 'role' | 'options' | 'memory'>): Worker {
  const reused = new Int32Array(new SharedArrayBuffer(4));
  const workerData: HammerTask = { calls: 0, keyCount: 0, waker: 0, reused, atLeast: 0, ...task };
  return new Worker(HAMMER, { workerData });
}

async function resultOf<T>(worker: Worker): Promise<T> {
  // Both at once: the last message and the exit may come in one turn of the event loop.
  const [[result]] = (await Promise.all([once(worker, 'message'), once(worker, 'exit')])) as [[T], unknown];
  return result;
}

describe('pins', () => {
  test('are never on another key, while an owner evicts and re-uses the same few slots', async () => {
    const options = { numBlocks: 12, shardCount: 1 };
    const pool = new SharedPool(options);
    const memory = { control: pool.control, pool: pool.pool };
    const keyCount = 24;
    const share = pool.layout.arenaBytes / 4;
    const at = (part: number): number => pool.layout.arenaOffset + part * share;
    const atLeast = 1_000;
    const shared = { options, keyCount, atLeast, reused: new Int32Array(new SharedArrayBuffer(4)) };
    const owner = start({ role: 'owner', ...shared, memory: { ...memory, arenaStart: at(0) } });
    const ownerDone = resultOf<OwnerResult>(owner);
    const pinners = [1, 2].map((part) =>
      start({ role: 'pinner', ...shared, memory: { ...memory, arenaStart: at(part) }, calls: 20_000 }),
    );
    const results = await Promise.all(pinners.map((pinner) => resultOf<PinnerResult>(pinner)));
    Atomics.store(pool.table.words, workerStopWord(pool.layout, 0) / 4, 1);
    const { reused } = await ownerDone;
    for (const result of results) {
      expect(result.wrong).toBe(0);
      expect(Math.min(result.hits, result.misses)).toBeGreaterThanOrEqual(atLeast);
    }
    expect(reused).toBeGreaterThanOrEqual(atLeast);
    for (let slot = 0; slot < pool.layout.numBlocks; slot++) expect(pinsOf(pool.table.state(slot))).toBe(0);
  }, 60_000);
});

describe('wake-ups', () => {
  test('are never lost in 100,000 rounds between the event loop and a worker', async () => {
    const options = { numBlocks: 4, shardCount: 1 };
    const pool = new SharedPool(options);
    const { layout, native } = pool;
    const { words } = pool.table;
    const requests = new RingProducer(words, submissionRing(layout, 0), layout.ringCapacity);
    const answers = new RingConsumer(words, completionRing(layout, 0), layout.ringCapacity);
    const mainArmed = mainArmedWord(layout);
    const rounds = 100_000;
    let sent = 0;
    let received = 0;
    let callbacks = 0;
    let finish = (): void => undefined;
    const finished = new Promise<void>((resolve) => {
      finish = resolve;
    });

    const send = (): void => {
      // One to three at a time: some find the worker awake, some asleep, some on its way to sleep.
      for (let left = 1 + (sent % 3); left > 0 && sent < rounds; left--)
        requests.push(1, ++sent, 0, 0, 0, 0, 0, 0);
      requests.publish();
      wakeWorker(words, workerArmedWord(layout, 0));
    };
    const drain = (): void => {
      for (let turn = 0; turn < 64; turn++) {
        const count = answers.available();
        if (count === 0) {
          arm(words, mainArmed);
          if (answers.available() === 0) return;
          disarm(words, mainArmed);
          continue;
        }
        for (let i = 0; i < count; i++) expect(words[answers.wordAt(i) + 1]).toBe(++received);
        answers.advance(count);
        if (received === rounds) {
          finish();
          return;
        }
        if (received === sent) send();
      }
      setImmediate(drain);
    };
    const waker = native.createWaker(() => {
      callbacks += 1;
      drain();
    });
    const memory = { control: pool.control, pool: pool.pool, arenaStart: layout.arenaOffset };
    const worker = start({ role: 'echo', options, memory, waker });
    arm(words, mainArmed);
    send();
    await finished;
    expect(received).toBe(rounds);
    expect(callbacks).toBeGreaterThan(100);
    Atomics.store(words, workerStopWord(layout, 0) / 4, 1);
    wakeWorker(words, workerArmedWord(layout, 0));
    await once(worker, 'exit');
    native.closeWaker(waker);
    expect(native.wake(waker)).toBe(false);
    expect(takeArmed(words, workerArmedWord(layout, 0))).toBe(false);
  }, 180_000);

  test('of a waker whose thread has ended are refused, not delivered into freed memory', async () => {
    const source = `
      const { parentPort, workerData } = require('node:worker_threads');
      import(workerData).then(({ loadNative }) => {
        parentPort.postMessage(loadNative().createWaker(() => {}));
      });`;
    const module = new URL('../../dist/native/index.js', import.meta.url).href;
    const worker = new Worker(source, { eval: true, workerData: module });
    const [waker] = (await once(worker, 'message')) as [Parameters<ReturnType<typeof loadNative>['wake']>[0]];
    const native = loadNative();
    expect(native.wake(waker)).toBe(true);
    expect(() => {
      native.closeWaker(waker);
    }).toThrow(/this thread has no such waker/);
    await worker.terminate();
    expect(native.wake(waker)).toBe(false);
  });
});

describe('memory', () => {
  test('outlives the thread that mapped it while another thread has its buffer', async () => {
    const path = `/dev/shm/kvpeer-threads-${process.pid}`;
    const source = `
      const { parentPort, workerData } = require('node:worker_threads');
      import(workerData.module).then(({ loadNative }) => {
        const native = loadNative();
        const { buffer } = native.mapFile(workerData.path, { bytes: 1 << 20, huge: false, lock: false, create: true });
        parentPort.postMessage(buffer);
        parentPort.once('message', () => process.exit(0));
      });`;
    const module = new URL('../../dist/native/index.js', import.meta.url).href;
    const isMapped = (): boolean => readFileSync('/proc/self/maps', 'utf8').includes(path);
    const worker = new Worker(source, { eval: true, workerData: { module, path } });
    const [buffer] = (await once(worker, 'message')) as [SharedArrayBuffer];
    expect(isMapped()).toBe(true);
    worker.postMessage('end');
    await once(worker, 'exit');
    // The worker that mapped it is gone; this thread's buffer keeps the memory.
    new Uint8Array(buffer)[1000] = 3;
    expect(new Uint8Array(buffer)[1000]).toBe(3);
    expect(isMapped()).toBe(true);
    unlinkSync(path);
  });
});
