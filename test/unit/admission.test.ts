// What strangers may cost before there is a session.

import { describe, expect, test } from 'vitest';
import { Admission, DEFAULT_ADMISSION_LIMITS } from '../../src/main/control/admission.js';

const SMALL = {
  ...DEFAULT_ADMISSION_LIMITS,
  peers: 2,
  strangers: 3,
  strangerFrames: 4,
  strangerFramesPerSecond: 2,
  connects: 2,
  connectsPerSecond: 0.5,
};

function frames(admission: Admission, address: string, count: number, nowMs: number): (string | undefined)[] {
  return Array.from({ length: count }, () => admission.onFrame(address, 100, nowMs));
}

describe('frames of a stranger', () => {
  test('are heard up to its allowance, which comes back with time and never exceeds its size', () => {
    const admission = new Admission(SMALL);
    expect(frames(admission, 'a:1', 5, 0)).toEqual([
      undefined,
      undefined,
      undefined,
      undefined,
      'stranger_frames',
    ]);
    expect(frames(admission, 'a:1', 2, 500)).toEqual([undefined, 'stranger_frames']);
    expect(frames(admission, 'a:1', 5, 1_000_000).at(-1)).toBe('stranger_frames');
  });

  test('have each address pay for itself', () => {
    const admission = new Admission(SMALL);
    frames(admission, 'a:1', 10, 0);
    expect(frames(admission, 'b:1', 1, 0)).toEqual([undefined]);
  });

  test('are refused unread when they are longer than any connect', () => {
    const admission = new Admission(SMALL);
    expect(admission.onFrame('a:1', SMALL.strangerFrameBytes, 0)).toBeUndefined();
    expect(admission.onFrame('a:1', SMALL.strangerFrameBytes + 1, 0)).toBe('stranger_frame_size');
  });

  test('start afresh on a new connection: what was left of a dead session does not cost the next its connect', () => {
    const admission = new Admission(SMALL);
    frames(admission, 'a:1', 10, 0);
    admission.onPeerGone('a:1');
    expect(frames(admission, 'a:1', 1, 0)).toEqual([undefined]);
    admission.onPeerGone('never seen:1');
    expect(admission.strangerCount).toBe(1);
  });

  test('a clock that steps back gives nothing away and takes nothing', () => {
    const admission = new Admission(SMALL);
    frames(admission, 'a:1', 4, 1_000);
    expect(frames(admission, 'a:1', 1, 500)).toEqual(['stranger_frames']);
  });
});

describe('connects', () => {
  test('number 18: are refused when every place for a peer is taken', () => {
    const admission = new Admission(SMALL);
    expect(admission.onConnect('a:1', 1, 0)).toBeUndefined();
    expect(admission.onConnect('a:1', 2, 0)).toBe('peer_cap');
  });

  test('of one address are limited in rate, also across connections', () => {
    const admission = new Admission(SMALL);
    expect(admission.onConnect('a:1', 0, 0)).toBeUndefined();
    expect(admission.onConnect('a:1', 0, 0)).toBeUndefined();
    admission.onPeerGone('a:1');
    expect(admission.onConnect('a:1', 0, 0)).toBe('connect_rate');
    expect(admission.onConnect('b:1', 0, 0)).toBeUndefined();
    expect(admission.onConnect('a:1', 0, 2_000)).toBeUndefined();
  });

  test('number 18: of all addresses together are limited in rate, so that made-up identities do not take the loop', () => {
    const admission = new Admission({ ...SMALL, allConnects: 3, allConnectsPerSecond: 2 });
    const storm = (count: number, nowMs: number): number =>
      Array.from({ length: count }, (_, i) => admission.onConnect(`${nowMs} ${i}:1`, 0, nowMs)).filter(
        (refusal) => refusal === undefined,
      ).length;
    expect(storm(100, 0)).toBe(3);
    expect(storm(100, 1_000)).toBe(2);
    expect(storm(100, 1_000_000)).toBe(3);
  });
});

test('number 18: 100,000 identities are remembered no further than the bound, the youngest stay', () => {
  const admission = new Admission(SMALL);
  for (let i = 0; i < 100_000; i++) admission.onFrame(`host${i}:1`, 10, i);
  expect(admission.strangerCount).toBe(3);
  frames(admission, 'host99999:1', 3, 99_999);
  expect(frames(admission, 'host99999:1', 1, 99_999)).toEqual(['stranger_frames']);
});
