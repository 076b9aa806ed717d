// msgpack writing into one buffer whose size is computed first; every value takes its shortest form, as msgspec does.

/** Bytes of a whole number from -2^31 to 2^53 - 1. */
export function signedIntBytes(value: number): number {
  if (value >= 0) return intBytes(value);
  if (value >= -0x20) return 1;
  if (value >= -0x80) return 2;
  return value >= -0x8000 ? 3 : 5;
}

/** Bytes of a whole number from 0 to 2^53 - 1. */
export function intBytes(value: number): number {
  if (value < 0x80) return 1;
  if (value <= 0xff) return 2;
  if (value <= 0xffff) return 3;
  return value <= 0xffff_ffff ? 5 : 9;
}

/** Bytes of a text with its head. */
export function textBytes(text: string): number {
  const length = Buffer.byteLength(text);
  if (length < 32) return 1 + length;
  return (length <= 0xff ? 2 : length <= 0xffff ? 3 : 5) + length;
}

/** Bytes of a bin of `length` bytes with its head. */
export function binBytes(length: number): number {
  return (length <= 0xff ? 2 : length <= 0xffff ? 3 : 5) + length;
}

/** Bytes of the head of an array. */
export function listHeadBytes(count: number): number {
  if (count < 16) return 1;
  return count <= 0xffff ? 3 : 5;
}

/** Fills a fresh buffer of exactly `size` bytes from front to back. */
export class Writer {
  private readonly buffer: Buffer;
  private position = 0;

  constructor(size: number) {
    this.buffer = Buffer.allocUnsafe(size);
  }

  /** @returns the buffer; throws when it is not exactly full, which would send stray memory */
  finish(): Buffer {
    if (this.position !== this.buffer.length) {
      throw new RangeError(`wrote ${this.position} bytes of a message of ${this.buffer.length}`);
    }
    return this.buffer;
  }

  byte(value: number): void {
    this.buffer[this.position++] = value;
  }

  raw(bytes: Uint8Array): void {
    this.buffer.set(bytes, this.position);
    this.position += bytes.length;
  }

  copy(source: Buffer, start: number, end: number): void {
    this.position += source.copy(this.buffer, this.position, start, end);
  }

  mapHead(entries: number): void {
    this.byte(0x80 | entries);
  }

  listHead(count: number): void {
    if (count < 16) this.byte(0x90 | count);
    else this.head(0xdc, count);
  }

  int(value: number): void {
    if (!Number.isSafeInteger(value) || value < 0) {
      throw new RangeError(`${value} is not a whole number from 0 to 2^53 - 1`);
    }
    if (value < 0x80) {
      this.byte(value);
    } else if (value <= 0xff) {
      this.byte(0xcc);
      this.byte(value);
    } else if (value <= 0xffff_ffff) {
      this.head(0xcd, value);
    } else {
      this.byte(0xcf);
      this.position = this.buffer.writeUInt32BE(Math.floor(value / 2 ** 32), this.position);
      this.position = this.buffer.writeUInt32BE(value % 2 ** 32, this.position);
    }
  }

  /** Also below zero, down to -2^31: places of multimodal items in KV events. */
  signedInt(value: number): void {
    if (value >= 0) {
      this.int(value);
    } else if (value >= -0x20) {
      this.byte(value & 0xff);
    } else if (value >= -0x80) {
      this.byte(0xd0);
      this.byte(value & 0xff);
    } else if (value >= -0x8000) {
      this.byte(0xd1);
      this.position = this.buffer.writeInt16BE(value, this.position);
    } else {
      this.byte(0xd2);
      this.position = this.buffer.writeInt32BE(value, this.position);
    }
  }

  float64(value: number): void {
    this.byte(0xcb);
    this.position = this.buffer.writeDoubleBE(value, this.position);
  }

  text(value: string): void {
    const length = Buffer.byteLength(value);
    if (length < 32) {
      this.byte(0xa0 | length);
    } else if (length <= 0xff) {
      this.byte(0xd9);
      this.byte(length);
    } else {
      this.head(0xda, length);
    }
    this.position += this.buffer.write(value, this.position, 'utf8');
  }

  bin(bytes: Uint8Array): void {
    if (bytes.length <= 0xff) {
      this.byte(0xc4);
      this.byte(bytes.length);
    } else {
      this.head(0xc5, bytes.length);
    }
    this.raw(bytes);
  }

  /** `count` bins of `keyBytes` bytes, at most 255, out of a packed list. */
  keys(packed: Uint8Array, count: number, keyBytes: number): void {
    const target = new DataView(this.buffer.buffer, this.buffer.byteOffset, this.buffer.length);
    const source = new DataView(packed.buffer, packed.byteOffset, packed.length);
    const words = keyBytes & ~3;
    let from = 0;
    let to = this.position;
    for (let i = 0; i < count; i++) {
      target.setUint16(to, 0xc400 | keyBytes);
      to += 2;
      // Four bytes at a time in a plain loop: a call of copy() or set() per key costs several times as much.
      for (let byte = 0; byte < words; byte += 4) {
        target.setUint32(to + byte, source.getUint32(from + byte, true), true);
      }
      for (let byte = words; byte < keyBytes; byte++) {
        target.setUint8(to + byte, source.getUint8(from + byte));
      }
      from += keyBytes;
      to += keyBytes;
    }
    this.position = to;
  }

  // `kind` is the first byte of the 16-bit form; that of the 32-bit form is one higher in every msgpack family.
  private head(kind: number, value: number): void {
    if (value <= 0xffff) {
      this.byte(kind);
      this.position = this.buffer.writeUInt16BE(value, this.position);
    } else {
      this.byte(kind + 1);
      this.position = this.buffer.writeUInt32BE(value, this.position);
    }
  }
}
