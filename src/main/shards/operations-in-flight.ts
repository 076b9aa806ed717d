// The operations that main has given to workers: admission, rings, completions, and a worker's loss.

import { type Layout, mainArmedWord } from '../../shared/layout.js';
import { ExtentWord, NO_EXTENT, Opcode, Outcome } from '../../shared/operations.js';
import { arm, disarm } from '../../shared/ring.js';
import { Numbered } from './numbered.js';
import { type EndWaiting, RoomQueue } from './room-queue.js';
import { WorkerLink } from './worker-link.js';

/** Records of a ring that admission leaves free: for the rebuild of a shard and for records without a completion. */
const RING_HEADROOM = 4;
/** Completions handled before the event loop gets its turn. */
const DRAIN_BUDGET = 256;

/** Results that were lost with the worker that had them; the asker counts for itself. */
export const LOST_RESULT = -1;
/** Stands for an outcome when the node closed before the operation ended. */
export const CLOSED = -1;

/** What becomes of an operation when a worker that has a part of it dies before that part is done. */
export type OnWorkerLost =
  /** It ends with WorkerLost once the other owners are done. */
  | 'fail'
  /** The part is done again by the worker's replacement: it does only what is left. */
  | 'repeat'
  /** As repeat, by any worker. */
  | 'repeatAnywhere'
  /** The death was the end of it: a hard stop, a removal. */
  | 'complete'
  /** Done when its pins are recorded, else it fails: a match. */
  | 'ifRecorded';

export interface Operation {
  readonly opcode: Opcode;
  /** Byte offset, or NO_EXTENT. */
  readonly extent: number;
  readonly arg0: number;
  readonly arg1: number;
  readonly arg2: number;
  readonly onWorkerLost: OnWorkerLost;
  /** Exactly once. Results are LOST_RESULT when the worker that had them died; the outcome may be CLOSED. */
  readonly done: (
    outcome: Outcome | typeof CLOSED,
    result0: number,
    result1: number,
    result2: number,
  ) => void;
}

interface OpenOperation {
  readonly operation: Operation;
  opNumber: number;
  /** Bit w: worker w was given a part. */
  owners: number;
}

export interface InFlightOptions {
  readonly control: SharedArrayBuffer;
  readonly layout: Layout;
  /** How long an operation may wait for room. */
  readonly queueMs: number;
  /** Operations that may wait at a time; further ones expire at once. */
  readonly maxWaitingCount: number;
}

/**
 * Main side of the rings. A worker has at most as many open operations as its rings have records, so neither its
 * completions nor main's submissions can find a ring full; what is over waits in a RoomQueue.
 */
export class OperationsInFlight {
  /** Called after completions were handled, before main sleeps. */
  onDrained: (() => void) | undefined;
  private readonly words: Int32Array;
  private readonly layout: Layout;
  private readonly workers: WorkerLink[];
  /** Per worker: parts to be done again by its replacement. */
  private readonly repeats: OpenOperation[][];
  private readonly open: Numbered<OpenOperation>;
  private readonly queue: RoomQueue;
  private isScheduled = false;
  private isClosed = false;
  private nextWorker = 0;
  private readonly mainWord: number;
  /** Open operations per worker. */
  private readonly admitted: number;

  constructor(options: InFlightOptions) {
    const { layout } = options;
    this.layout = layout;
    this.queue = new RoomQueue(options.queueMs, options.maxWaitingCount);
    this.words = new Int32Array(options.control, 0, layout.controlBytes / 4);
    this.mainWord = mainArmedWord(layout);
    this.admitted = layout.ringCapacity - RING_HEADROOM;
    this.open = new Numbered(layout.ringCapacity * layout.shardCount);
    this.workers = Array.from(
      { length: layout.shardCount },
      (_, worker) => new WorkerLink(this.words, layout, worker),
    );
    this.repeats = this.workers.map(() => []);
    this.goToSleep();
  }

  get workerCount(): number {
    return this.workers.length;
  }

  get openCount(): number {
    return this.open.size;
  }

  get waitingCount(): number {
    return this.queue.count;
  }

  openCountOf(worker: number): number {
    return this.workers[worker].openCount;
  }

  isUp(worker: number): boolean {
    return this.workers[worker].isUp;
  }

  /** Bits of all workers. */
  get allOwners(): number {
    return 2 ** this.workers.length - 1;
  }

  /** The live worker with the fewest open operations, one without a transfer in hand first; -1 when none has room. */
  leastBusy(): number {
    let best = -1;
    let bestLoad = Infinity;
    for (let worker = 0; worker < this.workers.length; worker += 1) {
      const link = this.workers[worker];
      if (!link.isUp || link.openCount >= this.admitted) continue;
      const load = link.openCount + (link.serveCount > 0 ? this.layout.ringCapacity : 0);
      if (load >= bestLoad) continue;
      best = worker;
      bestLoad = load;
    }
    return best;
  }

