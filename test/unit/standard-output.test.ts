// Standard output as the place of a log: what becomes of lines that cannot be written.

import { expect, it } from 'vitest';
import { standardOutput } from '../../src/main/observe/standard-output.js';

/** An output that takes at most `piece` bytes at a time, and nothing while `fault` is set. */
class Output {
  text = '';
  fault: string | undefined;
  faultCount = Infinity;
  readonly log;

  constructor(piece = 1000) {
    this.log = standardOutput((bytes, at) => {
      if (this.fault !== undefined && this.faultCount-- > 0) {
        throw Object.assign(new Error(this.fault), { code: this.fault });
      }
      const part = bytes.subarray(at, at + piece);
      this.text += Buffer.from(part).toString();
      return part.length;
    });
  }
}

it('takes a line in as many pieces as it is given', () => {
  const output = new Output(3);
  output.log.write('{"msg":"one"}\n');
  expect(output.text).toBe('{"msg":"one"}\n');
});

it('waits a moment for a reader that is slow', () => {
  const output = new Output();
  output.fault = 'EAGAIN';
  output.faultCount = 2;
  output.log.write('one\n');
  expect(output.text).toBe('one\n');
});

it.each(['ENOSPC', 'EPIPE', 'EAGAIN'])('drops lines that end with %s, and says how many', (code) => {
  const output = new Output();
  output.fault = code;
  output.log.write('one\n');
  output.log.write('two\n');
  output.fault = undefined;
  output.log.write('three\n');
  output.log.write('four\n');
  const lines = output.text.split('\n').filter(Boolean);
  expect(lines).toHaveLength(3);
  expect(JSON.parse(lines[0])).toMatchObject({
    level: 'warn',
    msg: `2 lines of the log could not be written (${code})`,
  });
  expect(lines.slice(1)).toEqual(['three', 'four']);
});
