// The walk over a message's map: where the value of each known field begins, and the lists that are read on the way.

import { tryHits, tryIndexes, tryKeys, type IndexList } from './lists.js';
import { MESSAGE_TYPES, type KeyList, type MessageType } from './messages.js';
import { kindOf, ScanFault, type Reader } from './reader.js';

const FIELD_NAMES = [
  'type',
  'kv_request_id',
  'keys',
  'round_seq',
  'hits',
  'block_indexes',
  'success',
  'ttl_ms',
  'lookup_seq',
  'checksums',
  'written',
  'if_held',
  'peer_id',
  'agent_metadata',
  'base_addr',
  'num_blocks',
  'block_len',
  'config_fingerprint',
  'hash_seed',
  'kvpeer',
] as const;

export type FieldName = (typeof FIELD_NAMES)[number];

interface KnownField {
  readonly name: FieldName;
  readonly bytes: Buffer;
}

// Known names by their length, so that most names are told apart by one look at a list of one or two.
const FIELDS_BY_LENGTH: (readonly KnownField[] | undefined)[] = [];
for (const name of FIELD_NAMES) {
  FIELDS_BY_LENGTH[name.length] = [
    ...(FIELDS_BY_LENGTH[name.length] ?? []),
    { name, bytes: Buffer.from(name, 'latin1') },
  ];
}

const TYPES: ReadonlyMap<string, MessageType> = new Map(MESSAGE_TYPES.map((type) => [type, type]));
const LONGEST_TYPE = 64;

/** What the walk over the map has found: where each known field's last value begins, and the lists already read. */
export class Found {
  type: string | undefined;
  keys: KeyList | undefined;
  hits: Uint8Array | undefined;
  indexes: IndexList | undefined;
  private readonly offsets: Partial<Record<FieldName, number>> = {};

  constructor(readonly reader: Reader) {}

  get messageType(): MessageType | undefined {
    return this.type === undefined ? undefined : TYPES.get(this.type);
  }

  set(field: FieldName, offset: number): void {
    this.offsets[field] = offset;
  }

  /** Moves the cursor to the field's value. */
  has(field: FieldName): boolean {
    const offset = this.offsets[field];
    if (offset === undefined) return false;
    this.reader.position = offset;
    return true;
  }

  require(field: FieldName): Reader {
    if (!this.has(field)) throw new ScanFault('invalid_field', `${field} is missing`);
    return this.reader;
  }
}

/** Walks over the whole payload. Of a field given twice the last one counts, so nothing is judged before the end. */
export function walk(found: Found): void {
  const { reader } = found;
  const head = reader.peek();
  const entries = reader.enterMap();
  if (entries === undefined) {
    reader.skip();
    requireEnd(reader);
    throw new ScanFault('not_a_map', `the payload is ${kindOf(head)}`);
  }
  for (let i = 0; i < entries; i++) {
    reader.step();
    const field = readFieldName(reader);
    if (field === undefined) reader.skip();
    else walkField(found, field);
  }
  requireEnd(reader);
}

function requireEnd(reader: Reader): void {
  if (reader.remaining > 0) {
    throw new ScanFault('undecodable', `${reader.remaining} bytes behind the end of the value`);
  }
}

function readFieldName(reader: Reader): FieldName | undefined {
  const length = reader.enterText();
  if (length === undefined) {
    reader.skip();
    return undefined;
  }
  const start = reader.position;
  reader.position += length;
  const candidates = FIELDS_BY_LENGTH[length];
  if (candidates === undefined) return undefined;
  for (const candidate of candidates) {
    if (equals(reader.payload, start, candidate.bytes)) return candidate.name;
  }
  return undefined;
}

function equals(payload: Buffer, start: number, name: Buffer): boolean {
  for (let i = 0; i < name.length; i++) {
    if (payload[start + i] !== name[i]) return false;
  }
  return true;
}

function walkField(found: Found, field: FieldName): void {
  const { reader } = found;
  found.set(field, reader.position);
  if (field === 'type') {
    found.type = readType(reader);
    return;
  }
  if (field === 'keys') {
    found.keys = tryKeys(reader);
    if (found.keys !== undefined) return;
  } else if (field === 'hits') {
    found.hits = tryHits(reader);
    if (found.hits !== undefined) return;
  } else if (field === 'block_indexes') {
    found.indexes = tryIndexes(reader);
    if (found.indexes !== undefined) return;
  }
  reader.skip();
}

/** The text under the cursor when it can be a type's name; the cursor ends behind the value in any case. */
function readType(reader: Reader): string | undefined {
  const length = reader.enterText();
  if (length === undefined) {
    reader.skip();
    return undefined;
  }
  const start = reader.position;
  reader.position += length;
  return length > LONGEST_TYPE ? undefined : reader.payload.toString('latin1', start, reader.position);
}

/** What is in the place of a known type, for the rejection. */
export function describeType(found: Found): string {
  if (found.type !== undefined) return `type ${JSON.stringify(found.type)} is not known`;
  if (!found.has('type')) return 'type is missing';
  const head = found.reader.peek();
  return `type is ${kindOf(head)}${kindOf(head) === 'text' ? `, longer than ${LONGEST_TYPE} bytes` : ''}`;
}
