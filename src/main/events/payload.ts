// The bytes of a batch of KV events, as vLLM's publisher writes them: msgpack [ts, [event, ...], data_parallel_rank].

import { binBytes, intBytes, listHeadBytes, signedIntBytes, textBytes, Writer } from '../protocol/writer.js';

/** What further went into a block's hash, per block: text, or text with an offset. */
export type ExtraKey = string | readonly [string, number];

export interface StoredEvent {
  readonly kind: 'stored';
  /** Of blocks that follow each other in a chain. */
  readonly hashes: readonly Uint8Array[];
  /** Of the block before the first; undefined at the start of a prompt, and where it is unknown. */
  readonly parent: Uint8Array | undefined;
  /** Per block; empty when they are unknown. */
  readonly tokenIds: readonly Uint32Array[];
  readonly tokensPerBlock: number;
  readonly loraName: string | undefined;
  /** Per block; undefined when no block has any: an empty list would lose the event at the router. */
  readonly extraKeys: readonly (readonly ExtraKey[] | undefined)[] | undefined;
}

export interface RemovedEvent {
  readonly kind: 'removed';
  readonly hashes: readonly Uint8Array[];
}

export type KvEvent = StoredEvent | RemovedEvent | { readonly kind: 'cleared' };

/** `array` is the classic form of an event, `map` that of newer vLLM; llm-d's router reads both. */
export type EventForm = 'array' | 'map';

/** The tier that llm-d's source selection counts. */
const MEDIUM = 'CPU';
const NIL = 0xc0;

/** One value: how many bytes it takes and how it is written. */
interface Value {
  readonly bytes: number;
  readonly write: (writer: Writer) => void;
}

const nil: Value = {
  bytes: 1,
  write: (writer) => {
    writer.byte(NIL);
  },
};

function text(value: string): Value {
  return {
    bytes: textBytes(value),
    write: (writer) => {
      writer.text(value);
    },
  };
}

function integer(value: number): Value {
  return {
    bytes: intBytes(value),
    write: (writer) => {
      writer.int(value);
    },
  };
}

/** Always bin: llm-d's router refuses the short integers that a msgpack encoder makes of small numbers. */
function hash(value: Uint8Array): Value {
  return {
    bytes: binBytes(value.length),
    write: (writer) => {
      writer.bin(value);
    },
  };
}

function list(values: readonly Value[]): Value {
  let bytes = listHeadBytes(values.length);
  for (const value of values) bytes += value.bytes;
  return {
    bytes,
    write: (writer) => {
      writer.listHead(values.length);
      for (const value of values) value.write(writer);
    },
  };
}

function tokens(blocks: readonly Uint32Array[]): Value {
  let count = 0;
  let bytes = 0;
  for (const block of blocks) {
    count += block.length;
    for (const token of block) bytes += intBytes(token);
  }
  return {
    bytes: listHeadBytes(count) + bytes,
    write: (writer) => {
      writer.listHead(count);
      for (const block of blocks) for (const token of block) writer.int(token);
    },
  };
}

/** An item's place is counted from the block's start: below zero when it began in an earlier block. */
function place(value: number): Value {
  return {
    bytes: signedIntBytes(value),
    write: (writer) => {
      writer.signedInt(value);
    },
  };
}

function extraKey(key: ExtraKey): Value {
  return typeof key === 'string' ? text(key) : list([text(key[0]), place(key[1])]);
}

/** Names and values in the order of the array form. */
function fieldsOf(event: KvEvent): readonly (readonly [string, Value])[] {
  switch (event.kind) {
    case 'stored':
      return [
        ['type', text('BlockStored')],
        ['block_hashes', list(event.hashes.map(hash))],
        ['parent_block_hash', event.parent === undefined ? nil : hash(event.parent)],
        ['token_ids', tokens(event.tokenIds)],
        ['block_size', integer(event.tokensPerBlock)],
        ['lora_id', nil],
        ['medium', text(MEDIUM)],
        ['lora_name', event.loraName === undefined ? nil : text(event.loraName)],
        [
          'extra_keys',
          event.extraKeys === undefined
            ? nil
            : list(event.extraKeys.map((keys) => (keys === undefined ? nil : list(keys.map(extraKey))))),
        ],
      ];
    case 'removed':
      return [
        ['type', text('BlockRemoved')],
        ['block_hashes', list(event.hashes.map(hash))],
        ['medium', text(MEDIUM)],
      ];
    case 'cleared':
      return [['type', text('AllBlocksCleared')]];
  }
}

/** Fields that the map form has even when they are nil. */
const ALWAYS_NAMED = new Set(['parent_block_hash']);

function eventValue(event: KvEvent, form: EventForm): Value {
  const fields = fieldsOf(event);
  if (form === 'array') return list(fields.map(([, value]) => value));
  const named = fields.filter(([name, value]) => value !== nil || ALWAYS_NAMED.has(name));
  let bytes = 1;
  for (const [name, value] of named) bytes += textBytes(name) + value.bytes;
  return {
    bytes,
    write: (writer) => {
      writer.mapHead(named.length);
      for (const [name, value] of named) {
        writer.text(name);
        value.write(writer);
      }
    },
  };
}

/**
 * @param timeS seconds since 1970; always written as a float64, as Python does
 * @returns a buffer that is never used again: ZeroMQ sends by reference
 */
export function writeBatch(
  events: readonly KvEvent[],
  options: { readonly timeS: number; readonly rank: number; readonly form: EventForm },
): Buffer {
  const body = list(events.map((event) => eventValue(event, options.form)));
  const writer = new Writer(1 + 9 + body.bytes + intBytes(options.rank));
  writer.listHead(3);
  writer.float64(options.timeS);
  body.write(writer);
  writer.int(options.rank);
  return writer.finish();
}
