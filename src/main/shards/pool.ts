// The worker threads: Piscina starts them, each runs one long serve() task, a supervisor replaces those that die.

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { MessageChannel, type Worker } from 'node:worker_threads';
import { Piscina } from 'piscina';
import { packageRoot } from '../../shared/nixl-dir.js';
import type { ShardTask, WorkerMessage } from '../../shared/shard-task.js';
import { KvpeerError } from '../errors.js';

/** A worker that is not ready after this time is given up. */
const READY_TIMEOUT_MS = 30_000;
/** Deaths of one worker within this time that end the node: something kills it as soon as it starts. */
const GIVE_UP_WITHIN_MS = 60_000;
const GIVE_UP_DEATHS = 5;
const CLOSE_TIMEOUT_MS = 5000;

export interface PoolEvents {
  /** The thread has exited, so nothing of it runs any more and its send agent is destroyed. */
  onWorkerLost(worker: number, reason: string): void;
  /** A replacement waits for its first submission. */
  onWorkerUp(worker: number): void;
  onLog(worker: number, level: 'warn' | 'error', text: string): void;
  /** The node cannot go on: a worker cannot be kept alive. */
  onFatal(error: KvpeerError): void;
}

export interface PoolOptions {
  readonly shardCount: number;
  /** What differs between workers and starts is added here. */
  readonly task: Omit<ShardTask, 'shard' | 'started' | 'port' | 'nixlLibrary'>;
  /** Library path for workers that move data. */
  readonly nixlLibraryOf: (worker: number) => string | undefined;
  /** Sets the worker's stop word and wakes it. */
  readonly stop: (worker: number) => void;
  readonly events: PoolEvents;
  /** Another worker file, for tests of what goes wrong; an absolute path of built JavaScript. */
  readonly workerFile?: string | undefined;
  readonly resourceLimits?: { readonly maxOldGenerationSizeMb: number } | undefined;
}

interface Running {
  readonly task: Promise<unknown>;
  readonly started: Int32Array;
}

/** Worker threads load built JavaScript, also when the caller runs from TypeScript sources. */
export function shardWorkerFile(): string {
  const file = join(packageRoot, 'dist', 'src', 'workers', 'shard.js');
  if (existsSync(file)) return file;
  throw new KvpeerError('KVPEER_NATIVE_UNAVAILABLE', `${file} is missing; run npm run build`);
}

/**
 * Piscina owns the threads and nothing else: a lookup never goes through it (a run() costs 30 to 80 us, a ring record
 * 0.3 us). Its tasks never return while the node lives, so the pool is always full and nothing else may be run in it.
 *
 * A rejected run() can come before the thread's end (an uncaught error) or without it (a plain throw), so the
 * supervisor ends the thread itself and acts after 'exit' only.
 */
export class WorkerPool {
  private readonly options: PoolOptions;
  private readonly piscina: Piscina;
  private readonly running: Running[] = [];
  private readonly exits = new Map<number, Promise<void>>();
  private readonly threads = new Map<number, Worker>();
  private readonly deaths: number[][];
  /** Who waits for the next loss of a worker. */
  private readonly losses: (() => void)[][];
  private readonly upWorkers = new Set<number>();
  private phase: 'running' | 'closing' = 'running';
  private closed: Promise<void> | undefined;
  private restarts = 0;

  private constructor(options: PoolOptions) {
    const { shardCount } = options;
    this.options = options;
    this.deaths = Array.from({ length: shardCount }, () => []);
    this.losses = Array.from({ length: shardCount }, () => []);
    this.piscina = new Piscina({
      filename: options.workerFile ?? shardWorkerFile(),
      name: 'serve',
      minThreads: shardCount,
      maxThreads: shardCount,
      concurrentTasksPerWorker: 1,
      idleTimeout: Infinity,
      atomics: 'disabled',
      recordTiming: false,
      closeTimeout: CLOSE_TIMEOUT_MS,
      ...(options.resourceLimits === undefined ? {} : { resourceLimits: options.resourceLimits }),
    });
    // Errors of threads that run no task, and close() that took too long; without a listener they end the process.
    this.piscina.on('error', (error: unknown) => {
      options.events.onLog(-1, 'error', `worker pool: ${textOf(error)}`);
    });
    this.piscina.on('workerCreate', () => {
      this.watchThreads();
    });
    this.watchThreads();
  }

  /**
   * Starts every worker and waits until all of them serve.
   *
   * @throws whatever a worker could not start with; nothing runs then
   */
  static async start(options: PoolOptions): Promise<WorkerPool> {
    const pool = new WorkerPool(options);
    const all = Array.from({ length: options.shardCount }, (_, worker) => pool.run(worker));
    try {
      await Promise.all(all);
    } catch (error) {
      await pool.close();
      throw error;
    }
    for (let worker = 0; worker < options.shardCount; worker += 1) void pool.supervise(worker);
    return pool;
  }

  /** Workers that died and were replaced. */
  get restartCount(): number {
    return this.restarts;
  }

  isUp(worker: number): boolean {
    return this.upWorkers.has(worker);
  }

