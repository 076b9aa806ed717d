// Finds the members of a JSON object in its bytes, without decoding anything that is not asked for.

/** Nesting that upstream still reads. */
const MAX_DEPTH = 10_000;
/** Far more than any API has; each one found costs memory. */
const MAX_MEMBERS = 16_384;
/** The shortest number without an exponent that no double can hold has 309 digits. */
const LONG_NUMBER = 309;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;
const OPEN_ARRAY = 0x5b;
const CLOSE_ARRAY = 0x5d;
const MINUS = 0x2d;
const PLUS = 0x2b;
const DOT = 0x2e;
const ZERO = 0x30;

/** Where one member of an object stands. Offsets are in bytes of the whole text. */
export interface JsonMember {
  readonly key: string;
  readonly keyStart: number;
  readonly valueStart: number;
  readonly valueEnd: number;
}

/** An object: its members in their order, repeated keys included. */
export interface JsonObject {
  readonly start: number;
  /** After the closing brace. */
  readonly end: number;
  readonly members: readonly JsonMember[];
}

/** What is wrong with a text that should be JSON, and where. */
export class JsonFault extends Error {
  override readonly name = 'JsonFault';
}

/**
 * Scans a whole text that must be one JSON object (RFC 8259, without a byte order mark). Everything is checked but the
 * encoding inside strings; numbers that no double can hold are refused, as upstream does.
 *
 * @throws JsonFault
 */
export function scanJsonObject(bytes: Buffer): JsonObject {
  const scanner = new Scanner(bytes, 0);
  scanner.space();
  if (bytes[scanner.at] !== OPEN_OBJECT) {
    // Tells broken JSON from another kind of value.
    scanner.value();
    scanner.endOfText();
    throw new JsonFault('request body is not a JSON object');
  }
  const object = scanner.object();
  scanner.endOfText();
  return object;
}

/** The members of an object inside a text that was scanned before. @returns undefined when the value is no object */
export function nestedObject(bytes: Buffer, { valueStart }: JsonMember): JsonObject | undefined {
  return bytes[valueStart] === OPEN_OBJECT ? new Scanner(bytes, valueStart).object() : undefined;
}

class Scanner {
  at: number;
  readonly #bytes: Buffer;

  constructor(bytes: Buffer, at: number) {
    this.#bytes = bytes;
    this.at = at;
  }

  object(): JsonObject {
    const start = this.at;
    const members: JsonMember[] = [];
    this.at++;
    this.space();
    if (this.#bytes[this.at] === CLOSE_OBJECT) return { start, end: ++this.at, members };
    for (;;) {
      const keyStart = this.at;
      const key = this.#key();
      this.space();
      const valueStart = this.at;
      this.value();
      if (members.length === MAX_MEMBERS)
        throw new JsonFault(`more than ${MAX_MEMBERS} members in one object`);
      members.push({ key, keyStart, valueStart, valueEnd: this.at });
      this.space();
      const byte = this.#bytes[this.at];
      if (byte === CLOSE_OBJECT) return { start, end: ++this.at, members };
      if (byte !== COMMA) throw this.#fault('a comma or }');
      this.at++;
      this.space();
    }
  }

  /** Steps over one value of any kind; a loop, because a hostile body is deeper than the stack. */
  value(): void {
    const open: number[] = [];
    for (;;) {
      this.space();
      const byte = this.#bytes[this.at];
      if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
        this.at++;
        this.space();
        if (this.#bytes[this.at] !== byte + 2) {
          if (open.push(byte) >= MAX_DEPTH) throw new JsonFault(`nested deeper than ${MAX_DEPTH} levels`);
          if (byte === OPEN_OBJECT) this.#stepOverKey();
          continue;
        }
        this.at++;
      } else {
        this.#scalar(byte);
      }
      if (this.#afterValue(open)) return;
    }
  }

  space(): void {
    const bytes = this.#bytes;
    for (;;) {
      const byte = bytes[this.at];
      if (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09) return;
      this.at++;
    }
  }

