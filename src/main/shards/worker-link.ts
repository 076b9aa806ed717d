// One worker as main sees it: its two rings, its armed word, and how much it has in hand.

import {
  type Layout,
  RING_HEAD_OFFSET,
  RING_TAIL_OFFSET,
  completionRing,
  submissionRing,
  workerArmedWord,
} from '../../shared/layout.js';
import { EXTENT_UNIT_BYTES, NO_EXTENT } from '../../shared/operations.js';
import { RingConsumer, RingProducer, disarm, wakeWorker } from '../../shared/ring.js';

export class WorkerLink {
  /** Its thread runs: it may be given something. */
  isUp = true;
  /** Operations that it has a part of. */
  openCount = 0;
  /** Of these, serves: it has a transfer in hand. */
  serveCount = 0;
  /** Its completions. */
  consumer: RingConsumer;
  private producer: RingProducer;
  private readonly words: Int32Array;
  private readonly layout: Layout;
  private readonly worker: number;
  private readonly armedWord: number;

  /** @param words the whole control mapping */
  constructor(words: Int32Array, layout: Layout, worker: number) {
    this.words = words;
    this.layout = layout;
    this.worker = worker;
    this.armedWord = workerArmedWord(layout, worker);
    this.producer = this.newProducer();
    this.consumer = this.newConsumer();
  }

  /** Whether a record more finds room in its submission ring. */
  hasFreeRecord(): boolean {
    return this.producer.freeCount() > 0;
  }

  /** Gives it one record and wakes it. @param extent byte offset, or NO_EXTENT @throws when the ring is full */
  push(opcode: number, opNumber: number, extent: number, arg0: number, arg1: number, arg2: number): void {
    const { producer } = this;
    const unit = extent === NO_EXTENT ? NO_EXTENT : extent / EXTENT_UNIT_BYTES;
    if (!producer.push(opcode, opNumber, unit, arg0, arg1, arg2, 0, 0)) {
      throw new Error(`the submission ring of worker ${this.worker} is full`);
    }
    producer.publish();
    wakeWorker(this.words, this.armedWord);
  }

  /** After its thread has exited: both rings are empty, for the replacement. */
  clearRings(): void {
    const { words, layout, worker } = this;
    for (const ring of [submissionRing(layout, worker), completionRing(layout, worker)]) {
      Atomics.store(words, (ring + RING_HEAD_OFFSET) / 4, 0);
      Atomics.store(words, (ring + RING_TAIL_OFFSET) / 4, 0);
    }
    disarm(words, this.armedWord);
    this.producer = this.newProducer();
    this.consumer = this.newConsumer();
  }

  private newProducer(): RingProducer {
    return new RingProducer(this.words, submissionRing(this.layout, this.worker), this.layout.ringCapacity);
  }

  private newConsumer(): RingConsumer {
    return new RingConsumer(this.words, completionRing(this.layout, this.worker), this.layout.ringCapacity);
  }
}
