// From values to the bytes of a message: one exact-size buffer each, the same bytes as vLLM writes.
//
// Every call returns a fresh buffer that nobody writes to again: ZeroMQ sends by reference and does not say when it is
// done. Fields have vLLM's order; extension fields follow behind the last one.

import {
  HIT,
  MISS,
  type ConnectMessage,
  type Feature,
  type KvpeerAnnouncement,
  type VerbatimKeys,
} from './messages.js';
import { Writer, binBytes, intBytes, listHeadBytes, textBytes } from './writer.js';

/** Contents of a `connect`; an undefined `kvpeer` makes it a plain one. */
export type ConnectFields = Omit<ConnectMessage, 'type' | 'agentMetadata'> & {
  readonly agentMetadata: Uint8Array;
};

/** Extensions of `lookup` and `fetch`. */
export interface DemandExtension {
  /** For a peer that announced `ttl_ms`. */
  readonly ttlMs?: number | undefined;
  /** For a peer that announced `packed_keys` and has keys of this length: `keys` is one bin. */
  readonly isPacked?: boolean;
}

/** Extension fields of `fetch`. */
export interface FetchExtension extends DemandExtension {
  /** For a peer that announced `speculative_fetch`. */
  readonly ifHeld?: boolean | undefined;
}

/** Extension fields of `lookup`. */
export interface LookupExtension extends DemandExtension {
  /** For a peer that announced `lookup_seq`. */
  readonly lookupSeq?: number | undefined;
}

/** Extension fields of `lookup_resp`. */
export interface AnswerExtension {
  /** For a peer that announced `round_seq`. */
  readonly roundSeq?: number | undefined;
  /** The lookup's own, which then stands for its keys. */
  readonly lookupSeq?: number | undefined;
}

// A field's name and, where it never changes, its value: encoded once.
const name = (text: string): Buffer => encodedText(text);
const NAME = {
  kvRequestId: name('kv_request_id'),
  keys: name('keys'),
  hits: name('hits'),
  blockIndexes: name('block_indexes'),
  roundSeq: name('round_seq'),
  success: name('success'),
  ttlMs: name('ttl_ms'),
  lookupSeq: name('lookup_seq'),
  checksums: name('checksums'),
  written: name('written'),
  ifHeld: name('if_held'),
  peerId: name('peer_id'),
  agentMetadata: name('agent_metadata'),
  baseAddr: name('base_addr'),
  numBlocks: name('num_blocks'),
  blockLen: name('block_len'),
  configFingerprint: name('config_fingerprint'),
  hashSeed: name('hash_seed'),
  kvpeer: name('kvpeer'),
} as const;

const typed = (type: string): Buffer => Buffer.concat([encodedText('type'), encodedText(type)]);
const TYPE = {
  connect: typed('connect'),
  connectAck: typed('connect_ack'),
  disconnect: typed('disconnect'),
  lookup: typed('lookup'),
  lookupResp: typed('lookup_resp'),
  fetch: typed('fetch'),
  transferDone: typed('transfer_done'),
  abortFetch: typed('abort_fetch'),
  abortAck: typed('abort_ack'),
} as const;

function encodedText(text: string): Buffer {
  const writer = new Writer(textBytes(text));
  writer.text(text);
  return writer.finish();
}

