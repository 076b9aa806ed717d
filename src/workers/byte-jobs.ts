// Work on block bytes (copy, fill, poison, verify, checksum), done in slices so that the ring is looked at in between.

import type { BufferToken, ControlHandle, PoolHandle } from '../../native/index.js';
import { Counter, type WorkerCounters } from '../shared/counters.js';
import type { ExtentMemory } from '../shared/extent.js';
import type { Layout } from '../shared/layout.js';
import { ExtentWord, Opcode, Outcome } from '../shared/operations.js';
import type { OperationsNative, Submission } from './operations.js';

/** Block bytes of one slice: about half a millisecond. */
const SLICE_BYTES = 4 * 1024 * 1024;

interface Job {
  readonly op: Submission;
  readonly count: number;
  next: number;
  result: number;
}

export interface ByteJobsParts {
  readonly native: OperationsNative;
  readonly control: ControlHandle;
  readonly pool: PoolHandle;
  readonly layout: Layout;
  readonly memory: ExtentMemory;
  readonly counters: WorkerCounters;
  readonly log: (level: 'warn' | 'error', text: string) => void;
}

/** Oldest job first, one slice a step. */
export class ByteJobs {
  private readonly queue: Job[] = [];
  private readonly parts: ByteJobsParts;
  private readonly sliceBlocks: number;
  private readonly done: (
    opNumber: number,
    opcode: number,
    extent: number,
    outcome: Outcome,
    result: number,
  ) => void;

  constructor(parts: ByteJobsParts, done: ByteJobs['done']) {
    this.parts = parts;
    this.done = done;
    this.sliceBlocks = Math.max(1, Math.floor(SLICE_BYTES / parts.layout.blockBytes));
  }

  get isEmpty(): boolean {
    return this.queue.length === 0;
  }

  add(op: Submission): void {
    const count = this.parts.memory.header(op.extent, ExtentWord.Count);
    this.queue.push({ op, count, next: 0, result: 0 });
  }

  /** One slice of the oldest job. */
  step(): void {
    const job = this.queue.at(0);
    if (job === undefined) return;
    const { op } = job;
    try {
      const count = Math.min(this.sliceBlocks, job.count - job.next);
      if (count > 0) job.result += this.slice(op, job.next, count);
      job.next += count;
    } catch (error) {
      this.queue.shift();
      this.parts.counters.add(Counter.Faults, 1);
      this.parts.log('error', `block work ${op.opcode} failed: ${String(error)}`);
      this.done(op.opNumber, op.opcode, op.extent, Outcome.Fault, 0);
      return;
    }
    if (job.next < job.count) return;
    this.queue.shift();
    this.done(op.opNumber, op.opcode, op.extent, Outcome.Ok, job.result);
  }

  private slice(op: Submission, first: number, count: number): number {
    const { native, control, pool, counters, layout } = this.parts;
    switch (op.opcode) {
      case Opcode.CopyIn: {
        const copied = native.copyIn(control, pool, op.extent, first, count, op.arg0 as BufferToken);
        counters.add(Counter.BytesCopied, copied * layout.blockBytes);
        return copied;
      }
      case Opcode.Fill:
        return native.fillFromKey(control, pool, op.extent, first, count);
      case Opcode.Poison:
        return native.poison(control, pool, op.extent, first, count);
      case Opcode.Verify:
        return native.verifyFromKey(control, pool, op.extent, first, count);
      case Opcode.Checksum:
        native.checksum(control, pool, op.extent, first, count);
        return 0;
      case Opcode.VerifyChecksum: {
        const checksums = op.extent + op.arg0;
        const damaged = native.verifyChecksum(control, pool, op.extent, first, count, checksums);
        counters.add(Counter.ChecksumMismatches, damaged);
        return damaged;
      }
      default:
        throw new Error(`opcode ${op.opcode} is no work on block bytes`);
    }
  }
}
