// Numbered items against a plain Map.

import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Numbered } from '../../src/main/shards/numbered.js';

type Step = { readonly add: true } | { readonly remove: number };

test('finds what is open, and nothing else, whatever was added and taken away', () => {
  const steps: fc.Arbitrary<Step[]> = fc.array(
    fc.oneof(
      fc.constant({ add: true } as const),
      fc.nat().map((remove) => ({ remove })),
    ),
    { maxLength: 200 },
  );
  fc.assert(
    fc.property(steps, (all) => {
      const table = new Numbered<{ readonly id: number }>(64);
      const model = new Map<number, { readonly id: number }>();
      const gone: number[] = [];
      let id = 0;
      for (const step of all) {
        if ('add' in step) {
          if (model.size === 64) continue;
          const item = { id: id++ };
          const number = table.add(item);
          expect(Number.isInteger(number) && number > 0 && number < 2 ** 31).toBe(true);
          expect(model.has(number)).toBe(false);
          model.set(number, item);
        } else if (model.size > 0) {
          const number = [...model.keys()][step.remove % model.size];
          table.delete(number);
          table.delete(number);
          model.delete(number);
          gone.push(number);
        }
        expect(table.size).toBe(model.size);
      }
      for (const [number, item] of model) expect(table.get(number)).toBe(item);
      for (const number of gone) if (!model.has(number)) expect(table.get(number)).toBeUndefined();
      expect(new Set(table.all())).toEqual(new Set(model.values()));
      table.clear();
      expect([table.size, table.all()]).toEqual([0, []]);
      for (const number of model.keys()) expect(table.get(number)).toBeUndefined();
    }),
  );
});

test('a place that is taken again and again has another number for a long time', () => {
  const table = new Numbered<object>(2 ** 24);
  const seen = new Set<number>();
  // 2^31 / 2^24 generations, without the first.
  for (let i = 0; i < 127; i++) {
    const number = table.add({});
    seen.add(number);
    table.delete(number);
  }
  expect(seen.size).toBe(127);
  expect(seen.has(table.add({}))).toBe(true);
});

test('is full at its bound, and a bound beyond reason is refused', () => {
  const table = new Numbered<object>(4);
  for (let i = 0; i < 4; i++) table.add({});
  expect(() => table.add({})).toThrow('more than 4 items at a time');
  expect(() => new Numbered<object>(2 ** 27)).toThrow(RangeError);
});
