// Standard output as the place of a log: written at once, and never the end of the node.

import { writeSync } from 'node:fs';
import type { DestinationStream } from 'pino';

/** Writes some of the bytes from an offset on and returns how many; throws a system error. */
type Write = (bytes: Uint8Array, at: number) => number;

const writeToStandardOutput: Write = (bytes, at) => writeSync(1, bytes, at);

/** A reader that shares the terminal or pipe without blocking gets this long, in all, to make room for a line. */
const RETRIES = 10;
const RETRY_MS = 10;

/**
 * A line that cannot be written (a full disk, a reader that is gone) is dropped, since what the node serves is worth more
 * than what it says; the next line that can be written comes behind one that has the number of lost ones.
 */
export function standardOutput(write: Write = writeToStandardOutput): DestinationStream {
  let lostCount = 0;
  let reason = '';
  const isWritten = (line: string): boolean => {
    const bytes = Buffer.from(line);
    let retries = 0;
    for (let at = 0; at < bytes.length;) {
      try {
        at += write(bytes, at);
      } catch (error) {
        reason = error instanceof Error && 'code' in error ? String(error.code) : String(error);
        if (reason !== 'EAGAIN' || ++retries > RETRIES) return false;
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RETRY_MS);
      }
    }
    return true;
  };
  return {
    write: (line) => {
      if (lostCount > 0) {
        const msg = `${lostCount} lines of the log could not be written (${reason})`;
        const record = {
          level: 'warn',
          time: new Date().toISOString(),
          pid: process.pid,
          name: 'kvpeer',
          msg,
        };
        if (isWritten(`\n${JSON.stringify(record)}\n`)) lostCount = 0;
      }
      if (lostCount > 0 || !isWritten(line)) lostCount += 1;
    },
  };
}
