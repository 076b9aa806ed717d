// Canonical CBOR (RFC 7049 section 3.9) of the few shapes that vLLM hashes: bytes, text, integers, arrays, null.

export type CborValue = null | string | Uint8Array | number | readonly CborValue[];

const UNSIGNED = 0;
const NEGATIVE = 1;
const BYTES = 2;
const TEXT = 3;
const ARRAY = 4;
const NULL = 0xf6;

/** Appends values to one growing buffer; `bytes()` is a view that the next `reset()` invalidates. */
export class CborWriter {
  #buffer = Buffer.allocUnsafe(1024);
  #length = 0;

  reset(): this {
    this.#length = 0;
    return this;
  }

  /** Borrowed until the next call. */
  bytes(): Buffer {
    return this.#buffer.subarray(0, this.#length);
  }

  value(value: CborValue): this {
    if (value === null) return this.null();
    if (typeof value === 'number') return this.integer(value);
    if (typeof value === 'string') return this.text(value);
    if (value instanceof Uint8Array) return this.byteString(value);
    this.array(value.length);
    for (const entry of value) this.value(entry);
    return this;
  }

  null(): this {
    this.#reserve(1);
    this.#buffer[this.#length++] = NULL;
    return this;
  }

  /** A safe integer, negative or not. */
  integer(value: number): this {
    return value >= 0 ? this.#head(UNSIGNED, value) : this.#head(NEGATIVE, -1 - value);
  }

  text(value: string): this {
    const byteCount = Buffer.byteLength(value);
    this.#head(TEXT, byteCount);
    this.#reserve(byteCount);
    this.#length += this.#buffer.write(value, this.#length);
    return this;
  }

  byteString(value: Uint8Array): this {
    this.#head(BYTES, value.length);
    this.#reserve(value.length);
    this.#buffer.set(value, this.#length);
    this.#length += value.length;
    return this;
  }

  /** The head of an array; its entries follow. */
  array(count: number): this {
    return this.#head(ARRAY, count);
  }

  /** The argument in the shortest form, which canonical means for everything used here. */
  #head(major: number, argument: number): this {
    this.#reserve(9);
    const type = major << 5;
    if (argument < 24) {
      this.#buffer[this.#length++] = type | argument;
    } else if (argument < 0x100) {
      this.#buffer[this.#length++] = type | 24;
      this.#buffer[this.#length++] = argument;
    } else if (argument < 0x1_0000) {
      this.#buffer[this.#length++] = type | 25;
      this.#length = this.#buffer.writeUInt16BE(argument, this.#length);
    } else if (argument < 0x1_0000_0000) {
      this.#buffer[this.#length++] = type | 26;
      this.#length = this.#buffer.writeUInt32BE(argument, this.#length);
    } else {
      this.#buffer[this.#length++] = type | 27;
      this.#length = this.#buffer.writeBigUInt64BE(BigInt(argument), this.#length);
    }
    return this;
  }

  #reserve(byteCount: number): void {
    if (this.#length + byteCount <= this.#buffer.length) return;
    const grown = Buffer.allocUnsafe(Math.max(this.#buffer.length * 2, this.#length + byteCount));
    this.#buffer.copy(grown, 0, 0, this.#length);
    this.#buffer = grown;
  }
}