export function writeConnect(fields: ConnectFields): Buffer {
  const extension = fields.kvpeer === undefined ? undefined : encodedAnnouncement(fields.kvpeer);
  const size =
    1 +
    TYPE.connect.length +
    NAME.peerId.length +
    textBytes(fields.peerId) +
    NAME.agentMetadata.length +
    binBytes(fields.agentMetadata.length) +
    NAME.baseAddr.length +
    intBytes(fields.baseAddr) +
    NAME.numBlocks.length +
    intBytes(fields.numBlocks) +
    NAME.blockLen.length +
    intBytes(fields.blockLen) +
    NAME.configFingerprint.length +
    textBytes(fields.configFingerprint) +
    NAME.hashSeed.length +
    textBytes(fields.hashSeed) +
    (extension === undefined ? 0 : NAME.kvpeer.length + extension.length);
  const writer = new Writer(size);
  writer.mapHead(extension === undefined ? 8 : 9);
  writer.raw(TYPE.connect);
  writer.raw(NAME.peerId);
  writer.text(fields.peerId);
  writer.raw(NAME.agentMetadata);
  writer.bin(fields.agentMetadata);
  writer.raw(NAME.baseAddr);
  writer.int(fields.baseAddr);
  writer.raw(NAME.numBlocks);
  writer.int(fields.numBlocks);
  writer.raw(NAME.blockLen);
  writer.int(fields.blockLen);
  writer.raw(NAME.configFingerprint);
  writer.text(fields.configFingerprint);
  writer.raw(NAME.hashSeed);
  writer.text(fields.hashSeed);
  if (extension !== undefined) {
    writer.raw(NAME.kvpeer);
    writer.raw(extension);
  }
  return writer.finish();
}

function encodedAnnouncement(announcement: KvpeerAnnouncement): Buffer {
  const { version, incarnation, keyBytes, features } = announcement;
  const scalar = (key: string, value: number | string): Buffer => {
    const isNumber = typeof value === 'number';
    const writer = new Writer(textBytes(key) + (isNumber ? intBytes(value) : textBytes(value)));
    writer.text(key);
    if (isNumber) writer.int(value);
    else writer.text(value);
    return writer.finish();
  };
  const flag = (feature: Feature): Buffer => Buffer.concat([encodedText(feature), Buffer.of(HIT)]);
  return Buffer.concat([
    Buffer.of(0x80 | (2 + (keyBytes === undefined ? 0 : 1) + features.length)),
    scalar('version', version),
    encodedText('incarnation'),
    Buffer.of(0x84),
    scalar('id', incarnation.id),
    scalar('pid', incarnation.pid),
    scalar('start_time', incarnation.startTime),
    scalar('boot_id', incarnation.bootId),
    ...(keyBytes === undefined ? [] : [scalar('key_bytes', keyBytes)]),
    ...features.map(flag),
  ]);
}

export function writeConnectAck(peerId: string): Buffer {
  const writer = new Writer(1 + TYPE.connectAck.length + NAME.peerId.length + textBytes(peerId));
  writer.mapHead(2);
  writer.raw(TYPE.connectAck);
  writer.raw(NAME.peerId);
  writer.text(peerId);
  return writer.finish();
}

export function writeDisconnect(): Buffer {
  const writer = new Writer(1 + TYPE.disconnect.length);
  writer.mapHead(1);
  writer.raw(TYPE.disconnect);
  return writer.finish();
}

/**
 * @param keys      packed keys, `count * keyBytes` bytes; copied
 * @param keyBytes  length of one key
 */
export function writeLookup(
  kvRequestId: string,
  keys: Uint8Array,
  keyBytes: number,
  roundSeq: number,
  extension: LookupExtension = {},
): Buffer {
  const { ttlMs, lookupSeq, isPacked = false } = extension;
  const count = keys.length / keyBytes;
  const size =
    headBytes(TYPE.lookup, kvRequestId) +
    NAME.keys.length +
    keyListBytes(count, keyBytes, isPacked) +
    numberBytes(NAME.roundSeq, roundSeq) +
    numberBytes(NAME.ttlMs, ttlMs) +
    numberBytes(NAME.lookupSeq, lookupSeq);
  const writer = new Writer(size);
  writer.mapHead(4 + (ttlMs === undefined ? 0 : 1) + (lookupSeq === undefined ? 0 : 1));
  writeHead(writer, TYPE.lookup, kvRequestId);
  writer.raw(NAME.keys);
  writeKeyList(writer, keys, count, keyBytes, isPacked);
  writeNumber(writer, NAME.roundSeq, roundSeq);
  writeNumber(writer, NAME.ttlMs, ttlMs);
  writeNumber(writer, NAME.lookupSeq, lookupSeq);
  return writer.finish();
}

