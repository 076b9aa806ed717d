// Finds the members of a JSON object in its bytes as they arrive, without decoding anything that is not asked for.

/** Nesting that upstream still reads. */
export const MAX_DEPTH = 10_000;
/** Far more than any API has; each one found costs memory. */
const MAX_MEMBERS = 16_384;
/** The shortest number without an exponent that no double can hold has 309 digits. */
const LONG_NUMBER = 309;
/** Nobody writes such a number; its value is worked out in one go. */
const MAX_NUMBER_BYTES = 1 << 20;
/** The longest key of interest is far shorter, also with every character escaped. */
const MAX_KEY_BYTES = 1024;

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
  /** Empty for a key that is too long to be any of those that matter. */
  readonly key: string;
  readonly keyStart: number;
  readonly valueStart: number;
  readonly valueEnd: number;
  /** The value's own members, for an object that is looked into (see `LOOKED_INTO`). */
  readonly object: JsonObject | undefined;
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

/** Objects whose members are found too, besides those of the text itself: where engines read parameters. */
interface Place {
  readonly inside: ReadonlyMap<string, Place>;
}
const LEAF: Place = { inside: new Map() };
const LOOKED_INTO: Place = {
  inside: new Map([
    ['sampling_params', { inside: new Map([['extra_args', LEAF]]) }],
    ['vllm_xargs', LEAF],
  ]),
};

/** An object that is looked into and not yet closed. */
interface OpenObject {
  readonly start: number;
  readonly place: Place;
  readonly parent: OpenObject | undefined;
  /** Open brackets while its members are read. */
  readonly depth: number;
  readonly members: JsonMember[];
  key: string;
  keyStart: number;
  valueStart: number;
}

type State =
  | 'value'
  | 'first-item'
  | 'first-key'
  | 'key'
  | 'colon'
  | 'after'
  | 'string'
  | 'escape'
  | 'hex'
  | 'number'
  | 'word';
type NumberState = 'minus' | 'zero' | 'whole' | 'point' | 'fraction' | 'e' | 'sign' | 'exponent';

const EXPECTED: Readonly<Record<State, string>> = {
  value: 'a value',
  'first-item': 'a value',
  'first-key': 'a key in double quotes',
  key: 'a key in double quotes',
  colon: 'a colon',
  after: 'a comma or the closing bracket',
  string: 'the end of the string, or an escape',
  escape: 'a known escape',
  hex: 'four hexadecimal digits after \\u',
  number: 'a digit',
  word: 'true, false or null',
};

/**
 * Scans a text that must be one JSON object (RFC 8259, without a byte order mark), piece by piece: a body of any size
 * holds the event loop no longer than its pieces do. Everything is checked but the encoding inside strings; numbers that
 * no double can hold are refused, as upstream does.
 */
export class JsonScan {
  #state: State = 'value';
  /** Bytes of the pieces before this one. */
  #before = 0;
  readonly #open: number[] = [];
  #object: OpenObject | undefined;
  #found: JsonObject | undefined;
  #isKey = false;
  #hexLeft = 0;
  #word = '';
  #wordAt = 0;
  #number: NumberState = 'minus';
  /** The key or the number so far. */
  #text = '';

  /** @throws JsonFault at the first byte that is wrong */
  push(piece: Buffer): void {
    let i = 0;
    while (i < piece.length) {
      switch (this.#state) {
        case 'string':
          i = this.#string(piece, i);
          break;
        case 'number':
          i = this.#inNumber(piece, i);
          break;
        case 'escape':
        case 'hex':
        case 'word':
          this.#follow(piece[i], i);
          i++;
          break;
        case 'value':
        case 'first-item':
        case 'first-key':
        case 'key':
        case 'colon':
        case 'after': {
          const byte = piece[i];
          if (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) i++;
          else i = this.#token(byte, piece, i);
        }
      }
    }
    this.#before += piece.length;
  }

