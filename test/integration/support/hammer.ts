// Threads of the native-threads test: pinners that look keys up, an owner that re-uses slots, an echo behind rings.

import { parentPort, workerData } from 'node:worker_threads';
import { loadNative } from '../../../native/index.js';
import {
  BUCKET_ENTRIES,
  bucketOffset,
  completionRing,
  mainArmedWord,
  submissionRing,
  workerArmedWord,
  workerStopWord,
} from '../../../src/shared/layout.js';
import { readLayout } from '../../../src/shared/layout-header.js';
import { ExtentFlag, PositionStatus } from '../../../src/shared/operations.js';
import { RingConsumer, RingProducer, arm, sleepArmed, takeArmed } from '../../../src/shared/ring.js';
import { Phase, packState, phaseOf, pinsOf, generationOf } from '../../../src/shared/slot-state.js';
import type { SharedMemory, SharedPoolOptions } from '../../helpers/shared-pool.js';
import { SharedPool, keyOf } from '../../helpers/shared-pool.js';

export interface HammerTask {
  readonly role: 'pinner' | 'owner' | 'echo';
  readonly options: SharedPoolOptions;
  readonly memory: SharedMemory;
  /** Pinners: match calls, or more: see atLeast. */
  readonly calls: number;
  /** Keys are 0 .. keyCount - 1. */
  readonly keyCount: number;
  readonly waker: number;
  /** One word: how often the owner has re-used a slot. */
  readonly reused: Int32Array<SharedArrayBuffer>;
  /** Pinners go on until there were so many hits, misses and re-uses, however late the other threads got a core. */
  readonly atLeast: number;
}

export interface PinnerResult {
  readonly hits: number;
  readonly misses: number;
  /** Pinned slots whose record held another key than the one asked for. */
  readonly wrong: number;
}

export interface OwnerResult {
  readonly reused: number;
}

const KEYS_PER_CALL = 32;
const LISTS = 64;

function pin(task: HammerTask): PinnerResult {
  const pool = new SharedPool(task.options, task.memory);
  const { keyBytes } = pool.layout;
  const lists = Array.from({ length: LISTS }, () => {
    const keys = Array.from({ length: KEYS_PER_CALL }, () =>
      keyOf(Math.floor(Math.random() * task.keyCount), keyBytes),
    );
    return { keys, extent: pool.extent({ keys, flags: ExtentFlag.Pin }) };
  });
  let [hits, misses, wrong] = [0, 0, 0];
  const isEnough = (): boolean => Math.min(hits, misses, Atomics.load(task.reused, 0)) >= task.atLeast;
  for (let call = 0; call < task.calls || !isEnough(); call++) {
    const { keys, extent } = lists[call % LISTS];
    pool.match(extent);
    for (let position = 0; position < KEYS_PER_CALL; position++) {
      if (extent.statuses[position] !== PositionStatus.Pinned) {
        misses += 1;
        continue;
      }
      hits += 1;
      if (!pool.table.keyEquals(extent.slots[position], keys[position], 0)) wrong += 1;
    }
    pool.native.release(pool.controlHandle, extent.offset);
  }
  return { hits, misses, wrong };
}

/** Evicts and re-uses slots by the rules of the state word until the stop word is set. */
function own(task: HammerTask): OwnerResult {
  const pool = new SharedPool(task.options, task.memory);
  const { layout, table } = pool;
  const { words } = table;
  const places = Array.from({ length: task.keyCount }, (_, i) => {
    pool.resetArena();
    return pool.placeOf(keyOf(i));
  });
  const keyIn: number[] = new Array<number>(layout.numBlocks).fill(-1);
  const stop = workerStopWord(layout, 0) / 4;
  let reused = 0;
  while (Atomics.load(words, stop) === 0) {
    const slot = Math.floor(Math.random() * layout.numBlocks);
    const key = Math.floor(Math.random() * task.keyCount);
    if (keyIn.includes(key)) continue;
    const at = table.stateWord(slot);
    const state = Atomics.load(words, at);
    if (phaseOf(state) === Phase.Ready) {
      if (pinsOf(state) > 0) continue;
      const freed = packState(Phase.Free, generationOf(state) + 1, 0, 0);
      if (Atomics.compareExchange(words, at, state, freed) !== state) continue;
      clearEntry(pool, slot);
    }
    const generation = generationOf(Atomics.load(words, at));
    pool.writeRecord(slot, keyOf(key), Phase.Writing, generation);
    if (!pool.enter(places[key], slot)) throw new Error('both buckets are full');
    Atomics.store(words, at, packState(Phase.Ready, generation, 0, 0));
    keyIn[slot] = key;
    reused += 1;
    Atomics.store(task.reused, 0, reused);
  }
  return { reused };
}

function clearEntry(pool: SharedPool, slot: number): void {
  const { layout, table } = pool;
  const first = bucketOffset(layout, 0, 0) / 4;
  for (let entry = 0; entry < layout.bucketsPerShard * BUCKET_ENTRIES; entry++) {
    if (table.words[first + 2 * entry + 1] === slot + 1) Atomics.store(table.words, first + 2 * entry + 1, 0);
  }
}

/** Sends every record back, asleep whenever there is none. */
function echo(task: HammerTask): void {
  const native = loadNative();
  const layout = readLayout(task.memory.control);
  const words = new Int32Array(task.memory.control);
  const requests = new RingConsumer(words, submissionRing(layout, 0), layout.ringCapacity);
  const answers = new RingProducer(words, completionRing(layout, 0), layout.ringCapacity);
  const armed = workerArmedWord(layout, 0);
  while (Atomics.load(words, workerStopWord(layout, 0) / 4) === 0) {
    const count = requests.available();
    if (count === 0) {
      arm(words, armed);
      // No time-out: a wake-up that is lost stops the test.
      if (requests.available() === 0 && Atomics.load(words, workerStopWord(layout, 0) / 4) === 0) {
        sleepArmed(words, armed, Infinity);
      }
      continue;
    }
    for (let i = 0; i < count; i++) answers.push(1, words[requests.wordAt(i) + 1], 0, 0, 0, 0, 0, 0);
    requests.advance(count);
    answers.publish();
    if (takeArmed(words, mainArmedWord(layout))) native.wake(task.waker as Parameters<typeof native.wake>[0]);
  }
}

const task = workerData as HammerTask;
switch (task.role) {
  case 'pinner':
    parentPort?.postMessage(pin(task));
    break;
  case 'owner':
    parentPort?.postMessage(own(task));
    break;
  case 'echo':
    echo(task);
    break;
}
