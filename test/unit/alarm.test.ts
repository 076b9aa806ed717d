// The one timer of a node.

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { Alarm } from '../../src/main/alarm.js';

let fired: number[] = [];

function start(): Alarm {
  return new Alarm(
    () => Date.now(),
    (nowMs) => fired.push(nowMs),
  );
}

describe('the alarm', () => {
  beforeEach(() => {
    fired = [];
    vi.useFakeTimers({ now: 0 });
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it('rings at or soon after a time that was asked for, rounded up to 10 ms', () => {
    const alarm = start();
    alarm.wakeAt(15);
    vi.advanceTimersByTime(19);
    expect(fired).toEqual([]);
    vi.advanceTimersByTime(1);
    expect(fired).toEqual([20]);
    vi.advanceTimersByTime(1_000);
    expect(fired).toEqual([20]);
  });

  it('rings once for all times of a grain, and in the order of the times', () => {
    const alarm = start();
    for (const timeMs of [300, 100, 101, 95, 200, 96, 299, 100]) alarm.wakeAt(timeMs);
    vi.advanceTimersByTime(1_000);
    expect(fired).toEqual([100, 110, 200, 300]);
  });

  it('rings for an earlier time that is asked for later', () => {
    const alarm = start();
    alarm.wakeAt(1_000);
    vi.advanceTimersByTime(100);
    alarm.wakeAt(200);
    vi.advanceTimersByTime(100);
    expect(fired).toEqual([200]);
    vi.advanceTimersByTime(800);
    expect(fired).toEqual([200, 1_000]);
  });

  it('rings soon for a time that is past', () => {
    const alarm = start();
    vi.advanceTimersByTime(500);
    alarm.wakeAt(100);
    vi.advanceTimersByTime(1);
    expect(fired).toEqual([501]);
  });

  it('may be set while it rings', () => {
    const alarm = new Alarm(
      () => Date.now(),
      (nowMs) => {
        fired.push(nowMs);
        if (nowMs < 50) alarm.wakeAt(nowMs + 10);
      },
    );
    alarm.wakeAt(10);
    vi.advanceTimersByTime(1_000);
    expect(fired).toEqual([10, 20, 30, 40, 50]);
  });

  it('waits for a time further away than one timer can be set to', () => {
    const alarm = start();
    const farMs = 2 ** 31 * 3;
    alarm.wakeAt(farMs);
    vi.advanceTimersByTime(2 ** 31);
    expect(fired).toEqual([]);
    expect(vi.getTimerCount()).toBe(1);
    vi.advanceTimersByTime(2 ** 31 * 2 + 10);
    expect(fired).toHaveLength(1);
  });

  it('takes no time that never comes, and none once it is stopped', () => {
    const alarm = start();
    alarm.wakeAt(Infinity);
    expect(vi.getTimerCount()).toBe(0);
    alarm.wakeAt(10);
    alarm.stop();
    alarm.wakeAt(20);
    vi.advanceTimersByTime(100);
    expect(fired).toEqual([]);
    expect(vi.getTimerCount()).toBe(0);
  });
});
