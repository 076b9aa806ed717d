// Entry of a shard worker: one synchronous loop that drains its ring, moves data and sleeps, until it is told to stop.

import { threadId } from 'node:worker_threads';
import { type Native, type WakerHandle, loadNative } from '../../native/index.js';
import { loadNixl } from '../../native/nixl.js';
import { Counter, WorkerCounters } from '../shared/counters.js';
import { ExtentMemory } from '../shared/extent.js';
import {
  type Layout,
  completionRing,
  mainArmedWord,
  submissionRing,
  workerArmedWord,
  workerScratch,
  workerStopWord,
} from '../shared/layout.js';
import { readLayout } from '../shared/layout-header.js';
import { ResidencyMarker } from '../shared/residency-marks.js';
import { RingConsumer, RingProducer, arm, disarm, sleepArmed, takeArmed } from '../shared/ring.js';
import type { ShardTask, WorkerMessage } from '../shared/shard-task.js';
import { SlotTable } from '../shared/slot-state.js';
import { Mover } from './mover.js';
import { ShardOperations } from './operations.js';
import { sleepFor } from './sleep.js';
import { ShardSlots } from './slots.js';

/** Submissions taken before the mover gets its turn. */
const DRAIN_BUDGET = 64;
/** Messages to main's log: a burst, and then so many a second. */
const LOG_BURST = 20;
const LOG_PER_SECOND = 2;

/** Where a test may interfere. */
export interface ShardHooks {
  /** Before each operation, with its code. */
  readonly beforeOperation?: (opcode: number) => void;
}

/**
 * Runs one shard until main sets its stop word. Nothing here is asynchronous: timers, promises and messages of this
 * thread stand still for as long as it runs, so everything goes over the rings and the control mapping.
 */
export function serve(task: ShardTask, hooks: ShardHooks = {}): void {
  Atomics.store(new Int32Array(task.started), 0, threadId);
  const worker = new ShardWorker(task, hooks);
  try {
    worker.run();
  } finally {
    worker.close();
  }
}

class ShardWorker {
  private readonly task: ShardTask;
  private readonly hooks: ShardHooks;
  private readonly native: Native;
  private readonly words: Int32Array;
  private readonly submissions: RingConsumer;
  private readonly completions: RingProducer;
  private readonly counters: WorkerCounters;
  private readonly operations: ShardOperations;
  private readonly mover: Mover | undefined;
  private readonly armedWord: number;
  private readonly stopWord: number;
  private readonly mainWord: number;
  private readonly waker: WakerHandle;
  private lastProgressMs = performance.now();
  private sleepCount = 0;
  private logTokens = LOG_BURST;
  private logRefilledMs = performance.now();
  private readonly seenMover = {
    postedRequestCount: 0,
    cutRequestCount: 0,
    repostedRequestCount: 0,
    retiredAgentCount: 0,
    writingMs: 0,
  };

  constructor(task: ShardTask, hooks: ShardHooks) {
    this.task = task;
    this.hooks = hooks;
    this.native = loadNative();
    const layout = readLayout(task.control);
    const table = new SlotTable(task.control, layout);
    const memory = new ExtentMemory(task.control, layout);
    const control = this.native.attachControl(task.control);
    const pool = this.native.attachPool(task.pool, control);
    this.words = table.words;
    this.counters = new WorkerCounters(task.control, layout, task.shard);
    this.submissions = this.ring(RingConsumer, submissionRing(layout, task.shard), layout);
    this.completions = this.ring(RingProducer, completionRing(layout, task.shard), layout);
    this.armedWord = workerArmedWord(layout, task.shard);
    this.stopWord = workerStopWord(layout, task.shard) / 4;
    this.mainWord = mainArmedWord(layout);
    this.waker = task.waker as WakerHandle;
    const scratch = workerScratch(layout, task.shard);
    const slots = new ShardSlots(
      table,
      memory,
      task.shard,
      this.counters,
      (extent, first, count) => {
        this.native.hashKeys(control, extent, first, count, scratch);
      },
      undefined,
      task.residencyMarks && new ResidencyMarker(task.residencyMarks, layout, task.shard),
    );
    this.operations = new ShardOperations({
      native: this.native,
      control,
      pool,
      layout,
      memory,
      slots,
      counters: this.counters,
      completions: this.completions,
      shard: task.shard,
      showCompletions: this.showCompletions,
      log: (level, text) => {
        this.log(level, text);
      },
    });
    if (task.nixlLibrary !== undefined) {
      const nixl = loadNixl();
      nixl.load(task.nixlLibrary);
      this.mover = new Mover({
        nixl,
        control,
        pool,
        numBlocks: layout.numBlocks,
        blockBytes: layout.blockBytes,
        events: this.operations,
        retireMs: task.retireMs,
        submissions: this.submissions,
        now: () => performance.now(),
      });
      this.mover.start();
      this.operations.mover = this.mover;
    }
    this.post({ kind: 'ready' });
  }

