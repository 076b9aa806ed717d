// Standard output as the place of a log: written at once while its reader keeps up, and never what the node waits for.

import { writeSync } from 'node:fs';
import type { DestinationStream } from 'pino';

import { loadNative } from '../../../native/index.js';

/** Where lines go. */
export interface Output {
  /** Whether a piece would be taken, or refused, at once; waits for that at most so long. */
  readonly isWritable: (waitMs: number) => boolean;
  /** @returns how many of the bytes were taken @throws a system error */
  readonly write: (bytes: Uint8Array) => number;
  readonly later: (callback: () => void) => void;
  readonly nowMs: () => number;
}

/** What a pipe takes without blocking once it says that it takes something. */
const PIECE_BYTES = 4096;
/** Of lines that wait for a reader which is slow or stands still; what comes beyond them is dropped. */
const MAX_WAITING_BYTES = 1 << 20;
const RETRY_MS = 10;
/** At the end of the process, for the lines that still wait. */
const LAST_MS = 1000;
const NEWLINE = 10;

interface Waiting {
  readonly bytes: Buffer;
  /** One, or for the word about lost ones as many as it tells of. */
  readonly lineCount: number;
}

/**
 * Lines in their order. One that cannot be written (a full disk, a reader that is gone, or that lets a MiB wait) is
 * dropped, since what the node serves is worth more than what it says; the next line comes behind one that has the number
 * of lost ones.
 */
export class LogOutput implements DestinationStream {
  readonly #output: Output;
  #waiting: Waiting[] = [];
  #waitingBytes = 0;
  #isScheduled = false;
  #lostCount = 0;
  #reason = '';
  /** The last byte that was taken ended a line. */
  #isAtStart = true;

  constructor(output: Output) {
    this.#output = output;
  }

  write(line: string): void {
    const bytes = Buffer.from(line);
    if (this.#waitingBytes + bytes.length > MAX_WAITING_BYTES) {
      this.#lose(1, 'its reader takes nothing');
      return;
    }
    if (this.#lostCount > 0) this.#tellLost();
    this.#enqueue(bytes, 1);
    if (!this.#isScheduled) this.#pump(0);
  }

  /** Before the process ends: waits for the reader, but not for long. */
  flush(): void {
    const endMs = this.#output.nowMs() + LAST_MS;
    for (
      let restMs = LAST_MS;
      restMs > 0 && this.#waiting.length > 0;
      restMs = endMs - this.#output.nowMs()
    ) {
      this.#pump(Math.ceil(restMs));
    }
  }

  #enqueue(bytes: Buffer, lineCount: number): void {
    this.#waiting.push({ bytes, lineCount });
    this.#waitingBytes += bytes.length;
  }

  /** Writes what is taken now. */
  #pump(waitMs: number): void {
    for (;;) {
      const next = this.#waiting.at(0);
      if (next === undefined) return;
      if (!this.#output.isWritable(waitMs)) break;
      try {
        const takenCount = this.#output.write(next.bytes.subarray(0, PIECE_BYTES));
        this.#advance(next, takenCount);
      } catch (error) {
        const code = error instanceof Error && 'code' in error ? String(error.code) : String(error);
        if (code === 'EAGAIN') break;
        this.#waiting.shift();
        this.#waitingBytes -= next.bytes.length;
        this.#lose(next.lineCount, code);
        const following = this.#waiting.shift();
        if (following !== undefined) this.#putFirst(following);
      }
    }
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#output.later(() => {
      this.#isScheduled = false;
      this.#pump(0);
    });
  }

  /** Behind a line that was cut off it begins a new one. */
  #putFirst({ bytes, lineCount }: Waiting): void {
    const start = Buffer.from(this.#isAtStart ? '' : '\n');
    this.#waiting.unshift({ bytes: Buffer.concat([start, bytes]), lineCount });
    this.#waitingBytes += start.length;
  }

  #advance({ bytes, lineCount }: Waiting, takenCount: number): void {
    if (takenCount > 0) this.#isAtStart = bytes[takenCount - 1] === NEWLINE;
    this.#waitingBytes -= takenCount;
    if (takenCount === bytes.length) this.#waiting.shift();
    else this.#waiting[0] = { bytes: bytes.subarray(takenCount), lineCount };
  }

  #lose(lineCount: number, reason: string): void {
    this.#lostCount += lineCount;
    this.#reason = reason;
  }

  #tellLost(): void {
    const record = {
      level: 'warn',
      time: new Date().toISOString(),
      pid: process.pid,
      name: 'kvpeer',
      msg: `${this.#lostCount} lines of the log could not be written (${this.#reason})`,
    };
    // Behind a line that was cut off.
    const start = this.#waiting.length === 0 && !this.#isAtStart ? '\n' : '';
    this.#enqueue(Buffer.from(`${start}${JSON.stringify(record)}\n`), this.#lostCount);
    this.#lostCount = 0;
  }
}

let shared: LogOutput | undefined;

/** One for all loggers of the process: their lines do not mix. */
export function standardOutput(): DestinationStream {
  if (shared === undefined) {
    const output = new LogOutput({
      isWritable: writability(),
      write: (bytes) => writeSync(1, bytes),
      later: (callback) => {
        setTimeout(callback, RETRY_MS).unref();
      },
      nowMs: () => performance.now(),
    });
    process.on('exit', () => {
      output.flush();
    });
    shared = output;
  }
  return shared;
}

function writability(): Output['isWritable'] {
  try {
    const native = loadNative();
    return (waitMs) => native.isWritable(1, waitMs);
  } catch {
    // The start will say what is wrong with the addon, and needs a log for that.
    return () => true;
  }
}
