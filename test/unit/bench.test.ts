// The parts of the benchmarks that decide what a figure says: goals, comparisons with an earlier run, the policies.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { readArguments } from '../../bench/arguments.js';
import { compareText } from '../../bench/compare.js';
import { RowBook } from '../../bench/rows.js';
import {
  Arc,
  Clairvoyant,
  Clock,
  Fifo,
  Lru,
  S3Fifo,
  Sieve,
  leadingHitsOf,
} from '../../bench/support/policies.js';
import type { Policy } from '../../bench/support/policies.js';

const result = (rows: RowBook): Parameters<typeof compareText>[0] => ({
  rows: rows.all,
  machine: { processor: 'p', cores: 2, memoryGib: 1, kernel: 'k', loadBefore: 0 },
  versions: { kvpeer: '', node: '', zeromq: '', piscina: '', nixl: '' },
  date: '2026-01-01T00:00:00Z',
  isQuick: true,
  seconds: 1,
  sections: [],
});

describe('a row', () => {
  it('is the median of its samples with their range, and knows whether its goal holds', () => {
    const rows = new RowBook();
    rows.measured('idle.cpuPercent', [3, 1, 2.5]);
    rows.measured('start.readyMs', [100]);
    rows.skip('lookup.1024.vsRedis', 'not installed');
    expect(rows.all.map(({ value, spread, holds }) => ({ value, spread, holds }))).toEqual([
      { value: 2.5, spread: [1, 3], holds: false },
      { value: 100, spread: [100, 100], holds: true },
      { value: null, spread: null, holds: null },
    ]);
  });

  it('is compared with the same one of an earlier run', () => {
    const [before, after] = [new RowBook(), new RowBook()];
    before.figure('a', 10, 'us');
    after.figure('a', 15, 'us');
    after.figure('b', 1, 'us');
    const text = compareText(result(before), result(after));
    expect(text).toMatch(/^a +10 -> 15 us {2}x1\.50$/m);
    expect(text).toMatch(/^b +1 us \(not measured then\)$/m);
  });
});

describe('the command line', () => {
  let folder: string;

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'kvpeer-bench-'));
  });

  afterEach(() => {
    rmSync(folder, { recursive: true });
  });

  it('is refused before anything is measured, in one sentence', () => {
    const file = (name: string, text: string): string => {
      writeFileSync(join(folder, name), text);
      return join(folder, name);
    };
    const absent = join(folder, 'absent/file');
    const usable = file('file', '');
    for (const [args, message] of [
      [['--nope'], /--nope/],
      [['extra'], /extra/],
      [['--json', absent], /^--json .* cannot be written: ENOENT/],
      [['--json', folder], /^--json .* cannot be written: EISDIR/],
      [['--cpuprofile', join(usable, 'profiles')], /^--cpuprofile .* cannot be written/],
      [['--compare', absent], /^--compare .* cannot be read: ENOENT/],
      [['--compare', usable], /^--compare .* cannot be read/],
      [['--compare', file('null', 'null')], /was not written by --json/],
      [['--compare', file('rows', '{"date":"d","rows":[null]}')], /was not written by --json/],
      [['--compare', file('row', '{"date":"d","rows":[{"name":"a","value":"1"}]}')], /was not written/],
    ] as const) {
      expect(() => readArguments(args)).toThrow(expect.objectContaining({ name: 'UsageError' }));
      expect(() => readArguments(args)).toThrow(message);
    }
  });

  it('leaves an earlier --json file as it is until there are rows, and may compare with it', () => {
    const earlier = { ...result(new RowBook()), rows: [{ name: 'a', value: 1 }] };
    const file = join(folder, 'rows.json');
    writeFileSync(file, JSON.stringify(earlier));
    const read = readArguments(['--only', 'match', '--quick', '--json', file, '--compare', file]);
    expect(read).toMatchObject({ only: 'match', isQuick: true, hasDocs: false, json: file, earlier });
    expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual(earlier);
  });
});

describe('the policies', () => {
  const requests = fc.array(fc.uniqueArray(fc.nat(30), { minLength: 1, maxLength: 10 }), { maxLength: 60 });

  it('keep no more blocks than fit, and every one that was touched last', () => {
    const makers: ((size: number, list: readonly (readonly number[])[]) => Policy)[] = [
      (size) => new Lru(size),
      (size) => new Fifo(size),
      (size) => new Clock(size),
      (size) => new Arc(size),
      (size) => new S3Fifo(size),
      (size) => new Sieve(size),
    ];
    fc.assert(
      fc.property(requests, fc.integer({ min: 2, max: 20 }), (list, size) => {
        for (const make of makers) {
          const policy = make(size, list);
          for (const [number, ids] of list.entries()) {
            for (const [position, id] of ids.entries()) {
              policy.touch(id, number, position);
              expect(policy.has(id)).toBe(true);
            }
            const kept = Array.from({ length: 31 }, (_, id) => id).filter((id) => policy.has(id));
            expect(kept.length).toBeLessThanOrEqual(size);
          }
        }
      }),
      { numRuns: 100 },
    );
  });

  it('have all hits there are when everything fits', () => {
    fc.assert(
      fc.property(requests, (list) => {
        const seen = new Set<number>();
        let expected = 0;
        for (const ids of list) {
          const firstNew = ids.findIndex((id) => !seen.has(id));
          expected += firstNew < 0 ? ids.length : firstNew;
          for (const id of ids) seen.add(id);
        }
        for (const policy of [
          new Lru(31),
          new Clock(31),
          new Arc(31),
          new Sieve(31),
          new Clairvoyant(31, list),
        ])
          expect(leadingHitsOf(policy, list)).toBe(expected);
      }),
      { numRuns: 100 },
    );
  });
});
