// Messages that the receiver has read natively. The keys of a lookup stay in libzmq's memory until the answer has been
// sent.

import { loadZmq, ReceivedField, ReceivedKind, type MessageToken } from '../../../native/zmq.js';
import type { FetchMessage, KeyList, LookupMessage } from './messages.js';

/**
 * The keys of a received lookup, all of the node's length. No byte of them is copied or seen by JavaScript in the usual
 * case: a worker matches them where they lie. Whoever reads `bytes` or `payload` gets a view, made on the first use.
 */
export class ReceivedKeys implements KeyList {
  readonly foreign = undefined;
  readonly foreignCount = 0;
  #view: Buffer | undefined;
  #isFreed = false;

  constructor(
    /** For a match: the keys are in this message. */
    readonly message: MessageToken,
    readonly messageBytes: number,
    readonly arrayStart: number,
    readonly arrayEnd: number,
    readonly first: number,
    readonly stride: number,
    readonly count: number,
    readonly keyBytes: number,
  ) {}

  get payload(): Buffer {
    return (this.#view ??= loadZmq().messageBytes(this.message));
  }

  get bytes(): Buffer {
    return this.payload;
  }

  /** Gives the memory back; a view goes with the next garbage collection. Further calls do nothing. */
  free(): void {
    if (this.#isFreed) return;
    this.#isFreed = true;
    loadZmq().dropMessage(this.message);
  }
}

const NO_BYTES = Buffer.alloc(0);
const NO_INDEXES = new Int32Array(0);

/** @param fields what receive() left for a Lookup or a Finish */
export function receivedMessage(
  kvRequestId: string,
  fields: Float64Array,
  keyBytes: number,
): LookupMessage | FetchMessage {
  return fields[ReceivedField.Kind] === ReceivedKind.Lookup
    ? receivedLookup(kvRequestId, fields, keyBytes)
    : receivedFinish(kvRequestId, fields[ReceivedField.RoundSeq], keyBytes);
}

function receivedFinish(kvRequestId: string, roundSeq: number, keyBytes: number): FetchMessage {
  return {
    type: 'fetch',
    kvRequestId,
    keys: {
      payload: NO_BYTES,
      arrayStart: 0,
      arrayEnd: 0,
      bytes: NO_BYTES,
      first: 0,
      stride: keyBytes,
      count: 0,
      keyBytes,
      foreign: undefined,
      foreignCount: 0,
    },
    blockIndexes: NO_INDEXES,
    overRangeCount: 0,
    roundSeq,
    ttlMs: undefined,
    ifHeld: false,
  };
}

function receivedLookup(kvRequestId: string, fields: Float64Array, keyBytes: number): LookupMessage {
  const ttlMs = fields[ReceivedField.TtlMs];
  const lookupSeq = fields[ReceivedField.LookupSeq];
  return {
    type: 'lookup',
    kvRequestId,
    keys: new ReceivedKeys(
      fields[ReceivedField.Token] as MessageToken,
      fields[ReceivedField.Bytes],
      fields[ReceivedField.KeysStart],
      fields[ReceivedField.KeysEnd],
      fields[ReceivedField.First],
      fields[ReceivedField.Stride],
      fields[ReceivedField.KeyCount],
      keyBytes,
    ),
    roundSeq: fields[ReceivedField.RoundSeq],
    ttlMs: ttlMs < 0 ? undefined : ttlMs,
    lookupSeq: lookupSeq < 0 ? undefined : lookupSeq,
  };
}
