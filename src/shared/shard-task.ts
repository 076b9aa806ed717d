// What main hands a shard worker when it starts, and what the worker says to main beside the rings.

import type { MessagePort } from 'node:worker_threads';

/** The argument of the one long task of a worker. Buffers are passed whole: views of them do not cross threads. */
export interface ShardTask {
  readonly shard: number;
  readonly control: SharedArrayBuffer;
  readonly pool: SharedArrayBuffer;
  /** Native waker of the main thread (a process-wide number). */
  readonly waker: number;
  /** Absolute path of the NIXL library when this worker moves data. */
  readonly nixlLibrary: string | undefined;
  /** How long a stopped send agent may go on for other peers, when this worker moves data. */
  readonly retireMs: number | undefined;
  /** One int32: the worker's thread id, stored before anything else; 0 while it has not begun. */
  readonly started: SharedArrayBuffer;
  /** WorkerMessage to main. Nothing is ever sent to the worker over it. */
  readonly port: MessagePort;
  /** Marks of slots whose block came or went (residency-marks.ts), when KV events are published. */
  readonly residencyMarks?: SharedArrayBuffer | undefined;
  /** For a test's own worker file: what it needs to go wrong on demand. */
  readonly fault?: SharedArrayBuffer | undefined;
}

export type WorkerMessage =
  | { readonly kind: 'ready' }
  | { readonly kind: 'log'; readonly level: 'warn' | 'error'; readonly text: string };
