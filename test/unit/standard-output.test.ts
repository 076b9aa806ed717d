// Standard output as the place of a log: what becomes of lines whose reader is slow, stands still or is gone.

import { expect, it } from 'vitest';

import { LogOutput } from '../../src/main/observe/standard-output.js';

/** An output that takes so many bytes at a time, and `room` bytes in all. */
class Reader {
  text = '';
  room = Infinity;
  fault: string | undefined;
  /** The next writes fail with these. */
  faults: string[] = [];
  nowMs = 0;
  readonly waits: number[] = [];
  readonly retries: (() => void)[] = [];
  readonly log: LogOutput;

  constructor(piece = 4096) {
    this.log = new LogOutput({
      isWritable: (waitMs) => {
        if (this.room <= 0) {
          this.waits.push(waitMs);
          this.nowMs += waitMs;
        }
        return this.room > 0;
      },
      write: (bytes) => {
        const fault = this.fault ?? this.faults.shift();
        if (fault !== undefined) throw Object.assign(new Error(fault), { code: fault });
        const part = bytes.subarray(0, Math.min(piece, this.room));
        this.room -= part.length;
        this.text += Buffer.from(part).toString();
        return part.length;
      },
      later: (callback) => {
        this.retries.push(callback);
      },
      nowMs: () => this.nowMs,
    });
  }

  retry(): void {
    for (const callback of this.retries.splice(0)) callback();
  }

  get lines(): string[] {
    return this.text.split('\n').slice(0, -1);
  }
}

it('takes a line in as many pieces as it is given, at once', () => {
  const reader = new Reader(3);
  reader.log.write('{"msg":"one"}\n');
  expect(reader.text).toBe('{"msg":"one"}\n');
  expect(reader.retries).toEqual([]);
});

it('never offers more than a pipe takes without blocking', () => {
  const reader = new Reader(Infinity);
  const line = `${'x'.repeat(9_999)}\n`;
  const sizes: number[] = [];
  const log = new LogOutput({
    isWritable: () => true,
    write: (bytes) => {
      sizes.push(bytes.length);
      return bytes.length;
    },
    later: () => undefined,
    nowMs: () => 0,
  });
  log.write(line);
  reader.log.write(line);
  expect(sizes).toEqual([4096, 4096, 1808]);
  expect(reader.text).toBe(line);
});

it('keeps lines in order for a reader that is slow, and waits for none of them', () => {
  const reader = new Reader();
  reader.room = 6;
  for (const line of ['one\n', 'two\n', 'three\n']) reader.log.write(line);
  expect(reader.text).toBe('one\ntw');
  expect(reader.waits.every((waitMs) => waitMs === 0)).toBe(true);
  reader.room = 2;
  reader.retry();
  expect(reader.text).toBe('one\ntwo\n');
  reader.room = Infinity;
  reader.retry();
  reader.log.write('four\n');
  expect(reader.lines).toEqual(['one', 'two', 'three', 'four']);
});

it('waits for room like for a slow reader where the descriptor itself does not block', () => {
  const reader = new Reader();
  reader.fault = 'EAGAIN';
  reader.log.write('one\n');
  reader.log.write('two\n');
  expect(reader.retries).toHaveLength(1);
  reader.fault = undefined;
  reader.retry();
  expect(reader.lines).toEqual(['one', 'two']);
});

it('drops what comes when a MiB waits for a reader that stands still, and says how many lines', () => {
  const reader = new Reader();
  reader.room = 0;
  const line = `${'x'.repeat(1023)}\n`;
  for (let i = 0; i < 1030; i++) reader.log.write(line);
  reader.room = Infinity;
  reader.retry();
  expect(reader.lines).toHaveLength(1024);
  reader.log.write('last\n');
  expect(JSON.parse(reader.lines[1024])).toMatchObject({
    level: 'warn',
    msg: '6 lines of the log could not be written (its reader takes nothing)',
  });
  expect(reader.lines.slice(1025)).toEqual(['last']);
});

it.each(['ENOSPC', 'EPIPE'])('drops lines that end with %s, and says how many', (code) => {
  const reader = new Reader(2);
  reader.fault = code;
  for (const line of ['one\n', 'two\n', 'three\n']) reader.log.write(line);
  reader.fault = undefined;
  reader.log.write('four\n');
  reader.log.write('five\n');
  expect(JSON.parse(reader.lines[0])).toMatchObject({
    level: 'warn',
    msg: `3 lines of the log could not be written (${code})`,
  });
  expect(reader.lines.slice(1)).toEqual(['four', 'five']);
});

it('begins a new line behind one that was cut off', () => {
  const reader = new Reader();
  reader.room = 2;
  reader.log.write('one\n');
  reader.room = Infinity;
  reader.fault = 'ENOSPC';
  reader.retry();
  reader.fault = undefined;
  reader.log.write('two\n');
  expect(reader.lines[0]).toBe('on');
  expect(reader.lines[1]).toContain('1 lines of the log');
  expect(reader.lines[2]).toBe('two');
});

it('begins a new line behind one that was cut off also for those that waited with it', () => {
  const reader = new Reader();
  reader.room = 2;
  for (const line of ['one\n', 'two\n', 'three\n']) reader.log.write(line);
  reader.room = Infinity;
  reader.faults = ['ENOSPC'];
  reader.retry();
  expect(reader.lines).toEqual(['on', 'two', 'three']);
});

it('waits for the reader when the process ends, but for no more than a second', () => {
  const reader = new Reader();
  reader.room = 1;
  reader.log.write('one\n');
  reader.log.flush();
  expect(reader.nowMs).toBe(1000);
  expect(reader.text).toBe('o');
  reader.room = Infinity;
  reader.log.flush();
  expect(reader.text).toBe('one\n');
});
