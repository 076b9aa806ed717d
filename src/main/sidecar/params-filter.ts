// Takes client-supplied kv_transfer_params out of a JSON body while it streams past, without changing its length.

import { Transform, type TransformCallback } from 'node:stream';
import { JSON_BYTES, MAX_DEPTH } from './json-scan.js';

const { QUOTE, BACKSLASH, COMMA, COLON, OPEN_OBJECT, CLOSE_OBJECT, OPEN_ARRAY, CLOSE_ARRAY } = JSON_BYTES;
const BLANK = 0x20;

/** A member that matters: it is taken out, or something inside it matters. */
interface Place {
  readonly isTaken: boolean;
  readonly inside: ReadonlyMap<string, Place>;
}

const TAKEN: Place = { isTaken: true, inside: new Map() };
const PARAMS: readonly [string, Place] = ['kv_transfer_params', TAKEN];

/** Every place where an engine would read them: inside for the generate API, and for vLLM's extra arguments. */
const PLACES = within(
  PARAMS,
  ['sampling_params', within(['extra_args', within(PARAMS)])],
  ['vllm_xargs', within(PARAMS)],
);

function within(...members: readonly (readonly [string, Place])[]): Place {
  return { isTaken: false, inside: new Map(members) };
}

/** The longest key of interest with every character written as \u and four digits. */
const MAX_KEY_BYTES = 6 * 'kv_transfer_params'.length;

type State = 'value' | 'string' | 'scalar' | 'first-key' | 'key' | 'in-key' | 'colon' | 'after' | 'opaque';

/** A body that an engine could read and this filter cannot: in another encoding, or nested without end. */
export class UnreadableBody extends Error {
  override readonly name = 'UnreadableBody';
}

/**
 * Overwrites the members with blanks: JSON allows them, and the announced content length stays true. Only a comma, the
 * blanks after it and a key are ever held back, so a body of any size passes in flat memory.
 *
 * Reads more than JSON (what Python's parser takes beyond it: NaN, a byte order mark, control characters in strings),
 * never less. A text that breaks even those rules passes unchanged: no engine reads a member out of it.
 */
export class ParamsFilter {
  #state: State = 'value';
  #position = 0;
  /** One entry per open object or array: what matters inside, if anything. */
  readonly #open: { readonly isObject: boolean; readonly place: Place | undefined; hasKept: boolean }[] = [];
  #key = '';
  #isEscaped = false;
  /** What matters inside the value that comes next. */
  #next: Place | undefined = PLACES;
  /** Depth at which a member is being taken out; -1 for none. */
  #removalDepth = -1;
  /** Where in this chunk the blanks of that member begin. */
  #blankFrom = 0;
  /** Bytes that wait for the end of their key, from earlier chunks. */
  #held: Buffer[] = [];
  #heldFrom = -1;
  removedCount = 0;

