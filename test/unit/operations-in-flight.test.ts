// Main's side of the rings, with workers played by the test: admission, waiting, draining, and the loss of a worker.

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import {
  type Layout,
  completionRing,
  computeLayout,
  mainArmedWord,
  submissionRing,
  workerArmedWord,
} from '../../src/shared/layout.js';
import { EXTENT_UNIT_BYTES, ExtentWord, NO_EXTENT, Opcode, Outcome } from '../../src/shared/operations.js';
import { RingConsumer, RingProducer, arm } from '../../src/shared/ring.js';
import {
  CLOSED,
  LOST_RESULT,
  type OnWorkerLost,
  type Operation,
  OperationsInFlight,
} from '../../src/main/shards/operations-in-flight.js';

const CAPACITY = 16;
const ADMITTED = 12;

class Node {
  readonly layout: Layout;
  readonly words: Int32Array;
  readonly inFlight: OperationsInFlight;
  readonly ends: string[] = [];
  private readonly control: SharedArrayBuffer;
  private nextExtent: number;

  constructor(
    queueMs = 100,
    maxWaitingCount = 1000,
    private readonly capacity = CAPACITY,
  ) {
    this.layout = computeLayout({
      numBlocks: 16,
      blockBytes: 4096,
      keyBytes: 36,
      shardCount: 2,
      ringCapacity: this.capacity,
      arenaBytes: 65_536,
    });
    this.control = new SharedArrayBuffer(this.layout.controlBytes);
    this.words = new Int32Array(this.control);
    this.inFlight = new OperationsInFlight({
      control: this.control,
      layout: this.layout,
      queueMs,
      maxWaitingCount,
    });
    this.nextExtent = this.layout.arenaOffset;
  }

  /** A worker as the rings see it; made anew after its death. */
  worker(id: number): { take(): number[][]; finish(record: readonly number[], outcome?: number): void } {
    const submissions = new RingConsumer(this.words, submissionRing(this.layout, id), this.capacity);
    const completions = new RingProducer(this.words, completionRing(this.layout, id), this.capacity);
    return {
      take: () => {
        const records: number[][] = [];
        const count = submissions.available();
        for (let i = 0; i < count; i += 1) {
          const at = submissions.wordAt(i);
          records.push([...this.words.subarray(at, at + 8)]);
        }
        submissions.advance(count);
        return records;
      },
      finish: ([opcode, opNumber, unit], outcome = Outcome.Ok) => {
        if (unit !== NO_EXTENT) {
          const owners = (unit * EXTENT_UNIT_BYTES) / 4 + ExtentWord.OwnersLeft;
          if ((Atomics.and(this.words, owners, ~(1 << id)) & ~(1 << id)) !== 0) return;
        }
        expect(completions.push(opcode, opNumber, unit, outcome, 1, 2, 3, 0)).toBe(true);
        completions.publish();
      },
    };
  }

  operation(name: string, opcode: Opcode, onWorkerLost: OnWorkerLost, hasExtent = true): Operation {
    let extent: number = NO_EXTENT;
    if (hasExtent) {
      extent = this.nextExtent;
      this.nextExtent += 256;
    }
    return {
      opcode,
      extent,
      arg0: 0,
      arg1: 0,
      arg2: 0,
      onWorkerLost,
      done: (outcome, result0) => {
        const result = result0 === LOST_RESULT ? ' (result lost)' : '';
        this.ends.push(`${name}: ${outcome === CLOSED ? 'closed' : outcome}${result}`);
      },
    };
  }

  /** Asks for an operation of worker 0, waiting for room. */
  ask(name: string, urgency: 'bounded' | 'must' = 'bounded'): void {
    this.inFlight.whenRoom(
      () => {
        if (!this.inFlight.hasRoom(1)) return false;
        this.inFlight.submit(this.operation(name, Opcode.Match, 'ifRecorded', false), 1);
        return true;
      },
      urgency,
      (reason) => this.ends.push(`${name}: ${reason}`),
    );
  }
}

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