  /** Whether each of these workers lives and has room. */
  hasRoom(owners: number): boolean {
    for (let worker = 0; worker < this.workers.length; worker += 1) {
      if ((owners & (1 << worker)) === 0) continue;
      const link = this.workers[worker];
      if (!link.isUp || link.openCount >= this.admitted) return false;
    }
    return true;
  }

  /**
   * Gives the operation to its owners, who must have room.
   *
   * @returns its number
   */
  submit(operation: Operation, owners: number): number {
    const entry: OpenOperation = { operation, opNumber: 0, owners };
    const opNumber = this.open.add(entry);
    entry.opNumber = opNumber;
    if (operation.extent !== NO_EXTENT) {
      const header = operation.extent / 4;
      this.words[header + ExtentWord.Recorded] = 0;
      this.words[header + ExtentWord.OwnersLeft] = owners;
      this.words[header + ExtentWord.Outcome] = Outcome.Ok;
    }
    for (let worker = 0; worker < this.workers.length; worker += 1) {
      if ((owners & (1 << worker)) !== 0) this.give(entry, worker);
    }
    return opNumber;
  }

  /** The same operation in parts: each owner has its own first argument pair (a range of positions). */
  submitRanges(
    operation: Operation,
    ranges: readonly { worker: number; first: number; count: number }[],
  ): void {
    let owners = 0;
    for (const range of ranges) owners |= 1 << range.worker;
    const header = operation.extent / 4;
    this.words[header + ExtentWord.Recorded] = 0;
    this.words[header + ExtentWord.OwnersLeft] = owners;
    this.words[header + ExtentWord.Outcome] = Outcome.Ok;
    const entry: OpenOperation = { operation, opNumber: 0, owners };
    const opNumber = this.open.add(entry);
    entry.opNumber = opNumber;
    for (const { worker, first, count } of ranges) {
      const link = this.workers[worker];
      link.openCount += 1;
      link.push(operation.opcode, opNumber, operation.extent, first, count, 0);
    }
  }

  /** A record that has no completion of its own. False when the ring is full. */
  notify(worker: number, opcode: Opcode, arg0: number): boolean {
    const link = this.workers[worker];
    if (!link.hasFreeRecord()) return false;
    link.push(opcode, 0, NO_EXTENT, arg0, 0, 0);
    return true;
  }

  /** See RoomQueue. */
  whenRoom(attempt: () => boolean, urgency: 'bounded' | 'must', end: EndWaiting): void {
    this.queue.whenRoom(attempt, urgency, end);
  }

  /** Tries what waits for room: memory of the arena was given back. */
  pump(): void {
    this.queue.pump();
  }

  /** Runs something and then handles what has arrived: until then nobody wakes the main thread. */
  whileAwake(run: () => void): void {
    if (!this.isScheduled && !this.isClosed) disarm(this.words, this.mainWord);
    try {
      run();
    } finally {
      this.drain();
    }
  }

  /** Handles what has arrived; called when the waker fires. */
  readonly drain = (): void => {
    if (this.isScheduled || this.isClosed) return;
    this.drainNow();
  };

  private readonly drainLater = (): void => {
    this.isScheduled = false;
    if (!this.isClosed) this.drainNow();
  };

  private drainNow(): void {
    let isAsleep = false;
    try {
      isAsleep = this.drainSome();
    } finally {
      // Also when something threw: nobody wakes the main thread while its word is not armed.
      if (!isAsleep && !this.isClosed) {
        this.isScheduled = true;
        setImmediate(this.drainLater);
      }
    }
  }

  /** @returns whether everything was seen and main's word is armed */
  private drainSome(): boolean {
    let budget = DRAIN_BUDGET;
    // What comes while the rest is handled is handled, too: a turn of the event loop for it would cost more than it.
    do {
      for (let turn = 0; turn < this.workers.length && budget > 0; turn += 1) {
        this.nextWorker = this.nextWorker + 1 >= this.workers.length ? 0 : this.nextWorker + 1;
        budget -= this.take(this.nextWorker, budget);
      }
      this.queue.pump();
      this.onDrained?.();
    } while (budget > 0 && !this.isClosed && !this.goToSleep());
    return budget > 0 && !this.isClosed;
  }

  /** Arms main's word. @returns false when something has arrived meanwhile: then the word is not armed */
  private goToSleep(): boolean {
    arm(this.words, this.mainWord);
    if (!this.workers.some((link) => link.consumer.available() > 0)) return true;
    disarm(this.words, this.mainWord);
    return false;
  }

  private take(worker: number, budget: number): number {
    const { consumer } = this.workers[worker];
    const count = Math.min(consumer.available(), budget);
    const { words } = this;
    for (let i = 0; i < count; i += 1) {
      const at = consumer.wordAt(0);
      const opNumber = words[at + 1];
      const outcome = words[at + 3] as Outcome;
      const result0 = words[at + 4];
      const result1 = words[at + 5];
      const result2 = words[at + 6];
      // Its place is free before the callback may submit something whose completion needs one.
      consumer.advance(1);
      this.complete(opNumber, outcome, result0, result1, result2);
    }
    return count;
  }

