// From a payload to a message or a rejection: one walk over the map (fields.ts), then the rules of messages.ts for its
// type.

import { announcement } from './announcement.js';
import { describeType, Found, walk, type FieldName } from './fields.js';
import { DEFAULT_LIMITS, MAX_NUM_BLOCKS, type ProtocolLimits } from './limits.js';
import { readHits, readIndexes, readKeys } from './lists.js';
import {
  HIT,
  REJECTION_OUTCOMES,
  type ConnectMessage,
  type FetchMessage,
  type IncomingMessage,
  type KeyList,
  type LookupMessage,
  type LookupRespMessage,
  type MessageType,
  type Rejection,
  type RejectionReason,
  type ScanResult,
} from './messages.js';
import { kindOf, Reader, ScanFault } from './reader.js';

/**
 * Reads one payload. Never throws; what is wrong with it comes back as a {@link Rejection}.
 *
 * The result borrows from `payload` where messages.ts says so. Time is bounded by its length and by
 * `limits.skippedValues`; memory by its length times `keyBytes / 2` in the worst case (a list of empty keys).
 */
export function scan(payload: Buffer, limits: ProtocolLimits = DEFAULT_LIMITS): ScanResult {
  const found = new Found(new Reader(payload, limits));
  try {
    if (payload.length > limits.messageBytes) {
      throw new ScanFault(
        'over_limit',
        `the message has ${payload.length} bytes, at most ${limits.messageBytes} are allowed`,
      );
    }
    walk(found);
    return build(found);
  } catch (fault) {
    if (!(fault instanceof ScanFault)) throw fault;
    return rejection(fault.reason, fault.message, found.messageType);
  }
}

function rejection(reason: RejectionReason, detail: string, messageType: MessageType | undefined): Rejection {
  return { type: 'rejected', reason, outcome: REJECTION_OUTCOMES[reason], detail, messageType };
}

function build(found: Found): IncomingMessage {
  const type = found.messageType;
  switch (type) {
    case undefined:
      throw new ScanFault('unknown_type', describeType(found));
    case 'connect':
      return connect(found);
    case 'connect_ack':
      return { type, peerId: found.require('peer_id').readText('peer_id', 1) };
    case 'disconnect':
      return { type };
    case 'lookup':
      return lookup(found);
    case 'lookup_resp':
      return lookupResp(found);
    case 'fetch':
      return fetch(found);
    case 'transfer_done':
      return {
        type,
        kvRequestId: kvRequestId(found),
        success: found.require('success').readBoolean('success'),
        roundSeq: roundSeq(found),
        written: written(found),
        checksums: checksums(found),
      };
    case 'abort_fetch':
    case 'abort_ack':
      return { type, kvRequestId: kvRequestId(found), roundSeq: roundSeq(found) };
  }
}

function connect(found: Found): ConnectMessage {
  const peerId = found.require('peer_id').readText('peer_id', 1);
  const agentMetadata = readMetadata(found.require('agent_metadata'));
  const baseAddr = found.require('base_addr').readCount('base_addr');
  const numBlocks = readPositive(found, 'num_blocks');
  const blockLen = readPositive(found, 'block_len');
  if (numBlocks > MAX_NUM_BLOCKS) {
    throw new ScanFault('over_limit', `num_blocks is ${numBlocks}, at most ${MAX_NUM_BLOCKS} are allowed`);
  }
  if (baseAddr + numBlocks * blockLen > Number.MAX_SAFE_INTEGER) {
    throw new ScanFault('over_limit', 'base_addr + num_blocks * block_len must be below 2^53');
  }
  return {
    type: 'connect',
    peerId,
    agentMetadata,
    baseAddr,
    numBlocks,
    blockLen,
    configFingerprint: readFingerprint(found),
    hashSeed: found.require('hash_seed').readText('hash_seed', 1),
    kvpeer: found.has('kvpeer') ? announcement(found.reader) : undefined,
  };
}

function readPositive(found: Found, field: FieldName): number {
  const value = found.require(field).readCount(field);
  if (value === 0) throw new ScanFault('invalid_field', `${field} must be above 0`);
  return value;
}

