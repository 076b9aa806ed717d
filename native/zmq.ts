// The typed face of the addon's ZeroMQ part: a ROUTER that only receives, and the messages that are kept for workers.

import { loadCoreAddon } from './index.js';

declare const brand: unique symbol;
/** What sockets share: their I/O thread. Valid in the thread that made it, like the sockets. */
export type ContextHandle = number & { readonly [brand]: 'ContextHandle' };
/** A ROUTER that only receives. */
export type ReceiverHandle = number & { readonly [brand]: 'ReceiverHandle' };
/** A DEALER that only sends. */
export type DealerHandle = number & { readonly [brand]: 'DealerHandle' };
/** A message whose memory is kept until dropMessage(); valid in every thread. A positive int32. */
export type MessageToken = number & { readonly [brand]: 'MessageToken' };

/** What receive() leaves in its `fields`. */
export const ReceivedField = {
  Kind: 0,
  /** Parts behind the routing id. */
  PartCount: 1,
  /** Of the payload. */
  Bytes: 2,
  /** Of a lookup, from here on: its MessageToken. */
  Token: 3,
  /** Offsets in the payload of the `keys` array with its head, of key 0, and from one key to the next. */
  KeysStart: 4,
  KeysEnd: 5,
  First: 6,
  Stride: 7,
  KeyCount: 8,
  RoundSeq: 9,
  /** Negative: absent, both. */
  TtlMs: 10,
  LookupSeq: 11,
  Count: 12,
} as const;

export const ReceivedKind = {
  /** Nothing waits. */
  None: 0,
  /** Any payload. */
  Message: 1,
  /** A `lookup` of the usual form: read already, and kept. */
  Lookup: 2,
  /** Not one part behind the routing id; thrown away. */
  WrongParts: 3,
  /** A `fetch` without keys, of the usual form: read already. It has RoundSeq and Bytes. */
  Finish: 4,
} as const;

export interface ReceiverOptions {
  /** Longest message; the sender of a longer one is disconnected. */
  readonly maxMessageBytes: number;
  /** Lookups with keys of this length, at most so many, and an id of at most so many bytes are read natively. */
  readonly keyBytes: number;
  readonly maxKeys: number;
  readonly maxIdBytes: number;
  /** What the receiver "receives" from an identity whose connection ended. */
  readonly notice: Uint8Array;
}

/** What the callback of a dealer is told. */
export const DealerEvent = {
  /** The ZMTP handshake is complete. */
  Connected: 1,
  /** Nobody listens there, or no route leads there. */
  AttemptFailed: 2,
  Disconnected: 3,
  HandshakeFailed: 4,
  /** The remote sent something; thrown away. */
  UnexpectedFrame: 5,
  /** After a frame was not taken: there is room again. */
  Writable: 6,
} as const;

/** Bits of what sendDealer() returns. */
export const SendResult = {
  /** Taken; otherwise libzmq's queue is full, or the connection has gone. */
  Sent: 1,
  /** The remote has sent something. */
  HasInbound: 2,
} as const;

export interface DealerOptions {
  /** 1 to 255 bytes. */
  readonly routingId: string;
  readonly heartbeatMs: number;
  /** Also the time-to-live told to the remote. */
  readonly heartbeatTimeoutMs: number;
  /** Frames. */
  readonly sendHighWaterMark: number;
  /** A longer frame of the remote ends the connection. */
  readonly maxInboundBytes: number;
  readonly ipv6: boolean;
}

/** Every call checks its arguments and throws on wrong ones. */
export interface Zmq {
  /** @throws KVPEER_NATIVE_UNAVAILABLE when zeromq.js, whose libzmq is used, was not loaded before */
  createContext(): ContextHandle;
  /** Returns when the ports of its sockets are free. @throws while it has sockets that were not closed */
  closeContext(context: ContextHandle): void;

