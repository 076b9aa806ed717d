// Reads request traces: one JSON object per line, streamed, with bad lines reported by number.
import { KvpeerError } from '../../errors.js';

/** Tokens per block of a trace: an id names the prefix that ends with its 512 tokens. */
export const TOKENS_PER_BLOCK = 512;

/** A line longer than this is not read into memory; 65,536 ids of 12 digits and their commas fit. */
export const MAX_LINE_BYTES = 1024 * 1024;

/** The most keys that one lookup may carry, and so the most reusable blocks that a request may have. */
export const MAX_REQUEST_BLOCKS = 65_536;

/** Some editors begin a file with it. */
const BYTE_ORDER_MARK = /^\ufeff/;

/** One request of a trace. Equal ids mean equal whole prefixes, so ids are already chained. */
export interface TraceRecord {
  readonly timestamp: number;
  readonly inputLength: number;
  readonly outputLength: number;
  readonly hashIds: readonly number[];
}

/** A line that could not be used. `line` counts from 1. */
export interface BadLine {
  readonly line: number;
  readonly reason: string;
}

export interface TraceReaderOptions {
  /** Stop with KVPEER_TRACE at the first bad line instead of reporting it and going on. */
  readonly strict: boolean;
  readonly onBadLine: (bad: BadLine) => void;
}

/** The ids of a request's complete blocks: a partial last block cannot be reused. */
export function reusableBlocks(record: TraceRecord): readonly number[] {
  return record.hashIds.slice(0, Math.floor(record.inputLength / TOKENS_PER_BLOCK));
}

/** One record in the form of a trace line, without the line's end. */
export function formatTraceLine(record: TraceRecord): string {
  return JSON.stringify({
    timestamp: record.timestamp,
    input_length: record.inputLength,
    output_length: record.outputLength,
    hash_ids: record.hashIds,
  });
}

/**
 * Yields the records of a trace in file order. Empty lines are passed over.
 *
 * @param chunks  the file's bytes, cut anywhere
 * @throws KVPEER_TRACE at the first bad line when `strict`
 */
export async function* readTrace(
  chunks: AsyncIterable<Uint8Array>,
  options: TraceReaderOptions,
): AsyncGenerator<TraceRecord, void, undefined> {
  for await (const { line, text } of splitLines(chunks)) {
    const parsed =
      text === undefined
        ? `longer than ${MAX_LINE_BYTES} bytes`
        : parseTraceLine(line === 1 ? text.replace(BYTE_ORDER_MARK, '') : text);
    if (parsed === undefined) continue;
    if (typeof parsed !== 'string') {
      yield parsed;
      continue;
    }
    if (options.strict) {
      throw new KvpeerError(
        'KVPEER_TRACE',
        `trace line ${line} cannot be used: ${parsed}; correct it, or run without --strict to pass over bad lines`,
      );
    }
    options.onBadLine({ line, reason: parsed });
  }
}

/** A record, the reason why the line is bad, or undefined for an empty line. */
function parseTraceLine(text: string): TraceRecord | string | undefined {
  if (text.trim() === '') return undefined;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return 'not JSON';
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return 'not a JSON object';
  const fields = value as Record<string, unknown>;
  const { timestamp, input_length: inputLength, output_length: outputLength, hash_ids: hashIds } = fields;
  if (typeof timestamp !== 'number' || timestamp < 0) return 'timestamp is not a number of at least 0';
  if (!isCount(inputLength)) return 'input_length is not an integer of at least 0';
  if (!isCount(outputLength)) return 'output_length is not an integer of at least 0';
  if (!Array.isArray(hashIds) || !hashIds.every(isCount)) {
    return 'hash_ids is not a list of integers of at least 0';
  }
  const expected = Math.ceil(inputLength / TOKENS_PER_BLOCK);
  if (hashIds.length !== expected) {
    return `hash_ids has ${hashIds.length} ids where input_length ${inputLength} asks for ${expected}`;
  }
  if (expected > MAX_REQUEST_BLOCKS) return `more than ${MAX_REQUEST_BLOCKS} blocks in one request`;
  if (new Set(hashIds).size !== hashIds.length) return 'hash_ids names one prefix twice';
  return { timestamp, inputLength, outputLength, hashIds };
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

interface Line {
  readonly line: number;
  /** undefined when the line was longer than MAX_LINE_BYTES. */
  readonly text: string | undefined;
}

/** Cuts a byte stream into lines; never holds more than one line of at most MAX_LINE_BYTES. */
async function* splitLines(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Line, void, undefined> {
  let parts: Uint8Array[] = [];
  let heldBytes = 0;
  let tooLong = false;
  let line = 1;

  const hold = (part: Uint8Array): void => {
    if (heldBytes + part.length > MAX_LINE_BYTES) {
      tooLong = true;
      parts = [];
    } else if (!tooLong && part.length > 0) {
      parts.push(part);
    }
    heldBytes += part.length;
  };
  const take = (): Line => {
    const text = tooLong ? undefined : Buffer.concat(parts).toString('utf8');
    const result = { line, text };
    parts = [];
    heldBytes = 0;
    tooLong = false;
    line += 1;
    return result;
  };

  for await (const chunk of chunks) {
    let start = 0;
    for (let end = chunk.indexOf(0x0a); end !== -1; end = chunk.indexOf(0x0a, start)) {
      hold(chunk.subarray(start, end));
      yield take();
      start = end + 1;
    }
    hold(chunk.subarray(start));
  }
  if (heldBytes > 0) yield take();
}
