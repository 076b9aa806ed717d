// Real shards for integration tests: started on a small pool, with operations as promises and a check of the pool.

import { createHash } from 'node:crypto';
import { Counter } from '../../src/shared/counters.js';
import { Phase, SlotTable, phaseOf, pinsOf } from '../../src/shared/slot-state.js';
import type { Done, Failure, KeySpan, SlotSet } from '../../src/main/shards/shard-client.js';
import { type StartShardsOptions, type StartedShards, startShards } from '../../src/main/shards/start.js';

export const BLOCK_BYTES = 4096;
export const KEY_BYTES = 36;

/** Shards without a data plane, unless told otherwise. Messages go to `log`. */
export async function startTestShards(
  options: Partial<StartShardsOptions> & { readonly blocks: number; readonly log?: string[] },
): Promise<StartedShards> {
  const { blocks, log = [], ...rest } = options;
  const note = (fields: object, message: string): void => {
    log.push(`${message} ${JSON.stringify(fields)}`);
  };
  return startShards(
    {
      poolBytes: blocks * BLOCK_BYTES,
      blockBytes: BLOCK_BYTES,
      keyBytes: KEY_BYTES,
      shards: 2,
      dataPlane: 'none',
      host: '127.0.0.1',
      // A replacement of a worker takes seconds on a busy machine; what waits for it is not to end meanwhile.
      queueMs: 60_000,
      ...rest,
    },
    { info: note, warn: note, error: note, fatal: note },
  );
}

/** Keys of these ids, packed. */
export function keysOf(ids: readonly number[]): KeySpan {
  const bytes = new Uint8Array(ids.length * KEY_BYTES);
  ids.forEach((id, i) => {
    bytes.set(createHash('sha256').update(String(id)).digest(), i * KEY_BYTES);
  });
  return { bytes, first: 0, stride: KEY_BYTES, count: ids.length };
}

export function range(first: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => first + i);
}

/** How an operation ended. */
export interface Ended<T> {
  readonly failure: Failure | undefined;
  readonly result: T;
}

export function ended<T>(call: (done: Done<T>) => void): Promise<Ended<T>> {
  return new Promise((resolve) => {
    call((failure, result) => {
      resolve({ failure, result });
    });
  });
}

/** The result, or a rejection that names the failure. */
export async function ok<T>(call: (done: Done<T>) => void): Promise<T> {
  const { failure, result } = await ended(call);
  if (failure !== undefined) throw new Error(`failed: ${JSON.stringify(failure)}`);
  return result;
}

export async function okSet(call: (done: Done<SlotSet | undefined>) => void): Promise<SlotSet> {
  const set = await ok(call);
  if (set === undefined) throw new Error('no set');
  return set;
}

/** Blocks of these ids with their content, published and pinned by nobody. */
export async function store({ client }: StartedShards, ids: readonly number[]): Promise<void> {
  const set = await okSet((done) => {
    client.reserve(keysOf(ids), done);
  });
  await ok<undefined>((done) => {
    client.fill(set, done);
  });
  await ok<undefined>((done) => {
    client.publish(set, { keepPins: false }, done);
  });
}

/** What the slot records say, which everything else must agree with. */
export function poolState(shards: StartedShards): {
  readonly phases: { free: number; writing: number; ready: number; quarantined: number };
  readonly pins: number;
  readonly gaugesAgree: boolean;
  readonly clientPins: number;
} {
  const { memory } = shards;
  const table = new SlotTable(memory.control, memory.layout);
  const phases = { free: 0, writing: 0, ready: 0, quarantined: 0 };
  let pins = 0;
  for (let slot = 0; slot < memory.layout.numBlocks; slot += 1) {
    const state = table.state(slot);
    pins += pinsOf(state);
    const phase = phaseOf(state);
    if (phase === Phase.Free) phases.free += 1;
    else if (phase === Phase.Writing) phases.writing += 1;
    else if (phase === Phase.Ready) phases.ready += 1;
    else phases.quarantined += 1;
  }
  const gaugesAgree =
    shards.counter(Counter.FreeSlots) === phases.free &&
    shards.counter(Counter.WritingSlots) === phases.writing &&
    shards.counter(Counter.QuarantinedSlots) === phases.quarantined;
  return { phases, pins, gaugesAgree, clientPins: shards.client.pinCount };
}

/** Resolves once nothing is open or waiting at the client. */
export async function quiet({ client }: StartedShards): Promise<void> {
  while (client.inFlight.openCount > 0 || client.inFlight.waitingCount > 0) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}