  /** @throws JsonFault when the text is not complete, or no object */
  end(): JsonObject {
    if (this.#state === 'number' && this.#open.length === 0) this.#endNumber(0);
    if (this.#state !== 'after' || this.#open.length > 0) {
      throw new JsonFault(`the text ends: ${EXPECTED[this.#state]} was expected`);
    }
    if (this.#found === undefined) throw new JsonFault('request body is not a JSON object');
    return this.#found;
  }

  /** A byte that is no blank, outside strings, numbers and words. @returns where to go on */
  #token(byte: number, piece: Buffer, i: number): number {
    switch (this.#state) {
      case 'first-item':
        if (byte === CLOSE_ARRAY) return this.#close(i);
        return this.#value(byte, piece, i);
      case 'value':
        return this.#value(byte, piece, i);
      case 'first-key':
        if (byte === CLOSE_OBJECT) return this.#close(i);
        return this.#startKey(byte, i);
      case 'key':
        return this.#startKey(byte, i);
      case 'colon':
        if (byte !== COLON) throw this.#fault(i);
        this.#state = 'value';
        return i + 1;
      case 'after':
        return this.#after(byte, i);
      case 'string':
      case 'escape':
      case 'hex':
      case 'number':
      case 'word':
        throw this.#fault(i);
    }
  }

  #value(byte: number, piece: Buffer, i: number): number {
    const holder = this.#holder();
    if (holder !== undefined) holder.valueStart = this.#before + i;
    if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
      if (this.#open.push(byte) > MAX_DEPTH) throw new JsonFault(`nested deeper than ${MAX_DEPTH} levels`);
      this.#state = byte === OPEN_OBJECT ? 'first-key' : 'first-item';
      if (byte === OPEN_OBJECT) this.#lookInto(holder, this.#before + i);
    } else if (byte === QUOTE) {
      this.#state = 'string';
      this.#isKey = false;
    } else if (byte === MINUS || isDigit(byte)) {
      this.#state = 'number';
      this.#number = byte === MINUS ? 'minus' : byte === ZERO ? 'zero' : 'whole';
      this.#text = '';
      return this.#inNumber(piece, i + 1, i);
    } else {
      const word = WORDS.get(byte);
      if (word === undefined) throw this.#fault(i);
      this.#state = 'word';
      this.#word = word;
      this.#wordAt = 1;
    }
    return i + 1;
  }