  /**
   * Ends a worker's thread as it is, in the middle of whatever it does. It is replaced like any that died.
   *
   * @returns once its loss has been dealt with; the replacement is still starting then
   */
  async kill(worker: number): Promise<void> {
    const dealtWith = new Promise<void>((resolve) => this.losses[worker].push(resolve));
    await this.threads.get(Atomics.load(this.running[worker].started, 0))?.terminate();
    await dealtWith;
  }

  /** Stops the loops, then the threads. Idempotent. */
  close(): Promise<void> {
    this.closed ??= this.closeOnce();
    return this.closed;
  }

  private async closeOnce(): Promise<void> {
    this.phase = 'closing';
    this.running.forEach((_, worker) => {
      this.options.stop(worker);
    });
    const ends = Promise.allSettled(this.running.map(({ task }) => task));
    await Promise.race([ends, later(CLOSE_TIMEOUT_MS)]);
    // Loops that did not end are broken here: destroy() terminates their threads and waits for the exits.
    await this.piscina.destroy();
  }

  /** Starts the worker's task and waits until it serves. */
  private async run(worker: number): Promise<void> {
    const { task, nixlLibraryOf, events } = this.options;
    const { port1, port2 } = new MessageChannel();
    const started = new SharedArrayBuffer(4);
    const ready = new Promise<void>((resolve) => {
      port1.on('message', (message: WorkerMessage) => {
        if (message.kind === 'ready') resolve();
        else events.onLog(worker, message.level, message.text);
      });
    });
    port1.unref();
    const shardTask: ShardTask = {
      ...task,
      shard: worker,
      started,
      port: port2,
      nixlLibrary: nixlLibraryOf(worker),
    };
    const running = this.piscina.run(shardTask, { name: 'serve', transferList: [port2] }) as Promise<unknown>;
    this.running[worker] = { task: running, started: new Int32Array(started) };
    const ended = running.then(() => {
      throw new Error('the worker left its loop before it was ready');
    });
    const timeout = new AbortController();
    try {
      await Promise.race([
        ready,
        ended,
        later(READY_TIMEOUT_MS, timeout.signal).then(() => {
          throw new Error(`worker ${worker} is not ready after ${READY_TIMEOUT_MS} ms`);
        }),
      ]);
      this.upWorkers.add(worker);
    } finally {
      timeout.abort();
      ended.catch(() => undefined);
    }
  }

  /** Waits for the worker's death and replaces it, for as long as the node lives. */
  private async supervise(worker: number): Promise<void> {
    const { events } = this.options;
    for (;;) {
      const reason = await this.running[worker].task.then(
        () => 'it left its loop',
        (error: unknown) => textOf(error),
      );
      if (this.isClosing()) return;
      this.upWorkers.delete(worker);
      await this.endThread(worker);
      if (this.isClosing()) return;
      events.onWorkerLost(worker, reason);
      for (const resolve of this.losses[worker].splice(0)) resolve();
      if (this.diesTooOften(worker)) {
        events.onFatal(
          new KvpeerError(
            'KVPEER_WORKER_LOST',
            `worker ${worker} died ${GIVE_UP_DEATHS} times within ${GIVE_UP_WITHIN_MS} ms, last: ${reason}; ` +
              'the node cannot go on, see the log for the cause and start it again',
          ),
        );
        return;
      }
      this.restarts += 1;
      try {
        await this.run(worker);
      } catch (error) {
        if (this.isClosing()) return;
        events.onLog(worker, 'error', `the replacement of worker ${worker} did not start: ${textOf(error)}`);
        if (this.piscina.threads.length < this.options.shardCount) {
          // Piscina makes no further threads after one that failed while it started.
          events.onFatal(
            new KvpeerError(
              'KVPEER_WORKER_LOST',
              `worker ${worker} died and its replacement did not start: ${textOf(error)}; start the node again`,
            ),
          );
          return;
        }
        continue;
      }
      events.onWorkerUp(worker);
    }
  }

  private isClosing(): boolean {
    return this.phase === 'closing';
  }

  private diesTooOften(worker: number): boolean {
    const now = performance.now();
    const deaths = this.deaths[worker].filter((at) => now - at < GIVE_UP_WITHIN_MS);
    deaths.push(now);
    this.deaths[worker] = deaths;
    return deaths.length >= GIVE_UP_DEATHS;
  }

  /** Resolves after the 'exit' of the thread that ran the worker's task; ends the thread if it lives on. */
  private async endThread(worker: number): Promise<void> {
    const threadId = Atomics.load(this.running[worker].started, 0);
    // The task never began: no thread has touched the shard.
    if (threadId === 0) return;
    this.watchThreads();
    const exit = this.exits.get(threadId);
    void this.threads.get(threadId)?.terminate();
    await exit;
    this.exits.delete(threadId);
  }

  private watchThreads(): void {
    for (const thread of this.piscina.threads) {
      const { threadId } = thread;
      if (threadId < 0 || this.threads.has(threadId)) continue;
      this.threads.set(threadId, thread);
      this.exits.set(
        threadId,
        new Promise((resolve) => {
          thread.once('exit', () => {
            this.threads.delete(threadId);
            resolve();
          });
        }),
      );
    }
  }
}

function later(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    timer.unref();
    signal?.addEventListener('abort', () => {
      clearTimeout(timer);
    });
  });
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