  endOfText(): void {
    this.space();
    if (this.at < this.#bytes.length) throw this.#fault('the end');
  }

  /** @returns true when the outermost value is complete */
  #afterValue(open: number[]): boolean {
    for (;;) {
      const inside = open.at(-1);
      if (inside === undefined) return true;
      this.space();
      const byte = this.#bytes[this.at];
      if (byte === COMMA) {
        this.at++;
        if (inside === OPEN_OBJECT) {
          this.space();
          this.#stepOverKey();
        }
        return false;
      }
      if (byte !== inside + 2) throw this.#fault(inside === OPEN_OBJECT ? 'a comma or }' : 'a comma or ]');
      this.at++;
      open.pop();
    }
  }

  #key(): string {
    const start = this.at;
    this.#stepOverKeyText();
    const text = this.#bytes.toString('utf8', start, this.at);
    this.#colon();
    return text.includes('\\') ? String(JSON.parse(text)) : text.slice(1, -1);
  }

  #stepOverKey(): void {
    this.#stepOverKeyText();
    this.#colon();
  }

  #stepOverKeyText(): void {
    if (this.#bytes[this.at] !== QUOTE) throw this.#fault('a key in double quotes');
    this.#string();
  }

  #colon(): void {
    this.space();
    if (this.#bytes[this.at] !== COLON) throw this.#fault('a colon');
    this.at++;
  }

  #scalar(byte: number): void {
    if (byte === QUOTE) this.#string();
    else if (byte === MINUS || isDigit(byte)) this.#number();
    else if (byte === 0x74) this.#word('true');
    else if (byte === 0x66) this.#word('false');
    else if (byte === 0x6e) this.#word('null');
    else throw this.#fault('a value');
  }

  #word(word: string): void {
    for (let i = 0; i < word.length; i++) {
      if (this.#bytes[this.at] !== word.charCodeAt(i)) throw this.#fault(word);
      this.at++;
    }
  }

  #string(): void {
    const bytes = this.#bytes;
    let at = this.at + 1;
    for (;;) {
      const byte = bytes[at];
      if (byte > BACKSLASH || (byte >= 0x20 && byte !== QUOTE && byte !== BACKSLASH)) {
        at++;
      } else if (byte === QUOTE) {
        this.at = at + 1;
        return;
      } else {
        this.at = at;
        if (byte !== BACKSLASH) throw this.#fault('the end of the string, or an escape');
        this.#escape();
        at = this.at;
      }
    }
  }

  #escape(): void {
    const byte = this.#bytes.at(this.at + 1);
    if (byte === 0x75) {
      const digits = this.#bytes.toString('latin1', this.at + 2, this.at + 6);
      if (!/^[0-9A-Fa-f]{4}$/.test(digits)) throw this.#fault('four hexadecimal digits after \\u');
      this.at += 6;
    } else if (byte !== undefined && '"\\/bfnrt'.includes(String.fromCharCode(byte))) {
      this.at += 2;
    } else {
      throw this.#fault('a known escape');
    }
  }

  #number(): void {
    const start = this.at;
    if (this.#bytes[this.at] === MINUS) this.at++;
    if (this.#bytes[this.at] === ZERO) this.at++;
    else this.#digits();
    if (this.#bytes[this.at] === DOT) {
      this.at++;
      this.#digits();
    }
    const hasExponent = this.#bytes[this.at] === 0x65 || this.#bytes[this.at] === 0x45;
    if (hasExponent) {
      this.at++;
      const sign = this.#bytes[this.at];
      if (sign === PLUS || sign === MINUS) this.at++;
      this.#digits();
    }
    if (!hasExponent && this.at - start < LONG_NUMBER) return;
    if (!Number.isFinite(Number(this.#bytes.toString('latin1', start, this.at)))) {
      throw new JsonFault(`a number at byte ${start} is beyond what a double holds`);
    }
  }

  #digits(): void {
    if (!isDigit(this.#bytes[this.at])) throw this.#fault('a digit');
    while (isDigit(this.#bytes[this.at])) this.at++;
  }

  #fault(expected: string): JsonFault {
    const where = this.at >= this.#bytes.length ? 'the text ends' : `byte ${this.at} is wrong`;
    return new JsonFault(`${where}: ${expected} was expected`);
  }
}

function isDigit(byte: number): boolean {
  return byte >= ZERO && byte <= 0x39;
}

export const JSON_BYTES = {
  QUOTE,
  BACKSLASH,
  COMMA,
  COLON,
  OPEN_OBJECT,
  CLOSE_OBJECT,
  OPEN_ARRAY,
  CLOSE_ARRAY,
} as const;
