// How long a faulty peer is left alone, and what its host is suspected of.

import { describe, expect, it } from 'vitest';
import { Backoff, hostOf } from '../../src/main/session/backoff.js';

const PEER = '10.0.0.2:5710';
const SIBLING = '10.0.0.2:5711';

function start(maxEntries?: number): Backoff {
  return new Backoff({ backoffMinMs: 1_000, backoffMaxMs: 60_000 }, maxEntries);
}

describe('a faulty peer', () => {
  it('may be dialled again at once, then after 1 s doubling to 60 s', () => {
    const backoff = start();
    const waits = Array.from({ length: 9 }, (_, i) => backoff.onFault(PEER, i));
    expect(waits).toEqual([0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
  });

  it('is held for its wait and no longer', () => {
    const backoff = start();
    backoff.onFault(PEER, 0);
    expect(backoff.isHeld(PEER, 0)).toBe(false);
    backoff.onFault(PEER, 10);
    expect(backoff.isHeld(PEER, 1_009)).toBe(true);
    expect(backoff.isHeld(SIBLING, 1_009)).toBe(false);
    expect(backoff.isHeld(PEER, 1_010)).toBe(false);
  });

  it('starts afresh when it gave no trouble for 60 s after its last wait', () => {
    const backoff = start();
    backoff.onFault(PEER, 0);
    backoff.onFault(PEER, 0);
    expect(backoff.onFault(PEER, 61_000)).toBe(2_000);
    expect(backoff.onFault(PEER, 63_000 + 60_001)).toBe(0);
  });

  it('that comes by itself is not held, and its faults go on counting: it cannot flap for ever', () => {
    const backoff = start();
    for (let i = 0; i < 4; i++) backoff.onFault(PEER, 0);
    expect(backoff.isHeld(PEER, 1)).toBe(true);
    backoff.onConnectFrom(PEER, 1);
    expect(backoff.isHeld(PEER, 1)).toBe(false);
    expect(backoff.onFault(PEER, 2)).toBe(8_000);
  });

  it('is forgotten for a newer one when there are too many', () => {
    const backoff = start(2);
    for (const peer of [PEER, '10.0.0.3:1', '10.0.0.4:1']) {
      backoff.onFault(peer, 0);
      backoff.onFault(peer, 0);
    }
    expect(backoff.size).toBe(2);
    expect(backoff.isHeld(PEER, 1)).toBe(false);
    expect(backoff.isHeld('10.0.0.4:1', 1)).toBe(true);
  });
});

describe('a host', () => {
  it('of a faulty peer is suspected with all its ports until something on it succeeds (section 10 number 12)', () => {
    const backoff = start();
    expect(backoff.isSuspected(SIBLING)).toBe(false);
    backoff.onFault(PEER, 0);
    expect(backoff.isSuspected(SIBLING)).toBe(true);
    expect(backoff.isSuspected('10.0.0.20:5710')).toBe(false);
    backoff.onSuccess(SIBLING);
    expect(backoff.isSuspected(PEER)).toBe(false);
  });

  it('is what stands before the last colon', () => {
    expect(hostOf('10.0.0.2:5710')).toBe('10.0.0.2');
    expect(hostOf('[fe80::1]:5710')).toBe('[fe80::1]');
  });
});
