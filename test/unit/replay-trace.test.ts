// The trace reader: what it yields, what it calls a bad line, and what it never reads into memory.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { loadTrace } from '../../src/main/cli/replay/load-trace.js';
import { generateTrace } from '../../src/main/cli/replay/generator.js';
import {
  formatTraceLine,
  MAX_LINE_BYTES,
  readTrace,
  reusableBlocks,
  type BadLine,
  type TraceRecord,
} from '../../src/main/cli/replay/trace.js';

const GOOD = '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}';

function chunksOf(text: string, sizes: readonly number[] = [65_536]): AsyncIterable<Uint8Array> {
  const bytes = Buffer.from(text);
  let start = 0;
  let turn = 0;
  const next = (): IteratorResult<Uint8Array, undefined> => {
    if (start >= bytes.length) return { done: true, value: undefined };
    const end = start + sizes[turn % sizes.length];
    const value = bytes.subarray(start, end);
    start = end;
    turn += 1;
    return { done: false, value };
  };
  return { [Symbol.asyncIterator]: () => ({ next: () => Promise.resolve(next()) }) };
}

async function read(
  text: string,
  { strict = false, sizes }: { strict?: boolean; sizes?: readonly number[] } = {},
): Promise<{ records: TraceRecord[]; bad: BadLine[] }> {
  const bad: BadLine[] = [];
  const records: TraceRecord[] = [];
  for await (const record of readTrace(chunksOf(text, sizes), {
    strict,
    onBadLine: (line) => bad.push(line),
  })) {
    records.push(record);
  }
  return { records, bad };
}

describe('the trace reader', () => {
  it('yields each line as a record, with or without a last line end', async () => {
    const expected = { timestamp: 0, inputLength: 1100, outputLength: 5, hashIds: [7, 8, 9] };
    expect(await read(`${GOOD}\n${GOOD}`)).toEqual({ records: [expected, expected], bad: [] });
    expect((await read(`${GOOD}\n`)).records).toEqual([expected]);
  });

  it('passes over the mark that some editors begin a file with, and over no other', async () => {
    const { records, bad } = await read(`\ufeff${GOOD}\n\ufeff${GOOD}`, { sizes: [1] });
    expect(records).toHaveLength(1);
    expect(bad).toEqual([{ line: 2, reason: 'not JSON' }]);
  });

  it('gives the same records however the file is cut into chunks', async () => {
    const trace = generateTrace(3);
    const records = Array.from({ length: 20 }, () => trace.next().value);
    const text = records.map((record) => `${formatTraceLine(record)}\n`).join('');
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 1, max: 400 }), { minLength: 1 }), async (sizes) => {
        expect(await read(text, { sizes })).toEqual({ records, bad: [] });
      }),
      { numRuns: 30 },
    );
  });

  it.each([
    ['{"timestamp": 0', 'not JSON'],
    ['[1, 2]', 'not a JSON object'],
    ['null', 'not a JSON object'],
    ['{"input_length": 1, "output_length": 1, "hash_ids": [1]}', 'timestamp'],
    ['{"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": []}', 'input_length'],
    ['{"timestamp": 0, "input_length": 1, "output_length": true, "hash_ids": [1]}', 'output_length'],
    ['{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["1"]}', 'hash_ids'],
    ['{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1.5]}', 'hash_ids'],
    ['{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}', 'asks for 2'],
    ['{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 1]}', 'twice'],
  ])('passes over the bad line %s and says its number', async (line, reason) => {
    const { records, bad } = await read(`${GOOD}\n\n${line}\n${GOOD}\n`);
    expect(records).toHaveLength(2);
    expect(bad).toEqual([{ line: 3, reason: expect.stringContaining(reason) as string }]);
  });

  it('stops at the first bad line when strict', async () => {
    await expect(read(`${GOOD}\nnonsense\n${GOOD}`, { strict: true })).rejects.toMatchObject({
      code: 'KVPEER_TRACE',
      message: expect.stringContaining('line 2') as string,
    });
  });

  it('passes over a line longer than its bound and goes on behind it', async () => {
    const long = 'x'.repeat(MAX_LINE_BYTES + 1);
    const { records, bad } = await read(`${long}\n${GOOD}\n${long}`);
    expect(records).toHaveLength(1);
    expect(bad.map(({ line }) => line)).toEqual([1, 3]);
    expect(bad[0].reason).toContain(String(MAX_LINE_BYTES));
  });

  it('takes only complete blocks as reusable', () => {
    const record = (inputLength: number, hashIds: number[]): TraceRecord => ({
      timestamp: 0,
      inputLength,
      outputLength: 1,
      hashIds,
    });
    expect(reusableBlocks(record(1024, [1, 2]))).toEqual([1, 2]);
    expect(reusableBlocks(record(1025, [1, 2, 3]))).toEqual([1, 2]);
    expect(reusableBlocks(record(511, [1]))).toEqual([]);
  });
});

describe('the requests of a run', () => {
  const load = (file: string, skip: number, stop = new AbortController().signal) =>
    loadTrace({ file, skip, count: undefined, seed: 1, strict: false }, () => undefined, stop);

  it('that are none are told apart: an empty file, lines that are no requests, too many passed over', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvpeer-trace-'));
    const file = join(folder, 'trace.jsonl');
    try {
      await expect(load('/dev/null', 0)).rejects.toThrow(/no request to replay: it is empty/);
      writeFileSync(file, 'x\ny\n');
      await expect(load(file, 0)).rejects.toThrow(/no request to replay: none of its 2 lines is a request/);
      writeFileSync(file, `x\n${GOOD}\n`);
      await expect(load(file, 3)).rejects.toThrow(/after 1 skipped ones; lower --skip/);
      await expect(load(folder, 0)).rejects.toMatchObject({ code: 'KVPEER_TRACE' });
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('are not waited for once the run is ended, though the file has no end', async () => {
    const stop = new AbortController();
    const loading = load('/dev/zero', 0, stop.signal);
    stop.abort();
    expect(await loading).toEqual({ requests: [], distinctBlocks: 0 });
  });
});