  run(): void {
    for (;;) {
      const taken = this.drain();
      const { jobs } = this.operations;
      const hasJob = !jobs.isEmpty;
      if (hasJob) jobs.step();
      const hasMoved = this.mover?.poll() ?? false;
      this.showCompletions();
      if (Atomics.load(this.words, this.stopWord) !== 0) return;
      if (hasMoved) {
        this.lastProgressMs = performance.now();
        this.sleepCount = 0;
        this.countMover();
      }
      if (taken > 0 || hasJob || hasMoved) continue;
      this.sleep();
    }
  }

  close(): void {
    this.mover?.close();
    this.task.port.close();
  }

  private drain(): number {
    const count = Math.min(this.submissions.available(), DRAIN_BUDGET);
    for (let i = 0; i < count; i += 1) {
      const at = this.submissions.wordAt(0);
      this.hooks.beforeOperation?.(this.words[at]);
      this.operations.run(this.words, at);
      // Before main can see that it is done: main counts on the record's place from then on.
      this.submissions.advance(1);
      this.showCompletions();
    }
    return count;
  }

  /** After every operation, so that none waits for the next one; main is woken only if there is one and it sleeps. */
  private readonly showCompletions = (): void => {
    if (!this.completions.publish() || !takeArmed(this.words, this.mainWord)) return;
    this.counters.add(Counter.Wakes, 1);
    this.native.wake(this.waker);
  };

  private sleep(): void {
    const openRequestCount = this.mover?.openRequestCount ?? 0;
    const ms = sleepFor({
      openRequestCount,
      oldestOpenAgeMs: this.mover?.oldestOpenAgeMs ?? 0,
      sinceProgressMs: performance.now() - this.lastProgressMs,
      sleepCount: this.sleepCount,
    });
    if (ms === 0) return;
    this.sleepCount += 1;
    this.counters.set(Counter.OpenWrites, openRequestCount);
    arm(this.words, this.armedWord);
    if (this.submissions.available() > 0 || Atomics.load(this.words, this.stopWord) !== 0) {
      disarm(this.words, this.armedWord);
      return;
    }
    this.counters.add(Counter.Sleeps, 1);
    sleepArmed(this.words, this.armedWord, ms);
  }

  private countMover(): void {
    if (this.mover === undefined) return;
    const { counters } = this.mover;
    const { seenMover } = this;
    this.counters.add(Counter.WritePosts, counters.postedRequestCount - seenMover.postedRequestCount);
    this.counters.add(Counter.WritesCut, counters.cutRequestCount - seenMover.cutRequestCount);
    this.counters.add(Counter.WritesReposted, counters.repostedRequestCount - seenMover.repostedRequestCount);
    this.counters.add(Counter.AgentsRetired, counters.retiredAgentCount - seenMover.retiredAgentCount);
    this.counters.add(Counter.WritingMs, counters.writingMs - seenMover.writingMs);
    Object.assign(seenMover, counters);
    this.counters.set(Counter.OpenWrites, this.mover.openRequestCount);
  }

  /** A log line costs main a message, so a fault that repeats must not become a flood: what is over is counted only. */
  private log(level: 'warn' | 'error', text: string): void {
    const now = performance.now();
    this.logTokens = Math.min(
      LOG_BURST,
      this.logTokens + ((now - this.logRefilledMs) / 1000) * LOG_PER_SECOND,
    );
    this.logRefilledMs = now;
    if (this.logTokens < 1) return;
    this.logTokens -= 1;
    this.post({ kind: 'log', level, text });
  }

  private post(message: WorkerMessage): void {
    this.task.port.postMessage(message);
  }

  private ring<T>(
    Side: new (words: Int32Array, ringOffset: number, capacity: number) => T,
    offset: number,
    layout: Layout,
  ): T {
    return new Side(this.words, offset, layout.ringCapacity);
  }
}
