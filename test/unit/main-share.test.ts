// What the main thread matches and releases itself, by a clock that the test moves.

import { describe, expect, it } from 'vitest';
import { MainShare } from '../../src/main/shards/main-share.js';

/** A share that has seen no match yet, and its clock. */
function setUp() {
  const clock = { ms: 1000 };
  const share = new MainShare(() => clock.ms);
  /** Lets time pass, then asks for a match. */
  const match = (afterMs: number, keyCount: number, isIdle = true) => {
    clock.ms += afterMs;
    return share.takesMatch(keyCount, isIdle);
  };
  const release = (afterMs: number, pinCount: number) => {
    clock.ms += afterMs;
    return share.takesRelease(pinCount);
  };
  return { match, release };
}

describe('a match', () => {
  it('of up to 1,024 keys is made on the main thread when it comes alone, the first one too', () => {
    const { match } = setUp();
    expect(match(0, 1024)).toBe(true);
    expect(match(1, 1025)).toBe(false);
    expect(match(1, 1024)).toBe(true);
  });

  it('of more than 64 keys goes to a worker for 20 ms after two came together', () => {
    const { match } = setUp();
    match(0, 1);
    expect(match(0.05, 65)).toBe(false);
    expect(match(19, 65)).toBe(false);
    expect(match(0.9, 65)).toBe(false);
    expect(match(0.2, 65)).toBe(true);
  });

  it('that comes a tenth of a millisecond after the last one still comes alone', () => {
    const { match } = setUp();
    match(0, 1024);
    expect(match(0.125, 1024)).toBe(true);
  });

  it('of at most 64 keys stays on the main thread however many come together', () => {
    const { match } = setUp();
    expect([match(0, 64), match(0, 64), match(0, 64)]).toEqual([true, true, true]);
  });

  it('of any length goes to a worker while one has something in hand, and long ones for 20 ms afterwards', () => {
    const { match } = setUp();
    expect(match(0, 1, false)).toBe(false);
    expect(match(5, 64)).toBe(true);
    expect(match(5, 65)).toBe(false);
    expect(match(10, 65)).toBe(true);
  });
});

describe('pins', () => {
  it('of up to 32 blocks are given back on the main thread even when it is short of time', () => {
    const { match, release } = setUp();
    match(0, 1, false);
    expect(release(0, 32)).toBe(true);
    expect(release(0, 33)).toBe(false);
  });

  it('of up to 1,024 blocks are given back there while matches come one by one', () => {
    const { match, release } = setUp();
    expect(release(0, 1024)).toBe(true);
    expect(release(0, 1025)).toBe(false);
    match(0, 1024);
    expect(release(0, 1024)).toBe(true);
    match(0.05, 1024);
    expect(release(19, 1024)).toBe(false);
    expect(release(1.5, 1024)).toBe(true);
  });

  it('given back are no match: they make nobody short of time', () => {
    const { match, release } = setUp();
    release(0, 1024);
    release(0, 1024);
    expect(match(0, 1024)).toBe(true);
  });
});
