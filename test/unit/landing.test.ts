// When slots that a remote write could reach become free.

import { expect, test } from 'vitest';
import type { Arrivals } from '../../native/nixl.js';
import { LandingGate } from '../../src/main/shards/landing.js';

/** Arrivals are byte counts here: read once `read` has reached them. */
function setUp() {
  const timers: (() => void)[] = [];
  const state = { arrived: 0, read: 0, hasAgent: true };
  const gate = new LandingGate({
    waitingArrivals: () => (state.hasAgent ? (Float64Array.of(state.arrived) as Arrivals) : undefined),
    haveBeenRead: (arrivals) => state.read >= arrivals[0],
    after: (_, callback) => timers.push(callback),
  });
  const log: string[] = [];
  const ask = (name: string) => {
    gate.whenLanded(() => log.push(name));
  };
  const tick = () => {
    for (const timer of timers.splice(0)) timer();
  };
  return { gate, state, log, ask, tick, timers };
}

test('nothing goes on at once, even when nothing waits: the last bytes read may still be copied', () => {
  const { log, ask, tick } = setUp();
  ask('a');
  expect(log).toEqual([]);
  tick();
  expect(log).toEqual(['a']);
});

test('what had arrived is waited for, what comes later is not', () => {
  const { state, log, ask, tick } = setUp();
  state.arrived = 100;
  ask('a');
  state.arrived = 1000;
  tick();
  expect(log).toEqual([]);
  state.read = 100;
  tick();
  expect(log).toEqual(['a']);
});

test('whoever asks during a look gets one of its own', () => {
  const { state, log, ask, tick } = setUp();
  ask('a');
  state.arrived = 100;
  ask('b');
  ask('c');
  tick();
  expect(log).toEqual(['a']);
  tick();
  expect(log).toEqual(['a']);
  state.read = 100;
  tick();
  expect(log).toEqual(['a', 'b', 'c']);
});

test('without a receive agent nothing can land', () => {
  const { state, log, ask, tick, timers } = setUp();
  state.hasAgent = false;
  state.arrived = 100;
  ask('a');
  tick();
  expect(log).toEqual(['a']);
  expect(timers).toEqual([]);
});

test('asking from inside the callback works', () => {
  const { gate, log, ask, tick } = setUp();
  gate.whenLanded(() => {
    log.push('a');
    ask('b');
  });
  tick();
  tick();
  expect(log).toEqual(['a', 'b']);
});

test('closing lets everyone go on', () => {
  const { gate, state, log, ask, tick } = setUp();
  state.arrived = 100;
  ask('a');
  ask('b');
  gate.close();
  expect(log).toEqual(['a', 'b']);
  ask('c');
  tick();
  expect(log).toEqual(['a', 'b', 'c']);
});
