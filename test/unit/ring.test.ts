// The rings against a queue, and the armed words against every order of two threads' steps.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { RING_RECORDS_OFFSET, RING_RECORD_BYTES } from '../../src/shared/layout.js';
import { RingConsumer, RingProducer, arm, disarm, takeArmed } from '../../src/shared/ring.js';

const CAPACITY = 8;
const OFFSET = 128;

function memory(startIndex = 0): Int32Array {
  const words = new Int32Array(
    new SharedArrayBuffer(OFFSET + RING_RECORDS_OFFSET + CAPACITY * RING_RECORD_BYTES),
  );
  words[OFFSET / 4] = startIndex;
  words[(OFFSET + 128) / 4] = startIndex;
  return words;
}

type Step = { kind: 'push'; count: number } | { kind: 'publish' } | { kind: 'take'; most: number };
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ kind: fc.constant('push' as const), count: fc.integer({ min: 1, max: 12 }) }),
  fc.record({ kind: fc.constant('publish' as const) }),
  fc.record({ kind: fc.constant('take' as const), most: fc.integer({ min: 1, max: 12 }) }),
);

describe('a ring', () => {
  test('is a bounded queue whose records appear with publish(), also where the indexes wrap around int32', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 80 }), fc.constantFrom(0, 2 ** 31 - 5, -3), (steps, start) => {
        const words = memory(start);
        const producer = new RingProducer(words, OFFSET, CAPACITY);
        const consumer = new RingConsumer(words, OFFSET, CAPACITY);
        const staged: number[] = [];
        const visible: number[] = [];
        let next = 1;
        for (const action of steps) {
          if (action.kind === 'push') {
            for (let i = 0; i < action.count; i++) {
              const isRoom = staged.length + visible.length < CAPACITY;
              expect(producer.push(next, -next, 3, 4, 5, 6, 7, next * 2)).toBe(isRoom);
              if (isRoom) staged.push(next++);
            }
          } else if (action.kind === 'publish') {
            producer.publish();
            visible.push(...staged.splice(0));
          } else {
            const available = consumer.available();
            // Known records may be fewer than all: the tail is read again only when none are left.
            expect(available > 0).toBe(visible.length > 0);
            const count = Math.min(available, action.most);
            for (let i = 0; i < count; i++) {
              const at = consumer.wordAt(i);
              const expected = visible[i];
              expect(Array.from(words.subarray(at, at + 8))).toEqual([
                expected,
                -expected,
                3,
                4,
                5,
                6,
                7,
                expected * 2,
              ]);
            }
            consumer.advance(count);
            visible.splice(0, count);
          }
          expect(producer.freeCount()).toBe(CAPACITY - staged.length - visible.length);
        }
      }),
    );
  });

  test('goes on where its predecessor stopped when either side is made anew', () => {
    const words = memory();
    const first = new RingProducer(words, OFFSET, CAPACITY);
    for (let i = 0; i < 5; i++) first.push(i, 0, 0, 0, 0, 0, 0, 0);
    first.publish();
    new RingConsumer(words, OFFSET, CAPACITY).advance(2);
    const consumer = new RingConsumer(words, OFFSET, CAPACITY);
    expect(consumer.available()).toBe(3);
    expect(words[consumer.wordAt(0)]).toBe(2);
    expect(new RingProducer(words, OFFSET, CAPACITY).freeCount()).toBe(5);
  });
});

describe('the armed word', () => {
  test('is taken by exactly one waker per arming', () => {
    const words = memory();
    expect(takeArmed(words, 0)).toBe(false);
    arm(words, 0);
    expect([takeArmed(words, 0), takeArmed(words, 0)]).toEqual([true, false]);
    arm(words, 0);
    disarm(words, 0);
    expect(takeArmed(words, 0)).toBe(false);
  });

  test('never leaves a record behind a sleeping consumer, whatever the order of both sides’ steps', () => {
    // Producer: push, publish, look at the word. Consumer: arm, look at the ring, sleep if it is empty.
    const orders = (a: number, b: number): string[] => {
      if (a === 0 && b === 0) return [''];
      const withProducer = a > 0 ? orders(a - 1, b).map((rest) => `p${rest}`) : [];
      const withConsumer = b > 0 ? orders(a, b - 1).map((rest) => `c${rest}`) : [];
      return [...withProducer, ...withConsumer];
    };
    for (const order of orders(2, 2)) {
      const words = memory();
      const producer = new RingProducer(words, OFFSET, CAPACITY);
      const consumer = new RingConsumer(words, OFFSET, CAPACITY);
      const seen = { isWoken: false, sleeps: false };
      const producerSteps = [
        () => {
          producer.push(1, 0, 0, 0, 0, 0, 0, 0);
          producer.publish();
        },
        () => {
          seen.isWoken = takeArmed(words, 0);
        },
      ];
      const consumerSteps = [
        () => {
          arm(words, 0);
        },
        () => {
          seen.sleeps = consumer.available() === 0;
        },
      ];
      for (const side of order) (side === 'p' ? producerSteps : consumerSteps).shift()?.();
      expect(!seen.sleeps || seen.isWoken, order).toBe(true);
    }
  });
});