function readMetadata(reader: Reader): Buffer {
  const head = reader.peek();
  const length = reader.enterBin();
  if (length === undefined) {
    throw new ScanFault('invalid_field', `agent_metadata must be bin, found ${kindOf(head)}`);
  }
  if (length > reader.limits.metadataBytes) {
    throw new ScanFault(
      'over_limit',
      `agent_metadata has ${length} bytes, at most ${reader.limits.metadataBytes} are allowed`,
    );
  }
  // A copy: it outlives the message, which may be much larger.
  return Buffer.from(reader.payload.subarray(reader.position, reader.position + length));
}

/** vLLM takes any falsy value for "no opinion"; a value of another type that is not falsy can equal no fingerprint. */
function readFingerprint(found: Found): string {
  if (!found.has('config_fingerprint')) return '';
  const { reader } = found;
  switch (reader.peek()) {
    case 0x00: // 0
    case 0x80: // empty map
    case 0x90: // empty array
    case 0xc0: // nil
    case 0xc2: // false
      return '';
    default:
      return reader.readText('config_fingerprint', 0);
  }
}

/** Bytes of one checksum. */
const CHECKSUM_BYTES = 8;

/** 8 bytes per block; of another form it counts as absent, and then nothing is checked. */
function checksums(found: Found): Uint8Array | undefined {
  if (!found.has('checksums')) return undefined;
  const { reader } = found;
  const length = reader.enterBin();
  if (length === undefined || length % CHECKSUM_BYTES !== 0) return undefined;
  return reader.payload.subarray(reader.position, reader.position + length);
}

function written(found: Found): Uint8Array | undefined {
  if (!found.has('written')) return undefined;
  const { reader } = found;
  const length = reader.enterBin();
  return length === undefined
    ? undefined
    : reader.payload.subarray(reader.position, reader.position + length);
}

function kvRequestId(found: Found): string {
  return found.require('kv_request_id').readText('kv_request_id', 1);
}

function roundSeq(found: Found): number {
  return found.require('round_seq').readCount('round_seq');
}

function keys(found: Found): KeyList {
  return found.keys ?? readKeys(found.require('keys'));
}

/** A number of an extension field; malformed counts as absent. */
function extensionCount(found: Found, field: FieldName): number | undefined {
  if (!found.has(field)) return undefined;
  const value = found.reader.tryInteger();
  return value === undefined || value < 0 || value > Number.MAX_SAFE_INTEGER ? undefined : value;
}

function lookup(found: Found): LookupMessage {
  return {
    type: 'lookup',
    kvRequestId: kvRequestId(found),
    keys: keys(found),
    roundSeq: roundSeq(found),
    ttlMs: extensionCount(found, 'ttl_ms'),
    lookupSeq: extensionCount(found, 'lookup_seq'),
  };
}

function lookupResp(found: Found): LookupRespMessage {
  const id = kvRequestId(found);
  const list = keys(found);
  const hits = found.hits ?? readHits(found.require('hits'));
  const lookupSeq = extensionCount(found, 'lookup_seq');
  if (lookupSeq === undefined || list.count > 0) requireEqualLength('hits', hits.length, list);
  return {
    type: 'lookup_resp',
    kvRequestId: id,
    keys: list,
    hits,
    roundSeq: extensionCount(found, 'round_seq'),
    lookupSeq,
  };
}

function fetch(found: Found): FetchMessage {
  const id = kvRequestId(found);
  const list = keys(found);
  const { indexes, overRangeCount } = found.indexes ?? readIndexes(found.require('block_indexes'));
  requireEqualLength('block_indexes', indexes.length, list);
  return {
    type: 'fetch',
    kvRequestId: id,
    keys: list,
    blockIndexes: indexes,
    overRangeCount,
    roundSeq: roundSeq(found),
    ttlMs: extensionCount(found, 'ttl_ms'),
    ifHeld: found.has('if_held') && found.reader.peek() === HIT,
  };
}

function requireEqualLength(field: string, length: number, list: KeyList): void {
  if (length !== list.count) {
    throw new ScanFault('invalid_field', `${field} has ${length} entries for ${list.count} keys`);
  }
}