  /**
   * @param chunk may be written into
   * @returns what can be passed on now
   * @throws UnreadableBody for UTF-16 and UTF-32, and for nesting whose memory of open brackets would have no bound
   */
  push(chunk: Buffer): Buffer[] {
    if (this.#state === 'opaque') return [chunk];
    const out: Buffer[] = [];
    if (this.#removalDepth >= 0) this.#blankFrom = 0;
    if (this.#heldFrom >= 0) this.#heldFrom = 0;
    let i = 0;
    while (i < chunk.length) {
      const byte = chunk[i];
      if (this.#position + i < 4) checkEncoding(byte, this.#position + i);
      switch (this.#state) {
        case 'string':
        case 'in-key':
          i = this.#inString(chunk, i, out);
          break;
        case 'scalar':
          if (isScalarByte(byte)) i++;
          else this.#state = 'after';
          break;
        case 'value':
        case 'first-key':
        case 'key':
        case 'colon':
        case 'after':
          if (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) i++;
          else i = this.#token(chunk, i);
      }
      // The state changes inside the calls: a comparison with the narrowed type of before would not see it.
      if (this.#isOpaque()) break;
    }
    if (this.#isOpaque()) this.#release(chunk, chunk.length, out, 'keep');
    else if (this.#removalDepth >= 0) chunk.fill(BLANK, this.#blankFrom);
    this.#position += chunk.length;
    return this.#rest(chunk, out);
  }

  /** @returns what was still held back: only a body that is cut in the middle of a key has that */
  end(): Buffer[] {
    return this.#held.splice(0);
  }

  #isOpaque(): boolean {
    return this.#state === 'opaque';
  }

  #rest(chunk: Buffer, out: Buffer[]): Buffer[] {
    if (this.#heldFrom < 0) {
      out.push(chunk);
      return out;
    }
    if (this.#heldFrom > 0) out.push(chunk.subarray(0, this.#heldFrom));
    this.#held.push(Buffer.from(chunk.subarray(this.#heldFrom)));
    return out;
  }

  /** A byte that is no blank, outside strings and scalars. @returns where to go on */
  #token(chunk: Buffer, i: number): number {
    const byte = chunk[i];
    const top = this.#open.at(-1);
    switch (this.#state) {
      case 'value':
        return this.#value(byte, i);
      case 'first-key':
      case 'key':
        if (byte === QUOTE) return this.#startKey(i);
        if (byte === CLOSE_OBJECT && this.#state === 'first-key') return this.#close(i, true);
        break;
      case 'colon':
        if (byte !== COLON) break;
        this.#state = 'value';
        return i + 1;
      case 'after':
        if (top === undefined) break;
        if (byte === COMMA) return this.#comma(chunk, i, top.isObject);
        if (byte === CLOSE_OBJECT || byte === CLOSE_ARRAY) {
          this.#endRemoval(chunk, i);
          return this.#close(i, byte === CLOSE_OBJECT);
        }
        break;
      case 'string':
      case 'in-key':
      case 'scalar':
      case 'opaque':
        break;
    }
    this.#state = 'opaque';
    return i;
  }

  #value(byte: number, i: number): number {
    if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
      if (this.#open.length === MAX_DEPTH) {
        throw new UnreadableBody(`the body is nested deeper than ${MAX_DEPTH} levels`);
      }
      const isObject = byte === OPEN_OBJECT;
      this.#open.push({ isObject, place: isObject ? this.#next : undefined, hasKept: false });
      this.#next = undefined;
      this.#state = isObject ? 'first-key' : 'value';
    } else if (byte === CLOSE_ARRAY && this.#open.at(-1)?.isObject === false) {
      return this.#close(i, false);
    } else if (byte === QUOTE) {
      this.#state = 'string';
    } else if (isScalarByte(byte)) {
      this.#state = 'scalar';
    } else if (byte < 0x80 || this.#open.length > 0) {
      this.#state = 'opaque';
      return i;
    }
    return i + 1;
  }

  #startKey(i: number): number {
    this.#state = 'in-key';
    this.#key = '';
    if (this.#heldFrom < 0 && this.#isWatched()) this.#heldFrom = i;
    return i + 1;
  }

  #comma(chunk: Buffer, i: number, isObject: boolean): number {
    this.#endRemoval(chunk, i);
    this.#state = isObject ? 'key' : 'value';
    this.#next = undefined;
    if (isObject && this.#isWatched()) this.#heldFrom = i;
    return i + 1;
  }

  #close(i: number, isObject: boolean): number {
    if (this.#open.pop()?.isObject !== isObject) {
      this.#state = 'opaque';
      return i;
    }
    this.#state = 'after';
    return i + 1;
  }

  /** Keys are looked at where they matter, and not inside a member that goes anyway. */
  #isWatched(): boolean {
    return this.#removalDepth < 0 && this.#open.at(-1)?.place !== undefined;
  }

  #endRemoval(chunk: Buffer, i: number): void {
    if (this.#removalDepth !== this.#open.length) return;
    chunk.fill(BLANK, this.#blankFrom, i);
    this.#removalDepth = -1;
  }

  #inString(chunk: Buffer, start: number, out: Buffer[]): number {
    let i = start;
    if (this.#isEscaped) {
      this.#isEscaped = false;
      i++;
    }
    while (i < chunk.length && chunk[i] !== QUOTE && chunk[i] !== BACKSLASH) i++;
    if (i < chunk.length && chunk[i] === BACKSLASH) {
      this.#isEscaped = true;
      i++;
      this.#collect(chunk, start, i);
      return i;
    }
    this.#collect(chunk, start, i);
    if (i === chunk.length) {
      // None of those that matter, and it may be of any length.
      if (this.#key.length > MAX_KEY_BYTES) this.#keep(chunk, i, out);
      return i;
    }
    if (this.#state === 'string') this.#state = 'after';
    else this.#endKey(chunk, i + 1, out);
    return i + 1;
  }

  #collect(chunk: Buffer, start: number, end: number): void {
    if (this.#state !== 'in-key' || this.#heldFrom < 0 || this.#key.length > MAX_KEY_BYTES) return;
    this.#key += chunk.toString('latin1', start, Math.min(end, start + MAX_KEY_BYTES + 1));
  }

  #endKey(chunk: Buffer, end: number, out: Buffer[]): void {
    this.#state = 'colon';
    this.#next = undefined;
    if (this.#heldFrom < 0) return;
    const object = this.#open[this.#open.length - 1];
    const found = object.place?.inside.get(unescaped(this.#key));
    if (found?.isTaken === true) {
      this.removedCount++;
      this.#removalDepth = this.#open.length;
      this.#blankFrom = end;
      this.#release(chunk, end, out, 'blank');
      return;
    }
    this.#next = found;
    this.#keep(chunk, end, out);
  }

  /** Lets go of a key that stays, and of the comma before it unless that is now the first. */
  #keep(chunk: Buffer, end: number, out: Buffer[]): void {
    if (this.#heldFrom < 0) return;
    const object = this.#open[this.#open.length - 1];
    this.#release(chunk, end, out, object.hasKept ? 'keep' : 'blank-comma');
    object.hasKept = true;
  }

  /** Lets go of what was held, up to `end` of this chunk. */
  #release(chunk: Buffer, end: number, out: Buffer[], how: 'keep' | 'blank' | 'blank-comma'): void {
    if (this.#heldFrom < 0) return;
    const parts = [...this.#held.splice(0), chunk.subarray(this.#heldFrom, end)];
    if (how === 'blank') for (const part of parts) part.fill(BLANK);
    // Whatever stood before it was taken out, so the comma goes too; the first member has none.
    if (how === 'blank-comma' && parts[0][0] === COMMA) parts[0][0] = BLANK;
    out.push(...parts.slice(0, -1));
    this.#heldFrom = -1;
  }
}

function unescaped(key: string): string {
  if (!key.includes('\\') || key.length > MAX_KEY_BYTES) return key;
  try {
    return String(JSON.parse(`"${key}"`));
  } catch {
    return key;
  }
}

function isScalarByte(byte: number): boolean {
  return (
    (byte >= 0x30 && byte <= 0x39) ||
    (byte >= 0x41 && byte <= 0x5a) ||
    (byte >= 0x61 && byte <= 0x7a) ||
    byte === 0x2b ||
    byte === 0x2d ||
    byte === 0x2e
  );
}

/** UTF-16 and UTF-32 show themselves by a zero byte among the first four, or by their byte order mark. */
function checkEncoding(byte: number, position: number): void {
  if (byte === 0 || (position < 2 && byte >= 0xfe)) throw new UnreadableBody('the body is not UTF-8');
}

/** The filter as a stream. @param isLenient a body in another encoding passes: nothing reads JSON from it */
export class ParamsFilterStream extends Transform {
  readonly #filter = new ParamsFilter();
  readonly #isLenient: boolean;
  #isOff = false;

  constructor(isLenient: boolean) {
    super();
    this.#isLenient = isLenient;
  }

  get removedCount(): number {
    return this.#filter.removedCount;
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, callback: TransformCallback): void {
    if (this.#isOff) {
      callback(null, chunk);
      return;
    }
    try {
      for (const piece of this.#filter.push(chunk)) this.push(piece);
      callback();
    } catch (error) {
      if (this.#isLenient && error instanceof UnreadableBody) {
        this.#isOff = true;
        callback(null, chunk);
      } else {
        callback(error instanceof Error ? error : new Error(String(error)));
      }
    }
  }

  override _flush(callback: TransformCallback): void {
    for (const piece of this.#filter.end()) this.push(piece);
    callback();
  }
}