  private complete(
    opNumber: number,
    outcome: Outcome,
    result0: number,
    result1: number,
    result2: number,
  ): void {
    const entry = this.open.get(opNumber);
    // Not open: its worker died after the last part and before this record, and main ended it then.
    if (entry === undefined) return;
    this.open.delete(opNumber);
    this.discount(entry, entry.owners);
    try {
      entry.operation.done(outcome, result0, result1, result2);
    } catch (error) {
      // A caller's mistake must not stop the other completions; it surfaces as an uncaught exception.
      queueMicrotask(() => {
        throw error;
      });
    }
  }

  private discount(entry: OpenOperation, owners: number): void {
    for (let worker = 0; worker < this.workers.length; worker += 1) {
      if ((owners & (1 << worker)) === 0) continue;
      this.workers[worker].openCount -= 1;
      if (isServe(entry.operation)) this.workers[worker].serveCount -= 1;
    }
  }

  private give(entry: OpenOperation, worker: number): void {
    const link = this.workers[worker];
    link.openCount += 1;
    if (isServe(entry.operation)) link.serveCount += 1;
    pushWhole(link, entry);
  }

  // ---- loss of a worker

  /**
   * The worker's thread has exited. What it had finished is completed, what it had not is failed, completed or kept
   * for its replacement; its rings are empty afterwards and nothing is given to it before `workerUp`.
   */
  workerLost(worker: number): void {
    const link = this.workers[worker];
    link.isUp = false;
    while (this.take(worker, DRAIN_BUDGET) > 0);
    const affected = this.open.all().filter((entry) => (entry.owners & (1 << worker)) !== 0);
    link.clearRings();
    for (const entry of affected) this.partLost(entry, worker);
    this.queue.pump();
  }

  /** The replacement runs: first `before` (the rebuild, peers), then the parts that wait to be done again. */
  workerUp(worker: number, before: () => void): void {
    const link = this.workers[worker];
    link.isUp = true;
    before();
    for (const entry of this.repeats[worker].splice(0)) pushWhole(link, entry);
    this.queue.pump();
  }

  private partLost(entry: OpenOperation, worker: number): void {
    const { operation } = entry;
    const bit = 1 << worker;
    if (operation.extent === NO_EXTENT) {
      const outcome = operation.onWorkerLost === 'complete' ? Outcome.Ok : Outcome.WorkerLost;
      this.complete(entry.opNumber, outcome, LOST_RESULT, LOST_RESULT, LOST_RESULT);
      return;
    }
    const header = operation.extent / 4;
    const isPartDone = (Atomics.load(this.words, header + ExtentWord.OwnersLeft) & bit) === 0;
    if (isPartDone) {
      if (Atomics.load(this.words, header + ExtentWord.OwnersLeft) === 0) this.completeFromExtent(entry);
      return;
    }
    switch (operation.onWorkerLost) {
      case 'repeat':
        this.repeats[worker].push(entry);
        return;
      case 'repeatAnywhere': {
        const other = this.leastBusy();
        if (other < 0) {
          this.repeats[worker].push(entry);
          return;
        }
        this.discount(entry, bit);
        entry.owners = 1 << other;
        this.words[header + ExtentWord.OwnersLeft] = entry.owners;
        this.give(entry, other);
        return;
      }
      case 'ifRecorded':
        if ((Atomics.load(this.words, header + ExtentWord.Recorded) & bit) === 0) {
          Atomics.compareExchange(this.words, header + ExtentWord.Outcome, Outcome.Ok, Outcome.WorkerLost);
        }
        break;
      case 'fail':
        Atomics.compareExchange(this.words, header + ExtentWord.Outcome, Outcome.Ok, Outcome.WorkerLost);
        break;
      case 'complete':
        break;
    }
    const left = Atomics.and(this.words, header + ExtentWord.OwnersLeft, ~bit) & ~bit;
    if (left === 0) this.completeFromExtent(entry);
  }

  private completeFromExtent(entry: OpenOperation): void {
    const outcome = Atomics.load(this.words, entry.operation.extent / 4 + ExtentWord.Outcome) as Outcome;
    this.complete(entry.opNumber, outcome, LOST_RESULT, LOST_RESULT, LOST_RESULT);
  }

  // ---- end

  /** Every worker has exited: whatever is open or waiting ends as closed. */
  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    const waiting = this.queue.close();
    const open = this.open.all();
    this.open.clear();
    for (const entry of open) entry.operation.done(CLOSED, LOST_RESULT, LOST_RESULT, LOST_RESULT);
    for (const end of waiting) end('closed');
  }
}

function isServe(operation: Operation): boolean {
  return operation.opcode === Opcode.Serve;
}

/** All of it, as an owner gets it that has no range of positions. */
function pushWhole(link: WorkerLink, { operation, opNumber }: OpenOperation): void {
  link.push(operation.opcode, opNumber, operation.extent, operation.arg0, operation.arg1, operation.arg2);
}
