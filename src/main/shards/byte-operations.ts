// Operations on the bytes of a set's blocks: a worker copies, fills, checks; the main thread sees none of them.

import type { BufferToken } from '../../../native/index.js';
import { type Layout, RECORD_CHECKSUM, recordOffset } from '../../shared/layout.js';
import { Opcode } from '../../shared/operations.js';
import { KvpeerError } from '../errors.js';
import type { Extents } from './extents.js';
import { failureOf } from './failures.js';
import type { OperationsInFlight } from './operations-in-flight.js';
import type { Done, Failure } from './shard-client.js';
import type { ExtentSet } from './slot-set.js';
import type { SlotSets } from './slot-sets.js';

export interface ByteOperationsParts {
  readonly layout: Layout;
  readonly inFlight: OperationsInFlight;
  readonly extents: Extents;
  readonly sets: SlotSets;
  /** Keeps a caller's buffer where it is, for the worker that reads it. */
  readonly holdBuffer: (source: Uint8Array) => BufferToken;
  readonly dropBuffer: (token: BufferToken) => void;
}

/** See ShardClient for what each means. Any worker may run one; it goes to the least busy. */
export class ByteOperations {
  private readonly parts: ByteOperationsParts;

  constructor(parts: ByteOperationsParts) {
    this.parts = parts;
  }

  copyIn(set: ExtentSet, source: Uint8Array, done: Done<undefined>): void {
    const { blockBytes } = this.parts.layout;
    const needed = set.count * blockBytes;
    if (source.length !== needed) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `${set.count} blocks of ${blockBytes} bytes are ${needed} bytes, not ${source.length}`,
      );
    }
    const token = this.parts.holdBuffer(source);
    this.onBlocks(set, Opcode.CopyIn, token, (failure) => {
      this.parts.dropBuffer(token);
      done(failure, undefined);
    });
  }

  fill(set: ExtentSet, done: Done<undefined>): void {
    this.onBlocks(set, Opcode.Fill, 0, (failure) => {
      done(failure, undefined);
    });
  }

  poison(set: ExtentSet, done: Done<undefined>): void {
    this.onBlocks(set, Opcode.Poison, 0, (failure) => {
      done(failure, undefined);
    });
  }

  verify(set: ExtentSet, done: Done<{ readonly mismatchCount: number }>): void {
    this.onBlocks(set, Opcode.Verify, 0, (failure, result0) => {
      done(failure, { mismatchCount: failure === undefined ? result0 : 0 });
    });
  }

  checksum(set: ExtentSet, done: Done<undefined>): void {
    this.onBlocks(set, Opcode.Checksum, 0, (failure) => {
      done(failure, undefined);
    });
  }

  verifyChecksums(set: ExtentSet, expected: Uint8Array, done: Done<{ readonly damagedCount: number }>): void {
    const area = this.parts.extents.make({
      count: 0,
      spaceBytes: expected.length,
      flags: 0,
      pinLimit: 0,
      peerNumBlocks: 0,
    });
    if (area === undefined) {
      queueMicrotask(() => {
        done({ code: 'KVPEER_BUSY' }, { damagedCount: 0 });
      });
      return;
    }
    const at = this.parts.extents.memory.keysAt(area.extent);
    this.parts.extents.memory.bytes.set(expected, at);
    const damagedBefore = set.counts.damaged;
    this.onBlocks(set, Opcode.VerifyChecksum, at - set.extent, (failure) => {
      this.parts.sets.giveBack(area);
      // Counted, not added up: a worker that died in between has marked some and told nobody how many.
      set.recount();
      done(failure, { damagedCount: set.counts.damaged - damagedBefore });
    });
  }

  checksumsOf(set: ExtentSet): Uint8Array {
    const { bytes } = this.parts.extents.memory;
    const { slots, count } = set;
    const checksums = new Uint8Array(count * 8);
    for (let i = 0; i < count; i += 1) {
      if (slots[i] < 0) continue;
      const at = recordOffset(this.parts.layout, slots[i]) + RECORD_CHECKSUM;
      checksums.set(bytes.subarray(at, at + 8), i * 8);
    }
    return checksums;
  }

  private onBlocks(
    set: ExtentSet,
    opcode: Opcode,
    arg0: number,
    done: (failure: Failure | undefined, result0: number) => void,
  ): void {
    set.checkIdle();
    set.isBusy = true;
    const finish = (failure: Failure | undefined, result0: number): void => {
      set.isBusy = false;
      done(failure, result0);
    };
    const attempt = (): boolean => {
      const worker = this.parts.inFlight.leastBusy();
      if (worker < 0) return false;
      this.parts.sets.submit(set, opcode, arg0, 1 << worker, 'repeatAnywhere', finish);
      return true;
    };
    this.parts.inFlight.whenRoom(attempt, 'must', (reason) => {
      finish(failureOf(reason), 0);
    });
  }
}
