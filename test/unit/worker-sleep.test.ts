// A worker with writes in flight looks often at first and rarely at a frozen peer; without writes it only waits.

import { describe, expect, it } from 'vitest';
import { sleepFor } from '../../src/workers/sleep.js';

const busy = { openRequestCount: 1, oldestOpenAgeMs: 1, sinceProgressMs: 1, sleepCount: 0 };

describe('the sleep of a worker', () => {
  it('is half a second without open requests, whatever happened before', () => {
    expect(sleepFor({ ...busy, openRequestCount: 0, sinceProgressMs: 0 })).toBe(500);
  });

  it('is nothing in the first 50 us after progress', () => {
    expect(sleepFor({ ...busy, sinceProgressMs: 0.049 })).toBe(0);
    expect(sleepFor({ ...busy, sinceProgressMs: 0.05 })).toBe(0.05);
  });

  it('grows from 50 us over 200 us to 1 ms', () => {
    expect([0, 1, 2, 3, 50].map((sleepCount) => sleepFor({ ...busy, sleepCount }))).toEqual([
      0.05, 0.2, 1, 1, 1,
    ]);
  });

  it('is 25 ms once a request is older than 100 ms and nothing else moves', () => {
    const frozen = { ...busy, oldestOpenAgeMs: 5000, sinceProgressMs: 101, sleepCount: 60 };
    expect(sleepFor(frozen)).toBe(25);
    expect(sleepFor({ ...frozen, sinceProgressMs: 2, sleepCount: 0 })).toBe(0.05);
  });

  it('costs a frozen write at most 1 % of a core at 100 us for each look', () => {
    const frozen = { ...busy, oldestOpenAgeMs: 5000, sinceProgressMs: 5000, sleepCount: 1000 };
    expect(0.1 / sleepFor(frozen)).toBeLessThanOrEqual(0.01);
  });
});