/**
 * @param keys   the request's `keys` array, repeated byte for byte; left out when the lookup has a number
 * @param flags  {@link HIT} or {@link MISS} for each key of the request; copied
 */
export function writeLookupResp(
  kvRequestId: string,
  keys: VerbatimKeys,
  flags: Uint8Array,
  extension: AnswerExtension = {},
): Buffer {
  const { roundSeq, lookupSeq } = extension;
  const size =
    headBytes(TYPE.lookupResp, kvRequestId) +
    NAME.keys.length +
    (lookupSeq === undefined ? keys.arrayEnd - keys.arrayStart : listHeadBytes(0)) +
    NAME.hits.length +
    listHeadBytes(flags.length) +
    flags.length +
    numberBytes(NAME.roundSeq, roundSeq) +
    numberBytes(NAME.lookupSeq, lookupSeq);
  const writer = new Writer(size);
  writer.mapHead(4 + (roundSeq === undefined ? 0 : 1) + (lookupSeq === undefined ? 0 : 1));
  writeHead(writer, TYPE.lookupResp, kvRequestId);
  writer.raw(NAME.keys);
  if (lookupSeq === undefined) writer.copy(keys.payload, keys.arrayStart, keys.arrayEnd);
  else writer.listHead(0);
  writer.raw(NAME.hits);
  writer.listHead(flags.length);
  writer.raw(flags);
  writeNumber(writer, NAME.roundSeq, roundSeq);
  writeNumber(writer, NAME.lookupSeq, lookupSeq);
  return writer.finish();
}

/** A `lookup_resp` that names its lookup. */
export interface NumberedAnswer {
  readonly kvRequestId: string;
  /** HIT or MISS per key. */
  readonly hits: Uint8Array;
  readonly roundSeq: number;
  readonly lookupSeq: number;
}

const NO_KEYS: VerbatimKeys = { payload: Buffer.alloc(0), arrayStart: 0, arrayEnd: 0 };

/** A `lookup_resp` that names its lookup instead of repeating the keys; natively: native/zmq/answer.h. */
export function writeNumberedAnswer({ kvRequestId, hits, roundSeq, lookupSeq }: NumberedAnswer): Buffer {
  return writeLookupResp(kvRequestId, NO_KEYS, hits, { roundSeq, lookupSeq });
}

/**
 * @param keys         packed keys, `count * keyBytes` bytes; copied. None: "the request is finished"
 * @param blockIndexes slot for each key, in this node's numbering
 */
export function writeFetch(
  kvRequestId: string,
  keys: Uint8Array,
  keyBytes: number,
  blockIndexes: Int32Array,
  roundSeq: number,
  extension: FetchExtension = {},
): Buffer {
  const { ttlMs, isPacked = false, ifHeld = false } = extension;
  const count = blockIndexes.length;
  let indexBytes = listHeadBytes(count);
  for (const index of blockIndexes) indexBytes += intBytes(index);
  const size =
    headBytes(TYPE.fetch, kvRequestId) +
    NAME.keys.length +
    keyListBytes(count, keyBytes, isPacked) +
    NAME.blockIndexes.length +
    indexBytes +
    numberBytes(NAME.roundSeq, roundSeq) +
    numberBytes(NAME.ttlMs, ttlMs) +
    (ifHeld ? NAME.ifHeld.length + 1 : 0);
  const writer = new Writer(size);
  writer.mapHead(5 + (ttlMs === undefined ? 0 : 1) + (ifHeld ? 1 : 0));
  writeHead(writer, TYPE.fetch, kvRequestId);
  writer.raw(NAME.keys);
  writeKeyList(writer, keys, count, keyBytes, isPacked);
  writer.raw(NAME.blockIndexes);
  writer.listHead(count);
  for (const index of blockIndexes) writer.int(index);
  writeNumber(writer, NAME.roundSeq, roundSeq);
  writeNumber(writer, NAME.ttlMs, ttlMs);
  if (ifHeld) {
    writer.raw(NAME.ifHeld);
    writer.byte(HIT);
  }
  return writer.finish();
}

