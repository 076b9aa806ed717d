// The bounded queue in front of a DEALER, against a plain array.

import fc from 'fast-check';
import { expect, test } from 'vitest';
import { FrameQueue } from '../../src/main/control/frame-queue.js';

test('keeps order and both bounds, whatever is pushed and taken', () => {
  fc.assert(
    fc.property(fc.array(fc.option(fc.integer({ min: 0, max: 50 }))), (steps) => {
      const queue = new FrameQueue(5, 100);
      const model: Buffer[] = [];
      for (const step of steps) {
        if (step === null) {
          expect(queue.shift()).toBe(model.shift());
        } else {
          const frame = Buffer.alloc(step);
          const fits = model.length < 5 && model.reduce((sum, { length }) => sum + length, step) <= 100;
          expect(queue.push(frame)).toBe(fits);
          if (fits) model.push(frame);
        }
        expect([queue.length, queue.bytes]).toEqual([
          model.length,
          model.reduce((sum, { length }) => sum + length, 0),
        ]);
      }
    }),
  );
});

test('a queue that never runs empty keeps order through thousands of frames', () => {
  const queue = new FrameQueue(10, 1_000);
  for (let i = 0; i < 5; i++) queue.push(Buffer.of(i));
  for (let i = 5; i < 10_000; i++) {
    queue.push(Buffer.of(i & 0xff));
    expect(queue.shift()).toEqual(Buffer.of((i - 5) & 0xff));
  }
  expect(queue.length).toBe(5);
  queue.clear();
  expect([queue.length, queue.bytes, queue.shift()]).toEqual([0, 0, undefined]);
});