  /**
   * @param onReadable there may be messages: call receive() until it finds none
   */
  createReceiver(
    context: ContextHandle,
    onReadable: () => void,
    options: ReceiverOptions,
  ): { readonly handle: ReceiverHandle; readonly reportsPeerGone: boolean };
  /** @returns the endpoint with its real port @throws an error with the system's code, EADDRINUSE and the like */
  bindReceiver(receiver: ReceiverHandle, endpoint: string, ipv6: boolean): string;
  /**
   * Takes one message; `fields` says what it is.
   *
   * @returns the id of a Lookup or Finish (ASCII), the payload of a Message, otherwise undefined
   */
  receive(receiver: ReceiverHandle, fields: Float64Array): Buffer | string | undefined;
  /** The routing id of the last message, a character per byte. */
  receivedFrom(receiver: ReceiverHandle): string;
  closeReceiver(receiver: ReceiverHandle): void;

  /** @param onEvent with a DealerEvent; never from within a call */
  createDealer(
    context: ContextHandle,
    onEvent: (event: number) => void,
    options: DealerOptions,
  ): DealerHandle;
  /** One attempt; a connection that ended is not made again. */
  connectDealer(dealer: DealerHandle, endpoint: string): void;
  /** Copies the frame. Never blocks. @returns bits of SendResult */
  sendDealer(dealer: DealerHandle, frame: Uint8Array): number;
  /**
   * Sends a `lookup_resp` that names its lookup: the bytes of writeLookupResp() in src/main/protocol/write.ts, made where
   * they are sent from. `hits` may be shared memory.
   *
   * @returns bits of SendResult
   */
  sendAnswer(
    dealer: DealerHandle,
    kvRequestId: string,
    hits: Uint8Array,
    roundSeq: number,
    lookupSeq: number,
  ): number;
  /** What libzmq has not sent is lost. */
  closeDealer(dealer: DealerHandle): void;

  /** How receive() reads a payload: the id of a Lookup or Finish of the usual form, undefined for everything else. */
  readMessage(
    message: Uint8Array,
    keyBytes: number,
    maxKeys: number,
    maxIdBytes: number,
    fields: Float64Array,
  ): string | undefined;

  /** The whole payload; good for longer than the token. */
  messageBytes(message: MessageToken): Buffer;
  dropMessage(message: MessageToken): void;
  /** Messages kept in this process. */
  keptMessageCount(): number;
}

type RawZmq = Omit<Zmq, 'createReceiver' | 'createDealer'> & {
  createReceiver(
    context: ContextHandle,
    onReadable: () => void,
    maxMessageBytes: number,
    keyBytes: number,
    maxKeys: number,
    maxIdBytes: number,
    notice: Uint8Array,
  ): { readonly handle: ReceiverHandle; readonly reportsPeerGone: boolean };
  createDealer(
    context: ContextHandle,
    onEvent: (event: number) => void,
    routingId: string,
    heartbeatMs: number,
    heartbeatTimeoutMs: number,
    sendHighWaterMark: number,
    maxInboundBytes: number,
    ipv6: boolean,
  ): DealerHandle;
};

let loaded: Zmq | undefined;

/** @throws NativeUnavailableError */
export function loadZmq(): Zmq {
  loaded ??= typed(loadCoreAddon() as RawZmq);
  return loaded;
}

function typed(raw: RawZmq): Zmq {
  return {
    ...raw,
    createReceiver: (context, onReadable, { maxMessageBytes, keyBytes, maxKeys, maxIdBytes, notice }) =>
      raw.createReceiver(context, onReadable, maxMessageBytes, keyBytes, maxKeys, maxIdBytes, notice),
    createDealer: (context, onEvent, options) =>
      raw.createDealer(
        context,
        onEvent,
        options.routingId,
        options.heartbeatMs,
        options.heartbeatTimeoutMs,
        options.sendHighWaterMark,
        options.maxInboundBytes,
        options.ipv6,
      ),
  };
}
