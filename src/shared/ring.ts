// Single-producer, single-consumer rings in the control mapping, and the armed words that let either side sleep.

/*
 *     | head: next record the consumer takes, 128 B | tail: next record the producer writes, 128 B | records |
 *
 * Head and tail run freely over int32 and wrap; their difference is the number of records. Each side keeps the other's
 * index in a plain field and reads the shared one only when the field says full (or empty).
 */

import { RING_HEAD_OFFSET, RING_RECORDS_OFFSET, RING_TAIL_OFFSET } from './layout.js';
import { RECORD_WORDS } from './operations.js';

/** Writes records; nothing is visible to the other side before publish(). */
export class RingProducer {
  readonly #words: Int32Array;
  readonly #head: number;
  readonly #tail: number;
  readonly #records: number;
  readonly #mask: number;
  readonly #capacity: number;
  #next: number;
  #shown: number;
  #seenHead: number;

  /**
   * @param words      the whole control mapping
   * @param ringOffset bytes, from submissionRing() or completionRing()
   * @param capacity   records, a power of two
   */
  constructor(words: Int32Array, ringOffset: number, capacity: number) {
    this.#words = words;
    this.#head = (ringOffset + RING_HEAD_OFFSET) / 4;
    this.#tail = (ringOffset + RING_TAIL_OFFSET) / 4;
    this.#records = (ringOffset + RING_RECORDS_OFFSET) / 4;
    this.#capacity = capacity;
    this.#mask = capacity - 1;
    this.#next = Atomics.load(words, this.#tail);
    this.#shown = this.#next;
    this.#seenHead = Atomics.load(words, this.#head);
  }

  /** Records that can be written now. */
  freeCount(): number {
    this.#seenHead = Atomics.load(this.#words, this.#head);
    return this.#capacity - ((this.#next - this.#seenHead) | 0);
  }

  /** Stages one record (operations.ts says what the words are); false when the ring is full. */
  push(
    opcode: number,
    opNumber: number,
    extentUnit: number,
    word3: number,
    word4: number,
    word5: number,
    word6: number,
    word7: number,
  ): boolean {
    if (((this.#next - this.#seenHead) | 0) >= this.#capacity && this.freeCount() === 0) return false;
    const words = this.#words;
    const at = this.#records + (this.#next & this.#mask) * RECORD_WORDS;
    words[at] = opcode;
    words[at + 1] = opNumber;
    words[at + 2] = extentUnit;
    words[at + 3] = word3;
    words[at + 4] = word4;
    words[at + 5] = word5;
    words[at + 6] = word6;
    words[at + 7] = word7;
    this.#next = (this.#next + 1) | 0;
    return true;
  }

  /**
   * Shows every staged record with one store. Wake the consumer afterwards: takeArmed() or wakeWorker().
   *
   * @returns false when there was none
   */
  publish(): boolean {
    if (this.#shown === this.#next) return false;
    Atomics.store(this.#words, this.#tail, this.#next);
    this.#shown = this.#next;
    return true;
  }
}

/** Takes records in place: look at them through wordAt(), then give them back with advance(). */
export class RingConsumer {
  readonly #words: Int32Array;
  readonly #head: number;
  readonly #tail: number;
  readonly #records: number;
  readonly #mask: number;
  #next: number;
  #seenTail: number;

  constructor(words: Int32Array, ringOffset: number, capacity: number) {
    this.#words = words;
    this.#head = (ringOffset + RING_HEAD_OFFSET) / 4;
    this.#tail = (ringOffset + RING_TAIL_OFFSET) / 4;
    this.#records = (ringOffset + RING_RECORDS_OFFSET) / 4;
    this.#mask = capacity - 1;
    this.#next = Atomics.load(words, this.#head);
    this.#seenTail = this.#next;
  }

  /** Records that can be taken; looks at the shared tail only when none are known. */
  available(): number {
    const known = (this.#seenTail - this.#next) | 0;
    if (known !== 0) return known;
    this.#seenTail = Atomics.load(this.#words, this.#tail);
    return (this.#seenTail - this.#next) | 0;
  }

  /** Bytes in the control mapping: the word that the producer moves. */
  get tailOffset(): number {
    return this.#tail * 4;
  }

  /** What that word is, as an unsigned number, while no record waits. */
  get emptyTail(): number {
    return this.#next >>> 0;
  }

  /** Index into the control mapping's int32 words of available record `i`; borrowed until advance(). */
  wordAt(i: number): number {
    return this.#records + ((this.#next + i) & this.#mask) * RECORD_WORDS;
  }

  /** Gives `count` records back to the producer with one store. */
  advance(count: number): void {
    this.#next = (this.#next + count) | 0;
    Atomics.store(this.#words, this.#head, this.#next);
  }
}

/*
 * Sleeping without losing a wake-up. The consumer arms its word, looks at its rings once more, and sleeps only if they
 * are still empty. The producer publishes, then looks at the word. Whichever came second sees the other: either the
 * second look finds the record or the producer finds the word armed. Both orders need sequential consistency, which
 * Atomics have (with acquire and release alone 0.3 % of the wake-ups were lost in a measurement).
 */

const ARMED = 1;

/** First half of going to sleep: afterwards look at every ring again. */
export function arm(words: Int32Array, armedWord: number): void {
  Atomics.store(words, armedWord / 4, ARMED);
}

export function disarm(words: Int32Array, armedWord: number): void {
  Atomics.store(words, armedWord / 4, 0);
}

/** True for exactly one caller per arming: that one wakes the sleeper. Call it after publish(). */
export function takeArmed(words: Int32Array, armedWord: number): boolean {
  const at = armedWord / 4;
  return Atomics.load(words, at) === ARMED && Atomics.compareExchange(words, at, ARMED, 0) === ARMED;
}

/** Wakes a worker that sleeps in sleepArmed(); nothing when it is awake. Call it after publish(). */
export function wakeWorker(words: Int32Array, armedWord: number): void {
  if (takeArmed(words, armedWord)) Atomics.notify(words, armedWord / 4);
}

/**
 * A worker's sleep, second half: waits while the word stays armed. The caller has called arm() and found its ring
 * empty since. Never on the main thread, which waits through the native waker instead.
 */
export function sleepArmed(words: Int32Array, armedWord: number, timeoutMs: number): void {
  Atomics.wait(words, armedWord / 4, ARMED, timeoutMs);
  disarm(words, armedWord);
}