describe('operations in flight', () => {
  it('are completed by number, with their results, and make room again', () => {
    const node = new Node();
    const worker = node.worker(0);
    node.ask('a');
    node.ask('b');
    const [a, b] = worker.take();
    worker.finish(b);
    worker.finish(a, Outcome.BadDestination);
    expect(node.inFlight.openCountOf(0)).toBe(2);
    node.inFlight.drain();
    expect(node.ends).toEqual(['b: 0', `a: ${Outcome.BadDestination}`]);
    expect(node.inFlight.openCountOf(0)).toBe(0);
  });

  it('wait in order when a worker has as many as its completion ring holds, and never overflow it', () => {
    const node = new Node();
    const worker = node.worker(0);
    for (let i = 0; i < 40; i += 1) node.ask(String(i));
    expect(node.inFlight.openCountOf(0)).toBe(ADMITTED);
    expect(node.inFlight.waitingCount).toBe(40 - ADMITTED);
    while (node.inFlight.openCount > 0) {
      for (const record of worker.take()) worker.finish(record);
      node.inFlight.drain();
    }
    expect(node.ends).toEqual(Array.from({ length: 40 }, (_, i) => `${i}: 0`));
  });

  it('leave room in both rings for an operation that a callback submits and a quick worker completes', () => {
    const node = new Node();
    const worker = node.worker(0);
    let ended = 0;
    const submit = (): void => {
      node.inFlight.submit(
        {
          ...node.operation('', Opcode.Match, 'ifRecorded', false),
          done: () => {
            ended += 1;
            if (ended > 3 * CAPACITY) return;
            submit();
            for (const record of worker.take()) worker.finish(record);
          },
        },
        1,
      );
    };
    for (let i = 0; i < ADMITTED; i += 1) submit();
    for (const record of worker.take()) worker.finish(record);
    node.inFlight.drain();
    vi.runAllTimers();
    expect(ended).toBe(3 * CAPACITY + ADMITTED);
  });

  it('end as busy when they found no room in time; those that must run wait on, before the others', () => {
    const node = new Node(100);
    const worker = node.worker(0);
    for (let i = 0; i < ADMITTED; i += 1) node.ask(`open ${i}`);
    node.ask('bounded');
    node.ask('must', 'must');
    vi.advanceTimersByTime(99);
    expect(node.ends).toEqual([]);
    vi.advanceTimersByTime(5);
    expect(node.ends).toEqual(['bounded: busy']);
    node.ask('late');
    for (const record of worker.take().slice(0, 1)) worker.finish(record);
    node.inFlight.drain();
    expect(worker.take()).toHaveLength(1);
    expect(node.inFlight.waitingCount).toBe(1);
  });

  it('beyond the number that may wait are busy at once, but not inside the call', async () => {
    const node = new Node(100, 2);
    for (let i = 0; i < ADMITTED + 2; i += 1) node.ask(String(i));
    node.ask('over');
    expect(node.ends).toEqual([]);
    await Promise.resolve();
    expect(node.ends).toEqual(['over: busy']);
  });

  it('are completed by the last of several owners', () => {
    const node = new Node();
    const workers = [node.worker(0), node.worker(1)];
    node.inFlight.submit(node.operation('both', Opcode.Reserve, 'fail'), 0b11);
    const [first] = workers[0].take();
    const [second] = workers[1].take();
    workers[1].finish(second);
    node.inFlight.drain();
    expect(node.ends).toEqual([]);
    workers[0].finish(first);
    node.inFlight.drain();
    expect(node.ends).toEqual(['both: 0']);
    expect([node.inFlight.openCountOf(0), node.inFlight.openCountOf(1)]).toEqual([0, 0]);
  });

  it('are drained 256 at a time with a turn of the event loop in between, and main sleeps when all are seen', () => {
    const node = new Node(100, 1000, 1024);
    const mainWord = mainArmedWord(node.layout) / 4;
    expect(node.words[mainWord]).toBe(1);
    const worker = node.worker(0);
    for (let i = 0; i < 600; i += 1) node.ask(String(i));
    for (const record of worker.take()) worker.finish(record);
    node.words[mainWord] = 0;
    node.inFlight.drain();
    expect(node.ends).toHaveLength(256);
    // Another wake-up meanwhile changes nothing.
    node.inFlight.drain();
    expect([node.ends.length, node.words[mainWord]]).toEqual([256, 0]);
    vi.advanceTimersToNextTimer();
    expect(node.ends).toHaveLength(512);
    vi.advanceTimersToNextTimer();
    expect([node.ends.length, node.words[mainWord]]).toEqual([600, 1]);
  });

  it('go to the least busy worker, one without a transfer in hand first', () => {
    const node = new Node();
    expect(node.inFlight.leastBusy()).toBe(0);
    node.inFlight.submit(node.operation('a', Opcode.Match, 'ifRecorded'), 1);
    expect(node.inFlight.leastBusy()).toBe(1);
    node.inFlight.submit(node.operation('b', Opcode.Serve, 'fail'), 2);
    node.inFlight.submit(node.operation('c', Opcode.Match, 'ifRecorded'), 1);
    expect(node.inFlight.leastBusy()).toBe(0);
  });

  it('wake a sleeping worker with their record', () => {
    const node = new Node();
    arm(node.words, workerArmedWord(node.layout, 0));
    node.ask('a');
    expect(node.words[workerArmedWord(node.layout, 0) / 4]).toBe(0);
  });

  it('go on when a caller throws in its completion, and the exception is not lost', async () => {
    const node = new Node();
    const worker = node.worker(0);
    const caught: unknown[] = [];
    const listeners = process.listeners('uncaughtException');
    process.removeAllListeners('uncaughtException');
    process.once('uncaughtException', (error) => caught.push(error));
    node.inFlight.submit(
      {
        ...node.operation('a', Opcode.Match, 'ifRecorded', false),
        done: () => {
          throw new Error('a mistake');
        },
      },
      1,
    );
    node.ask('b');
    for (const record of worker.take()) worker.finish(record);
    node.inFlight.drain();
    expect(node.ends).toEqual(['b: 0']);
    vi.useRealTimers();
    await new Promise((resolve) => setImmediate(resolve));
    for (const listener of listeners) process.on('uncaughtException', listener);
    expect(String(caught[0])).toContain('a mistake');
  });

  it('are seen to later when what runs behind them throws', () => {
    const node = new Node();
    const worker = node.worker(0);
    node.inFlight.onDrained = () => {
      node.inFlight.onDrained = undefined;
      throw new Error('a fault of the node');
    };
    node.ask('a');
    node.ask('b');
    const [a, b] = worker.take();
    worker.finish(a);
    expect(() => {
      node.inFlight.drain();
    }).toThrow('a fault of the node');
    worker.finish(b);
    vi.runAllTimers();
    expect(node.ends).toEqual(['a: 0', 'b: 0']);
    expect(Atomics.load(node.words, mainArmedWord(node.layout) / 4)).toBe(1);
  });

  it('end as closed when the node closes, open or waiting, and later ones too', async () => {
    const node = new Node();
    for (let i = 0; i < ADMITTED; i += 1) node.ask('open');
    node.ask('waiting');
    node.ask('must', 'must');
    node.inFlight.close();
    node.ask('late');
    await Promise.resolve();
    expect(node.ends.filter((end) => end === 'open: closed (result lost)')).toHaveLength(ADMITTED);
    expect(node.ends.slice(ADMITTED)).toEqual(['must: closed', 'waiting: closed', 'late: closed']);
  });
});

