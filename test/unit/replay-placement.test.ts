// Where a replayed request is computed, where it may pull from, and which keys it asks for.
import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { keysOf, REPLAY_KEY_BYTES } from '../../src/main/cli/replay/keys.js';
import { chooseSource, makePlacement } from '../../src/main/cli/replay/placement.js';
import { modelReplay } from '../fixtures/replay-model.js';

describe('placement', () => {
  it('goes round the peers in order', () => {
    const place = makePlacement('round-robin', 3, 1);
    expect([0, 1, 2, 3, 4].map(place)).toEqual([0, 1, 2, 0, 1]);
  });

  it('is random but the same for the same seed, and reaches every peer', () => {
    const places = (seed: number): number[] =>
      Array.from({ length: 200 }, (_, i) => i).map(makePlacement('random', 4, seed));
    expect(places(1)).toEqual(places(1));
    expect(places(1)).not.toEqual(places(2));
    expect(new Set(places(1))).toEqual(new Set([0, 1, 2, 3]));
  });

  it('pulls from the other peer with the longest prefix, the lowest number among equals', () => {
    expect(chooseSource([9, 2, 5, 5], 0)).toBe(2);
    expect(chooseSource([3, 3, 3, 9], 3)).toBe(0);
    expect(chooseSource([7, 0, 0, 0], 0)).toBeUndefined();
    expect(chooseSource([7], 0)).toBeUndefined();
  });
});

describe('keys', () => {
  it('are the SHA-256 of a salt and the id with four zero bytes behind it, in order', () => {
    const keys = keysOf([5, 182_789]);
    expect(keys).toHaveLength(2 * REPLAY_KEY_BYTES);
    const expected = createHash('sha256').update('kvpeer replay block 182789').digest();
    expect(Buffer.from(keys.subarray(36, 68))).toEqual(expected);
    expect([...keys.subarray(32, 36), ...keys.subarray(68, 72)]).toEqual(new Array(8).fill(0));
  });
});

describe('the model of the placement rules', () => {
  it('counts local hits, pulls beyond them and the rest', () => {
    const counts = modelReplay(
      [
        [1, 2, 3], // peer 0 computes all three
        [1, 2, 4], // peer 1 pulls 1 and 2, computes 4
        [1, 2, 4, 5], // peer 0 holds 1 and 2, pulls 4, computes 5
        [1, 2, 4], // peer 1 holds all of it
      ],
      2,
    );
    expect(counts).toEqual({ referenced: 13, local: 5, pulled: 3, computed: 5, lookups: 2, lookupKeys: 5 });
  });
});
