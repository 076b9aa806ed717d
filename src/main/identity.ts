// Who this process is: the incarnation that a peer announces, and whether another process of this host still lives.

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';

import type { Incarnation } from './protocol/messages.js';

/** A new incarnation of this process: random id, pid, start time in clock ticks since boot, boot id of the host. */
export function makeIncarnation(): Incarnation {
  return {
    id: randomUUID(),
    pid: process.pid,
    startTime: processStartTime(process.pid) ?? 0,
    bootId: readBootId(),
  };
}

/** /proc/sys/kernel/random/boot_id; two nodes with the same one run on the same boot of the same host. */
export function readBootId(): string {
  return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
}

/** Field 22 of /proc/PID/stat, or undefined when there is no such process, or what is left of it is a zombie. */
export function processStartTime(pid: number): number | undefined {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch {
    return undefined;
  }
  // The second field is the command in parentheses and may contain anything; the last one closes it.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  // A zombie has no memory and writes nothing any more; only its parent has not noticed.
  if (fields[0] === 'Z' || fields[0] === 'X') return undefined;
  return Number(fields[19]);
}

/**
 * Whether the process of an incarnation on this host and boot still runs. A process in another pid namespace looks
 * like one that is gone: pass only incarnations that are known to share ours.
 */
export function isAlive(incarnation: Pick<Incarnation, 'pid' | 'startTime'>): boolean {
  return processStartTime(incarnation.pid) === incarnation.startTime;
}
