// The name that a mistyped one most likely meant.

import { expect, it } from 'vitest';
import { nearestName } from '../../src/main/nearest.js';

const KNOWN = ['poolBytes', 'blockBytes', 'keyBytes', '--pool-bytes', 'port'];

it.each([
  ['poolBytess', 'poolBytes'],
  ['pool-bytes', 'poolBytes'],
  ['POOL_BYTES', 'poolBytes'],
  ['blokBytes', 'blockBytes'],
  ['prt', 'port'],
  ['zebra', undefined],
  ['', undefined],
])('finds for %s the name %s', (name, expected) => {
  expect(nearestName(name, KNOWN)).toBe(expected);
});

it('compares only the beginning of a name of a million letters', () => {
  expect(nearestName('x'.repeat(1_000_000), KNOWN)).toBeUndefined();
});