  /** The object that is looked into and whose member's value begins or ends here, if there is one. */
  #holder(): OpenObject | undefined {
    return this.#object?.depth === this.#open.length ? this.#object : undefined;
  }

  #lookInto(holder: OpenObject | undefined, start: number): void {
    const isText = this.#open.length === 1;
    const place = isText ? LOOKED_INTO : holder?.place.inside.get(holder.key);
    if (place === undefined) return;
    this.#object = {
      ...{ start, place, parent: holder, depth: this.#open.length, members: [] },
      ...{ key: '', keyStart: 0, valueStart: 0 },
    };
  }

  #startKey(byte: number, i: number): number {
    if (byte !== QUOTE) throw this.#fault(i);
    this.#state = 'string';
    this.#isKey = true;
    this.#text = '';
    const holder = this.#holder();
    if (holder !== undefined) holder.keyStart = this.#before + i;
    return i + 1;
  }

  #after(byte: number, i: number): number {
    const inside = this.#open.at(-1);
    if (inside === undefined) throw this.#fault(i, 'the end');
    if (byte === COMMA) {
      this.#state = inside === OPEN_OBJECT ? 'key' : 'value';
      return i + 1;
    }
    if (byte !== inside + 2) throw this.#fault(i);
    return this.#close(i);
  }

  #close(i: number): number {
    const object = this.#holder();
    this.#open.pop();
    let closed: JsonObject | undefined;
    if (object !== undefined) {
      closed = { start: object.start, end: this.#before + i + 1, members: object.members };
      this.#object = object.parent;
      if (this.#open.length === 0) this.#found = closed;
    }
    this.#endValue(this.#before + i + 1, closed);
    return i + 1;
  }

  #endValue(valueEnd: number, object?: JsonObject): void {
    this.#state = 'after';
    const holder = this.#holder();
    if (holder === undefined) return;
    const { key, keyStart, valueStart, members } = holder;
    if (members.length === MAX_MEMBERS) throw new JsonFault(`more than ${MAX_MEMBERS} members in one object`);
    members.push({ key, keyStart, valueStart, valueEnd, object });
  }

  #string(piece: Buffer, start: number): number {
    const i = endOfPlain(piece, start);
    this.#keepBytes(piece, start, i);
    if (i === piece.length) return i;
    const byte = piece[i];
    if (byte === BACKSLASH) this.#state = 'escape';
    else if (byte === QUOTE) this.#endString(this.#before + i + 1);
    else throw this.#fault(i);
    return i + 1;
  }

  /** Collects the text of a key that may matter. */
  #keepBytes(piece: Buffer, start: number, end: number): void {
    if (this.#isKey && start < end) {
      this.#keep(piece.toString('latin1', start, Math.min(end, start + MAX_KEY_BYTES + 1)));
    }
  }

  #keep(text: string): void {
    if (this.#isKey && this.#text.length <= MAX_KEY_BYTES && this.#holder() !== undefined) this.#text += text;
  }

  #endString(end: number): void {
    if (!this.#isKey) {
      this.#endValue(end);
      return;
    }
    this.#state = 'colon';
    const holder = this.#holder();
    if (holder !== undefined) holder.key = keyOf(this.#text);
  }

  /** One byte inside an escape or a word. */
  #follow(byte: number, i: number): void {
    const character = String.fromCharCode(byte);
    if (this.#state === 'word') {
      if (character !== this.#word[this.#wordAt]) throw this.#fault(i, this.#word);
      if (++this.#wordAt === this.#word.length) this.#endValue(this.#before + i + 1);
      return;
    }
    if (this.#state === 'hex') {
      if (!/[0-9A-Fa-f]/.test(character)) throw this.#fault(i);
      if (--this.#hexLeft === 0) this.#state = 'string';
      this.#keep(character);
      return;
    }
    if (!'"\\/bfnrtu'.includes(character)) throw this.#fault(i);
    this.#state = character === 'u' ? 'hex' : 'string';
    this.#hexLeft = 4;
    this.#keep(`\\${character}`);
  }

  /** @param start where the number, or what this piece has of it, begins */
  #inNumber(piece: Buffer, from: number, start = from): number {
    let i = from;
    for (; i < piece.length; i++) {
      const next = nextOf(this.#number, piece[i]);
      if (next === undefined) break;
      this.#number = next;
    }
    if (i < piece.length && this.#text === '' && i - start < LONG_NUMBER && this.#number !== 'exponent') {
      // By far the most: too short to be beyond a double, so its text is not needed.
      if (!ENDS.has(this.#number)) throw this.#fault(i);
      this.#endValue(this.#before + i);
      return i;
    }
    this.#text += piece.toString('latin1', start, i);
    if (this.#text.length > MAX_NUMBER_BYTES) {
      throw new JsonFault(
        `a number before byte ${this.#before + i} has more than ${MAX_NUMBER_BYTES} digits`,
      );
    }
    if (i < piece.length) this.#endNumber(i);
    return i;
  }

  #endNumber(i: number): void {
    if (!ENDS.has(this.#number)) throw this.#fault(i);
    const end = this.#before + i;
    const text = this.#text;
    const isLong = text.length >= LONG_NUMBER || this.#number === 'exponent';
    if (isLong && !Number.isFinite(Number(text))) {
      throw new JsonFault(`a number at byte ${end - text.length} is beyond what a double holds`);
    }
    this.#endValue(end);
  }

  #fault(i: number, expected = EXPECTED[this.#state]): JsonFault {
    return new JsonFault(`byte ${this.#before + i} is wrong: ${expected} was expected`);
  }
}

/** Scans a text that is there as a whole. @throws JsonFault */
export function scanJsonObject(bytes: Buffer): JsonObject {
  const scan = new JsonScan();
  scan.push(bytes);
  return scan.end();
}

const WORDS: ReadonlyMap<number, string> = new Map([
  [0x74, 'true'],
  [0x66, 'false'],
  [0x6e, 'null'],
]);

/** Where a number may end. */
const ENDS: ReadonlySet<NumberState> = new Set(['zero', 'whole', 'fraction', 'exponent']);

/** @returns undefined for a byte that is no part of the number */
function nextOf(state: NumberState, byte: number): NumberState | undefined {
  if (isDigit(byte)) {
    switch (state) {
      case 'minus':
        return byte === ZERO ? 'zero' : 'whole';
      case 'whole':
        return 'whole';
      case 'point':
      case 'fraction':
        return 'fraction';
      case 'e':
      case 'sign':
      case 'exponent':
        return 'exponent';
      case 'zero':
        return undefined;
    }
  }
  if (byte === DOT) return state === 'zero' || state === 'whole' ? 'point' : undefined;
  if (byte === 0x65 || byte === 0x45)
    return state === 'zero' || state === 'whole' || state === 'fraction' ? 'e' : undefined;
  return (byte === PLUS || byte === MINUS) && state === 'e' ? 'sign' : undefined;
}

/** @param raw the bytes of a key between its quotes, one per character */
function keyOf(raw: string): string {
  if (raw.length > MAX_KEY_BYTES) return '';
  const text = Buffer.from(raw, 'latin1').toString('utf8');
  return text.includes('\\') ? String(JSON.parse(`"${text}"`)) : text;
}

/** The first byte from `i` on that is not plain text inside a string. Apart from the scan, since it is the hot loop. */
function endOfPlain(piece: Uint8Array, i: number): number {
  const { length } = piece;
  let at = i;
  while (at < length && PLAIN[piece[at]] === 1) at++;
  return at;
}

/** 1 for every byte but quotes, backslashes and control characters. */
const PLAIN = new Uint8Array(256).fill(1).fill(0, 0, 0x20);
PLAIN[QUOTE] = 0;
PLAIN[BACKSLASH] = 0;

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
