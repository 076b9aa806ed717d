// Strict msgpack reading over one payload: offsets and scalars, no recursion, nothing allocated per element.

import type { ProtocolLimits } from './limits.js';
import type { RejectionReason } from './messages.js';

/** Stops a scan. Caught in scan.ts; never leaves this folder. */
export class ScanFault extends Error {
  readonly reason: RejectionReason;

  constructor(reason: RejectionReason, detail: string) {
    super(detail);
    this.reason = reason;
  }
}

/** Deepest nesting any limit may allow: size of the stack below. */
const MAX_DEPTH = 256;

// Values still to be stepped over, by level. One for all scans: a scan is synchronous and never runs inside another.
const pending = new Float64Array(MAX_DEPTH + 1);

/** What a value is, by its first byte, in words for a rejection. */
export function kindOf(head: number): string {
  if (head < 0x80 || (head >= 0xcc && head <= 0xcf)) return 'an integer';
  if (head >= 0xe0 || (head >= 0xd0 && head <= 0xd3)) return 'a signed integer';
  if (head <= 0x8f || head === 0xde || head === 0xdf) return 'a map';
  if (head <= 0x9f || head === 0xdc || head === 0xdd) return 'an array';
  if (head <= 0xbf || (head >= 0xd9 && head <= 0xdb)) return 'text';
  if (head === 0xc0) return 'nil';
  if (head === 0xc2 || head === 0xc3) return 'a boolean';
  if (head >= 0xc4 && head <= 0xc6) return 'bin';
  if (head === 0xca || head === 0xcb) return 'a float';
  return 'an extension value';
}

/**
 * A cursor over a payload. Methods named `read...` and `enter...` take the field's name for the rejection and leave the
 * cursor behind what they read; all throw {@link ScanFault}.
 */
export class Reader {
  position = 0;
  private steps = 0;
  private readonly depth: number;

  constructor(
    readonly payload: Buffer,
    readonly limits: ProtocolLimits,
  ) {
    this.depth = Math.min(limits.depth, MAX_DEPTH);
  }

  get remaining(): number {
    return this.payload.length - this.position;
  }

  /** First byte of the value under the cursor. */
  peek(): number {
    this.need(1);
    return this.payload[this.position];
  }

  /** Charges one value to the limit on the work of a scan. */
  step(): void {
    if (++this.steps > this.limits.skippedValues) {
      throw new ScanFault('too_complex', `more than ${this.limits.skippedValues} values`);
    }
  }

  /** Steps over one value of any type. Text in it is not checked to be UTF-8. */
  skip(): void {
    let level = 0;
    pending[0] = 1;
    for (;;) {
      while (pending[level] === 0) {
        if (level === 0) return;
        level--;
      }
      pending[level]--;
      this.step();
      const children = this.skipHead();
      if (children === 0) continue;
      if (++level > this.depth) throw new ScanFault('too_complex', `nested deeper than ${this.depth} levels`);
      pending[level] = children;
    }
  }

  /** @returns the entry count of the map under the cursor, or undefined (cursor unmoved) when it is no map */
  enterMap(): number | undefined {
    const head = this.peek();
    if (head >= 0x80 && head <= 0x8f) {
      this.position++;
      return this.children(head & 0x0f, 2);
    }
    if (head !== 0xde && head !== 0xdf) return undefined;
    this.position++;
    return this.children(head === 0xde ? this.uint16() : this.uint32(), 2);
  }

  /** @returns the element count of the array under the cursor, or undefined (cursor unmoved) when it is no array */
  enterArray(): number | undefined {
    const head = this.peek();
    if (head >= 0x90 && head <= 0x9f) {
      this.position++;
      return this.children(head & 0x0f, 1);
    }
    if (head !== 0xdc && head !== 0xdd) return undefined;
    this.position++;
    return this.children(head === 0xdc ? this.uint16() : this.uint32(), 1);
  }

  /** @returns the length in bytes of the text under the cursor, which then stands on its first byte; or undefined */
  enterText(): number | undefined {
    const head = this.peek();
    let length: number;
    if (head >= 0xa0 && head <= 0xbf) {
      this.position++;
      length = head & 0x1f;
    } else if (head >= 0xd9 && head <= 0xdb) {
      this.position++;
      length = head === 0xd9 ? this.uint8() : head === 0xda ? this.uint16() : this.uint32();
    } else {
      return undefined;
    }
    this.need(length);
    return length;
  }

  /** @returns the length in bytes of the bin under the cursor, which then stands on its first byte; or undefined */
  enterBin(): number | undefined {
    const head = this.peek();
    if (head < 0xc4 || head > 0xc6) return undefined;
    this.position++;
    const length = head === 0xc4 ? this.uint8() : head === 0xc5 ? this.uint16() : this.uint32();
    this.need(length);
    return length;
  }

  /** A whole number from 0 to 2^53 - 1, of any msgpack width. */
  readCount(field: string): number {
    const head = this.peek();
    const value = this.tryInteger();
    if (value === undefined)
      throw new ScanFault('invalid_field', `${field} must be an integer, found ${kindOf(head)}`);
    if (value < 0) throw new ScanFault('invalid_field', `${field} must not be negative`);
    if (value > Number.MAX_SAFE_INTEGER) throw new ScanFault('over_limit', `${field} must be below 2^53`);
    return value;
  }