describe('the loss of a worker', () => {
  it('completes what it had finished, seen or not, and nothing twice', () => {
    const node = new Node();
    const worker = node.worker(0);
    const other = node.worker(1);
    node.inFlight.submit(node.operation('shown', Opcode.Match, 'ifRecorded'), 1);
    const unseen = node.operation('unseen', Opcode.Serve, 'fail');
    node.inFlight.submit(unseen, 1);
    const both = node.operation('both', Opcode.Reserve, 'fail');
    node.inFlight.submit(both, 0b11);
    const [shown] = worker.take();
    worker.finish(shown);
    // Its part is done, the completion record was never published.
    node.words[unseen.extent / 4 + ExtentWord.OwnersLeft] = 0;
    node.words[both.extent / 4 + ExtentWord.OwnersLeft] = 0b10;
    node.inFlight.workerLost(0);
    expect(node.ends).toEqual(['shown: 0', 'unseen: 0 (result lost)']);
    for (const record of other.take()) other.finish(record);
    node.inFlight.drain();
    expect(node.ends.at(-1)).toBe('both: 0');
    expect(node.inFlight.openCount).toBe(0);
  });

  it('fails what was not recorded, keeps what was, ends stops and removals, and gives nothing to the dead', () => {
    const node = new Node();
    const recorded = node.operation('recorded', Opcode.Match, 'ifRecorded');
    node.inFlight.submit(recorded, 1);
    node.inFlight.submit(node.operation('unrecorded', Opcode.Match, 'ifRecorded'), 1);
    node.inFlight.submit(node.operation('stop', Opcode.HardStop, 'complete', false), 1);
    node.inFlight.submit(node.operation('reserve', Opcode.Reserve, 'fail'), 0b11);
    Atomics.or(node.words, recorded.extent / 4 + ExtentWord.Recorded, 1);
    node.inFlight.workerLost(0);
    expect(node.ends).toEqual([
      'recorded: 0 (result lost)',
      `unrecorded: ${Outcome.WorkerLost} (result lost)`,
      'stop: 0 (result lost)',
    ]);
    const other = node.worker(1);
    for (const record of other.take()) other.finish(record, Outcome.WorkerLost);
    node.inFlight.drain();
    expect(node.ends.at(-1)).toBe(`reserve: ${Outcome.WorkerLost}`);
    expect(node.inFlight.hasRoom(1)).toBe(false);
    expect(node.inFlight.leastBusy()).toBe(1);
  });

  it('has the parts that must be done done again, elsewhere at once or by the replacement after its rebuild', () => {
    const node = new Node();
    node.inFlight.submit(node.operation('release', Opcode.Release, 'repeatAnywhere'), 1);
    node.inFlight.submit(node.operation('publish', Opcode.Publish, 'repeat'), 0b11);
    const other = node.worker(1);
    for (const record of other.take()) other.finish(record);
    node.inFlight.workerLost(0);
    node.ask('waiting');
    const [moved] = other.take();
    expect(moved[0]).toBe(Opcode.Release);
    other.finish(moved);
    node.inFlight.drain();
    expect(node.ends).toEqual(['release: 0']);
    const replacement = node.worker(0);
    node.inFlight.workerUp(0, () => {
      node.inFlight.submit(node.operation('rebuild', Opcode.Rebuild, 'fail'), 1);
    });
    const given = replacement.take();
    expect(given.map(([opcode]) => opcode)).toEqual([Opcode.Rebuild, Opcode.Publish, Opcode.Match]);
    for (const record of given) replacement.finish(record);
    node.inFlight.drain();
    expect(node.ends).toEqual(['release: 0', 'rebuild: 0', 'publish: 0', 'waiting: 0']);
  });
});
