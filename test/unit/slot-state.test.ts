// The slot's state word and the JavaScript side of pins.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { computeLayout } from '../../src/shared/layout.js';
import {
  MAX_PINS,
  Phase,
  SlotTable,
  generationOf,
  packState,
  phaseOf,
  pinsOf,
  visitedOf,
} from '../../src/shared/slot-state.js';

const state = fc.record({
  phase: fc.constantFrom(...Object.values(Phase)),
  generation: fc.integer({ min: 0, max: 65_535 }),
  visited: fc.integer({ min: 0, max: 3 }),
  pins: fc.integer({ min: 0, max: MAX_PINS }),
});

function emptyTable(): SlotTable {
  const layout = computeLayout({
    numBlocks: 4,
    blockBytes: 4096,
    keyBytes: 36,
    shardCount: 1,
    arenaBytes: 4096,
  });
  return new SlotTable(new SharedArrayBuffer(layout.controlBytes), layout);
}

describe('the state word', () => {
  test('keeps phase, generation, visited bits and pins apart', () => {
    fc.assert(
      fc.property(state, (s) => {
        const word = packState(s.phase, s.generation, s.visited, s.pins);
        expect(word).toBe(word | 0);
        expect({
          phase: phaseOf(word),
          generation: generationOf(word),
          visited: visitedOf(word),
          pins: pinsOf(word),
        }).toEqual(s);
      }),
    );
  });

  test('takes generations modulo 65,536', () => {
    expect(packState(Phase.Ready, 65_536 + 5, 0, 0)).toBe(packState(Phase.Ready, 5, 0, 0));
  });
});

describe('a pin', () => {
  test('is taken on READY slots only, up to 4,095, and sets the visited bit', () => {
    const table = emptyTable();
    fc.assert(
      fc.property(state, (s) => {
        const before = packState(s.phase, s.generation, s.visited, s.pins);
        table.words[table.stateWord(2)] = before;
        const isPinned = table.tryPin(2);
        expect(isPinned).toBe(s.phase === Phase.Ready && s.pins < MAX_PINS);
        const after = isPinned ? packState(s.phase, s.generation, s.visited | 1, s.pins + 1) : before;
        expect(table.state(2)).toBe(after);
      }),
    );
  });

  test('goes by one subtraction; taking one that is not there throws and changes nothing', () => {
    const table = emptyTable();
    table.words[table.stateWord(1)] = packState(Phase.Ready, 9, 1, 2);
    table.unpin(1);
    table.unpin(1);
    expect(() => {
      table.unpin(1);
    }).toThrow(/slot 1 has no pin/);
    expect(table.state(1)).toBe(packState(Phase.Ready, 9, 1, 0));
  });
});
