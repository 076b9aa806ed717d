// Whether a kvpeer is again where it was before a test: slots, pins, sessions, NIXL peers, sockets.

import { expect } from 'vitest';

import { eventually, type Kvpeer, type Levels } from './kvpeer.js';

/** What of a node's figures must not change for good. Blocks that arrived whole stay, so slots are counted together. */
function lasting({ free, ready, writing, quarantined, ...others }: Levels): object {
  return { usableSlots: free + ready, writing, quarantined, ...others };
}

/** Waits until everything is back at the level of before; fails with both. */
export async function expectBackTo(kvpeer: Kvpeer, before: Levels, timeoutMs = 15_000): Promise<void> {
  const wanted = JSON.stringify(lasting(before));
  const found = await eventually(
    () => kvpeer.levels(),
    (levels) => JSON.stringify(lasting(levels)) === wanted,
    timeoutMs,
  ).catch(() => kvpeer.levels());
  expect(lasting(found)).toEqual(lasting(before));
}