/** Extension fields of `transfer_done`. */
export interface TransferExtension {
  /** For a peer that announced `checksums`: 8 bytes for each written key of the fetch, in its order; copied. */
  readonly checksums?: Uint8Array | undefined;
  /** For a peer that announced `partial_fetch` or asked with `ifHeld`, and `success` false; copied. */
  readonly written?: Uint8Array | undefined;
}

export function writeTransferDone(
  kvRequestId: string,
  success: boolean,
  roundSeq: number,
  { checksums, written }: TransferExtension = {},
): Buffer {
  const writer = new Writer(
    headBytes(TYPE.transferDone, kvRequestId) +
      NAME.success.length +
      1 +
      numberBytes(NAME.roundSeq, roundSeq) +
      bytesBytes(NAME.written, written) +
      bytesBytes(NAME.checksums, checksums),
  );
  writer.mapHead(4 + (written === undefined ? 0 : 1) + (checksums === undefined ? 0 : 1));
  writeHead(writer, TYPE.transferDone, kvRequestId);
  writer.raw(NAME.success);
  writer.byte(success ? HIT : MISS);
  writeNumber(writer, NAME.roundSeq, roundSeq);
  writeBytes(writer, NAME.written, written);
  writeBytes(writer, NAME.checksums, checksums);
  return writer.finish();
}

export function writeAbortFetch(kvRequestId: string, roundSeq: number): Buffer {
  return writeRound(TYPE.abortFetch, kvRequestId, roundSeq);
}

export function writeAbortAck(kvRequestId: string, roundSeq: number): Buffer {
  return writeRound(TYPE.abortAck, kvRequestId, roundSeq);
}

function writeRound(type: Buffer, kvRequestId: string, roundSeq: number): Buffer {
  const writer = new Writer(headBytes(type, kvRequestId) + numberBytes(NAME.roundSeq, roundSeq));
  writer.mapHead(3);
  writeHead(writer, type, kvRequestId);
  writeNumber(writer, NAME.roundSeq, roundSeq);
  return writer.finish();
}

// Map head, type and id: how most messages begin.
function headBytes(type: Buffer, kvRequestId: string): number {
  return 1 + type.length + NAME.kvRequestId.length + textBytes(kvRequestId);
}

function writeHead(writer: Writer, type: Buffer, kvRequestId: string): void {
  writer.raw(type);
  writer.raw(NAME.kvRequestId);
  writer.text(kvRequestId);
}

function numberBytes(field: Buffer, value: number | undefined): number {
  return value === undefined ? 0 : field.length + intBytes(value);
}

function writeNumber(writer: Writer, field: Buffer, value: number | undefined): void {
  if (value === undefined) return;
  writer.raw(field);
  writer.int(value);
}

function bytesBytes(field: Buffer, value: Uint8Array | undefined): number {
  return value === undefined ? 0 : field.length + binBytes(value.length);
}

function writeBytes(writer: Writer, field: Buffer, value: Uint8Array | undefined): void {
  if (value === undefined) return;
  writer.raw(field);
  writer.bin(value);
}

function keyListBytes(count: number, keyBytes: number, isPacked: boolean): number {
  if (isPacked) return binBytes(count * keyBytes);
  return listHeadBytes(count) + count * binBytes(keyBytes);
}

function writeKeyList(
  writer: Writer,
  keys: Uint8Array,
  count: number,
  keyBytes: number,
  isPacked: boolean,
): void {
  if (!Number.isInteger(count) || keys.length !== count * keyBytes || keyBytes > 255) {
    throw new RangeError(`${keys.length} bytes are not ${count} keys of ${keyBytes} bytes`);
  }
  if (isPacked) {
    writer.bin(keys);
  } else {
    writer.listHead(count);
    writer.keys(keys, count, keyBytes);
  }
}
