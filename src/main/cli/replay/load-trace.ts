// The requests of one replay: read from a trace file or generated, the reusable block ids of each.
import { createReadStream } from 'node:fs';
import { KvpeerError } from '../../errors.js';
import { DEFAULT_GENERATED_REQUESTS, generateTrace } from './generator.js';
import { readTrace, reusableBlocks, type BadLine, type TraceRecord } from './trace.js';

/** Ids of a request's reusable blocks, in prefix order. */
export type BlockIds = readonly number[];

export interface TraceSelection {
  /** A trace file; undefined for the built-in generator. */
  readonly file: string | undefined;
  /** Requests to pass over first. */
  readonly skip: number;
  /** Requests to take; undefined for all of a file, or the generator's default number. */
  readonly count: number | undefined;
  readonly seed: number;
  readonly strict: boolean;
}

export interface LoadedTrace {
  readonly requests: readonly BlockIds[];
  /** Different ids in all of the requests. */
  readonly distinctBlocks: number;
}

/**
 * Holds the selected requests' ids in memory: the pools' default size follows from them, and a strict run learns of a
 * bad line before anything is started.
 *
 * @throws KVPEER_TRACE when the file cannot be read, has no request to replay, or has a bad line in a strict run
 */
export async function loadTrace(
  selection: TraceSelection,
  onBadLine: (bad: BadLine) => void,
  stop: AbortSignal,
): Promise<LoadedTrace> {
  const { file, skip } = selection;
  const count = selection.count ?? (file === undefined ? DEFAULT_GENERATED_REQUESTS : Infinity);
  const requests: BlockIds[] = [];
  const distinct = new Set<number>();
  let passed = 0;
  let badLineCount = 0;
  const countBadLine = (bad: BadLine): void => {
    badLineCount += 1;
    onBadLine(bad);
  };
  for await (const record of openTrace(selection, countBadLine, stop)) {
    if (stop.aborted) break;
    if (passed < skip) {
      passed += 1;
      continue;
    }
    const ids = reusableBlocks(record);
    requests.push(ids);
    for (const id of ids) distinct.add(id);
    // Not a line further than asked: bad lines behind the last request are none of this run's.
    if (requests.length === count) break;
  }
  if (requests.length === 0 && !stop.aborted) {
    const name = file ?? 'the built-in trace';
    if (passed === 0) {
      const reason = badLineCount === 0 ? 'it is empty' : `none of its ${badLineCount} lines is a request`;
      throw new KvpeerError(
        'KVPEER_TRACE',
        `${name} has no request to replay: ${reason}; name another trace`,
      );
    }
    throw new KvpeerError(
      'KVPEER_TRACE',
      `${name} has no request to replay after ${passed} skipped ones; lower --skip or name another trace`,
    );
  }
  return { requests, distinctBlocks: distinct.size };
}

async function* openTrace(
  { file, seed, strict }: TraceSelection,
  onBadLine: (bad: BadLine) => void,
  stop: AbortSignal,
): AsyncGenerator<TraceRecord, void, undefined> {
  if (file === undefined) {
    yield* generateTrace(seed);
    return;
  }
  try {
    // A device or a pipe may have no end: the reading ends with the run.
    yield* readTrace(createReadStream(file, { signal: stop }), { strict, onBadLine });
  } catch (error) {
    if (stop.aborted) return;
    if (error instanceof KvpeerError) throw error;
    const reason = error instanceof Error ? error.message : String(error);
    const message = `trace ${file} cannot be read: ${reason}; name a file with one JSON object per line`;
    throw new KvpeerError('KVPEER_TRACE', message, { cause: error });
  }
}