  /**
   * The integer under the cursor, or undefined (cursor unmoved) when it is none. Beyond 2^53 the value is inexact, and
   * still beyond 2^53.
   */
  tryInteger(): number | undefined {
    const head = this.peek();
    if (head < 0x80) {
      this.position++;
      return head;
    }
    if (head >= 0xe0) {
      this.position++;
      return head - 0x100;
    }
    if (head < 0xcc || head > 0xd3) return undefined;
    const width = 1 << (head & 3);
    this.need(1 + width);
    const at = this.position + 1;
    this.position = at + width;
    return readWide(this.payload, at, head);
  }

  /** Text of `least` bytes up to the limit, checked to be UTF-8. */
  readText(field: string, least: 0 | 1): string {
    const head = this.peek();
    const length = this.enterText();
    if (length === undefined)
      throw new ScanFault('invalid_field', `${field} must be text, found ${kindOf(head)}`);
    if (length < least) throw new ScanFault('invalid_field', `${field} must not be empty`);
    if (length > this.limits.stringBytes) {
      throw new ScanFault(
        'over_limit',
        `${field} has ${length} bytes, at most ${this.limits.stringBytes} are allowed`,
      );
    }
    const start = this.position;
    this.position += length;
    return decodeText(this.payload, start, this.position, field);
  }

  readBoolean(field: string): boolean {
    const head = this.peek();
    if (head !== 0xc2 && head !== 0xc3) {
      throw new ScanFault('invalid_field', `${field} must be a boolean, found ${kindOf(head)}`);
    }
    this.position++;
    return head === 0xc3;
  }

  private need(bytes: number): void {
    if (this.remaining < bytes) {
      throw new ScanFault('undecodable', `truncated at byte ${this.payload.length}`);
    }
  }

  private uint8(): number {
    this.need(1);
    return this.payload[this.position++];
  }

  private uint16(): number {
    this.need(2);
    const value = this.payload.readUInt16BE(this.position);
    this.position += 2;
    return value;
  }

  private uint32(): number {
    this.need(4);
    const value = this.payload.readUInt32BE(this.position);
    this.position += 4;
    return value;
  }

  // Every value takes a byte at least, so a claim beyond what is left is refused before anything believes it.
  private children(count: number, valuesEach: number): number {
    this.need(count * valuesEach);
    return count;
  }

  // Steps over the head of a value and its own bytes; returns how many values it contains.
  private skipHead(): number {
    const head = this.peek();
    if (head < 0x80 || head >= 0xe0 || head === 0xc0 || head === 0xc2 || head === 0xc3) {
      this.position++;
      return 0;
    }
    const elements = this.enterArray();
    if (elements !== undefined) return elements;
    const entries = this.enterMap();
    if (entries !== undefined) return entries * 2;
    const length = this.enterText() ?? this.enterBin();
    if (length !== undefined) {
      this.position += length;
      return 0;
    }
    this.position++;
    this.skipFixed(head);
    return 0;
  }

  private skipFixed(head: number): void {
    let length: number;
    if (head === 0xc1) throw new ScanFault('undecodable', `byte 0xc1 at ${this.position - 1} is not msgpack`);
    if (head >= 0xc7 && head <= 0xc9) {
      length = 1 + (head === 0xc7 ? this.uint8() : head === 0xc8 ? this.uint16() : this.uint32());
    } else if (head === 0xca || head === 0xcb) {
      length = head === 0xca ? 4 : 8;
    } else if (head <= 0xd3) {
      length = 1 << (head & 3);
    } else {
      length = 1 + (1 << (head - 0xd4));
    }
    this.need(length);
    this.position += length;
  }
}

/** Value of a `cc` to `d3` integer whose bytes begin at `at`; the caller has checked that they are there. */
function readWide(payload: Buffer, at: number, head: number): number {
  switch (head) {
    case 0xcc:
      return payload[at];
    case 0xcd:
      return payload.readUInt16BE(at);
    case 0xce:
      return payload.readUInt32BE(at);
    case 0xcf:
      return payload.readUInt32BE(at) * 2 ** 32 + payload.readUInt32BE(at + 4);
    case 0xd0:
      return payload.readInt8(at);
    case 0xd1:
      return payload.readInt16BE(at);
    case 0xd2:
      return payload.readInt32BE(at);
    default:
      return payload.readInt32BE(at) * 2 ** 32 + payload.readUInt32BE(at + 4);
  }
}

const strictUtf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function decodeText(payload: Buffer, start: number, end: number, field: string): string {
  let isAscii = true;
  for (let at = start; at < end; at++) {
    if (payload[at] >= 0x80) {
      isAscii = false;
      break;
    }
  }
  if (isAscii) return payload.toString('latin1', start, end);
  try {
    return strictUtf8.decode(payload.subarray(start, end));
  } catch (error) {
    throw new ScanFault('undecodable', `${field} is not UTF-8 (${String(error)})`);
  }
}
