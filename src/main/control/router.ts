// The receiving half: one bound ROUTER, one pump that hands frames to the handlers and lets the event loop breathe.

import { randomBytes } from 'node:crypto';
import { isIPv6 } from 'node:net';
import {
  loadZmq,
  ReceivedField,
  ReceivedKind,
  type ContextHandle,
  type ReceiverHandle,
  type Zmq,
} from '../../../native/zmq.js';
import { KvpeerError } from '../errors.js';
import { receivedMessage } from '../protocol/received.js';
import { dropMessage } from '../protocol/message-memory.js';
import { parseIdentity } from './address.js';
import { resolveHost } from './dealer.js';
import type { ControlHandlers, ControlOptions, PeerAddress } from './transport.js';

/** Identities whose reading is remembered; beyond that all are forgotten, which costs no more than reading them again. */
const MAX_REMEMBERED_IDENTITIES = 1_024;

/** The address that an identity says, or why it says none. */
type Sender =
  | { readonly ok: true; readonly text: string }
  | { readonly ok: false; readonly reason: string; readonly shown: string };

const BIND_REMEDIES: Readonly<Record<string, string>> = {
  EADDRINUSE: 'another process listens there: stop it, or choose another --port',
  EADDRNOTAVAIL: 'no interface of this host has that address: choose another --host',
  ENODEV: 'no interface of this host has that address: choose another --host',
  EACCES: 'this user may not listen there: choose a port above 1023',
};

/**
 * The options of the socket are set natively (native/zmq/receiver.cc): handover, no linger since it never sends, and no
 * receive bound. It is never throttled: a connection that breaks while it is, with a heartbeat among what is still to be
 * read, aborts the process in libzmq 4.3.5 (see transport.ts). What waits costs memory instead, until it is read.
 */
export class Receiver {
  readonly reportsPeerGone: boolean;
  private readonly zmq: Zmq = loadZmq();
  private readonly handle: ReceiverHandle;
  private readonly fields = new Float64Array(ReceivedField.Count);
  // Not guessable, so that no remote can announce the end of a connection that goes on.
  private readonly notice = randomBytes(32);
  private readonly senders = new Map<string, Sender>();
  private isMuted = false;
  private isClosed = false;
  private isContinuing = false;

  constructor(
    context: ContextHandle,
    private readonly options: ControlOptions,
    private readonly handlers: ControlHandlers,
  ) {
    const { handle, reportsPeerGone } = this.zmq.createReceiver(context, this.receiveAll, {
      maxMessageBytes: options.maxFrameBytes,
      keyBytes: options.keyBytes,
      maxKeys: options.maxKeys,
      maxIdBytes: options.maxStringBytes,
      notice: this.notice,
    });
    this.handle = handle;
    this.reportsPeerGone = reportsPeerGone;
  }

  async bind(): Promise<PeerAddress> {
    const { bindHost, bindPort } = this.options;
    // libzmq binds to addresses and interfaces only, not to names such as `localhost`.
    const host = bindHost === '*' ? '0.0.0.0' : await resolveHost(bindHost);
    if (host === undefined) throw bindError(this.options, 'ENOTFOUND', 'choose a --host that has an address');
    let endpoint: string;
    try {
      endpoint = this.zmq.bindReceiver(
        this.handle,
        `tcp://${isIPv6(host) ? `[${host}]` : host}:${bindPort}`,
        isIPv6(host),
      );
    } catch (error) {
      const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown';
      const remedy = BIND_REMEDIES[code] ?? 'choose another --host or --port';
      throw bindError(this.options, code, remedy, error);
    }
    return { host, port: Number(/:(\d+)$/.exec(endpoint)?.[1] ?? bindPort) };
  }

  /** What still arrives is thrown away. */
  mute(): void {
    this.isMuted = true;
  }

  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.zmq.closeReceiver(this.handle);
  }

  /**
   * Messages that are there already are delivered without a turn of the event loop, but not without end: a busy peer
   * would keep timers, completions and every other socket waiting.
   */
  private readonly receiveAll = (): void => {
    const { aroundReceive } = this.handlers;
    if (aroundReceive === undefined) this.receiveBatch();
    else aroundReceive(this.receiveBatch);
  };

  private readonly receiveBatch = (): void => {
    const { receiveBatch, receiveTurnMs } = this.options;
    const endMs = performance.now() + receiveTurnMs;
    for (let handled = 0; !this.isClosed; handled++) {
      if (handled === receiveBatch || (handled > 0 && performance.now() >= endMs)) {
        this.continueLater();
        return;
      }
      const content = this.zmq.receive(this.handle, this.fields);
      if (this.fields[ReceivedField.Kind] === ReceivedKind.None) return;
      try {
        this.deliver(content);
      } catch (error) {
        // A program that goes on after an uncaught exception still hears what waits behind this message.
        this.continueLater();
        throw error;
      }
    }
  };

  /** The descriptor is not readable again for messages that were there before. */
  private continueLater(): void {
    if (this.isContinuing) return;
    this.isContinuing = true;
    setImmediate(() => {
      this.isContinuing = false;
      this.receiveAll();
    });
  }

  private deliver(content: Buffer | string | undefined): void {
    const { fields } = this;
    const message =
      typeof content === 'string' ? receivedMessage(content, fields, this.options.keyBytes) : undefined;
    const sender = this.isMuted ? undefined : this.sender();
    if (message !== undefined) {
      if (sender?.ok === true) this.handlers.onRead(sender.text, message, fields[ReceivedField.Bytes]);
      else dropMessage(message);
    }
    if (sender === undefined) return;
    if (content === undefined) {
      const parts = `${fields[ReceivedField.PartCount]} parts`;
      this.handlers.onRejected('frame_count', `${parts} from ${sender.ok ? sender.text : sender.shown}`);
      return;
    }
    const isNotice = typeof content !== 'string' && this.reportsPeerGone && content.equals(this.notice);
    if (!sender.ok) {
      if (!isNotice) this.handlers.onRejected('bad_identity', `${sender.shown}: ${sender.reason}`);
    } else if (isNotice) {
      this.handlers.onPeerGone(sender.text);
    } else if (typeof content !== 'string') {
      this.handlers.onMessage(sender.text, content);
    }
  }

  private sender(): Sender {
    const raw = this.zmq.receivedFrom(this.handle);
    const known = this.senders.get(raw);
    if (known !== undefined) return known;
    const identity = Buffer.from(raw, 'latin1');
    const parsed = parseIdentity(identity);
    const sender = parsed.ok ? parsed : { ...parsed, shown: shown(identity) };
    if (this.senders.size >= MAX_REMEMBERED_IDENTITIES) this.senders.clear();
    this.senders.set(raw, sender);
    return sender;
  }
}

function bindError(options: ControlOptions, code: string, remedy: string, cause?: unknown): KvpeerError {
  const address = `${options.bindHost}:${options.bindPort}`;
  return new KvpeerError('KVPEER_BIND', `cannot listen at ${address} (${code}); ${remedy}`, { cause });
}

/** An identity that is no address, in a form that is safe to log: short, printable. */
function shown(identity: Buffer): string {
  return `identity 0x${identity.toString('hex', 0, 32)}${identity.length > 32 ? '...' : ''}`;
}
