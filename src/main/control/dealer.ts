// The sending half: one DEALER towards one address, a bounded queue in front of it and one pump that empties it.
//
//     send() -> ZeroMQ's queue, SNDHWM -> TCP
//         \                ^
//          +-> [ our queue, bounded ], only while ZeroMQ's is full or there is no socket yet

import { lookup } from 'node:dns/promises';
import { isIP, isIPv6 } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import {
  DealerEvent,
  loadZmq,
  SendResult,
  type ContextHandle,
  type DealerHandle as NativeDealer,
  type Zmq,
} from '../../../native/zmq.js';
import { writeNumberedAnswer, type NumberedAnswer } from '../protocol/write.js';
import { advertisable } from './address.js';
import { FrameQueue } from './frame-queue.js';
import type { ControlOptions, DealerEvents, DealerHandle, DownCause, PeerAddress } from './transport.js';

/**
 * Longest frame accepted on a DEALER, in bytes. A ROUTER sends nothing but the ZMTP handshake and heartbeat answers,
 * which have a routing id of up to 255 bytes in them.
 */
const MAX_INBOUND_BYTES = 1_024;

/**
 * Time between the end of a connection and the next one to the same address. A ROUTER without handover (vLLM's) drops
 * everything from a second connection with a known identity, for good, unless it saw the end of the first one before;
 * without a pause the first frame was lost in 2 of 30 tries.
 */
const REOPEN_PAUSE_MS = 100;

/** What a DEALER needs from its transport. */
export interface DealerEnvironment {
  readonly context: ContextHandle;
  readonly options: ControlOptions;
  /** Our identity, and its host. */
  readonly localAddress: string;
  readonly localHost: string;
  /** Ends when every earlier connection to the same address that is being closed is gone. */
  readonly predecessorsGone: Promise<unknown>;
  /** The connection is gone. */
  readonly onGone: (dealer: DealerConnection) => void;
}

export class DealerConnection implements DealerHandle {
  readonly address: string;
  /** Settles when the remote has had time to see the end of the connection. */
  readonly gone: Promise<void>;
  private resolveGone: () => void = () => undefined;
  private readonly queue: FrameQueue;
  private readonly zmq: Zmq = loadZmq();
  private socket: NativeDealer | undefined;
  private connected = false;
  private isReleased = false;
  private isDown = false;
  private onDrained: (() => void) | undefined;
  private lastSendAtMs = -Infinity;
  private closing: Promise<void> | undefined;

  constructor(
    remote: PeerAddress,
    address: string,
    private readonly environment: DealerEnvironment,
    private readonly events: DealerEvents,
  ) {
    this.address = address;
    this.queue = new FrameQueue(environment.options.queueFrames, environment.options.queueBytes);
    this.gone = new Promise((resolve) => {
      this.resolveGone = resolve;
    });
    void this.open(remote);
  }

  get isConnected(): boolean {
    return this.connected;
  }

  get queuedFrames(): number {
    return this.queue.length;
  }

  get queuedBytes(): number {
    return this.queue.bytes;
  }

  get hasSocket(): boolean {
    return this.socket !== undefined;
  }

  /** Whether the connection is over, or will be without anybody doing anything. */
  get isLeaving(): boolean {
    return this.isDown || this.closing !== undefined;
  }

  send(frame: Buffer): boolean {
    if (this.isDown || this.closing !== undefined) return false;
    return (this.queue.length === 0 && this.trySend(frame)) || this.queue.push(frame);
  }

  sendAnswer(answer: NumberedAnswer): boolean {
    if (this.isDown || this.closing !== undefined) return false;
    const { kvRequestId, hits, roundSeq, lookupSeq } = answer;
    if (this.queue.length === 0 && this.socket !== undefined) {
      const result = this.zmq.sendAnswer(this.socket, kvRequestId, hits, roundSeq, lookupSeq);
      if (this.isSent(result)) return true;
    }
    return this.queue.push(writeNumberedAnswer(answer));
  }

  close(): Promise<void> {
    this.closing ??= this.flush().then(() => {
      this.release();
      return this.gone;
    });
    return this.closing;
  }

  private async open(remote: PeerAddress): Promise<void> {
    try {
      const [host] = await Promise.all([resolveHost(remote.host), this.environment.predecessorsGone]);
      if (this.closing !== undefined) return;
      if (host === undefined) {
        this.goDown('unresolved');
      } else if (!advertisable(this.environment.localHost, host)) {
        this.goDown('not-advertisable');
      } else {
        this.connect(host, remote.port);
      }
    } catch {
      this.goDown('send-failed');
    }
  }

  private connect(host: string, port: number): void {
    const { context, options, localAddress } = this.environment;
    this.socket = this.zmq.createDealer(
      context,
      (event) => {
        this.onEvent(event);
      },
      {
        routingId: localAddress,
        heartbeatMs: options.heartbeatMs,
        heartbeatTimeoutMs: options.heartbeatTimeoutMs,
        sendHighWaterMark: options.sendHighWaterMark,
        maxInboundBytes: MAX_INBOUND_BYTES,
        ipv6: isIPv6(host),
      },
    );
    this.zmq.connectDealer(this.socket, `tcp://${isIPv6(host) ? `[${host}]` : host}:${port}`);
    this.drain();
  }

  private onEvent(event: number): void {
    switch (event) {
      case DealerEvent.Connected:
        this.connected = !this.isDown;
        if (this.connected && this.closing === undefined) this.events.onConnected?.();
        return;
      case DealerEvent.AttemptFailed:
        this.goDown('refused');
        return;
      case DealerEvent.Disconnected:
        this.goDown(this.connected ? 'disconnected' : 'handshake-failed');
        return;
      case DealerEvent.HandshakeFailed:
        this.goDown('handshake-failed');
        return;
      case DealerEvent.UnexpectedFrame:
        this.goDown('unexpected-frame');
        return;
      case DealerEvent.Writable:
        this.drain();
        return;
    }
  }

  /** Whether ZeroMQ has taken the frame. */
  private trySend(frame: Buffer): boolean {
    if (this.socket === undefined) return false;
    return this.isSent(this.zmq.sendDealer(this.socket, frame));
  }

  private isSent(result: number): boolean {
    if ((result & SendResult.HasInbound) !== 0) this.goDown('unexpected-frame');
    if ((result & SendResult.Sent) === 0) return false;
    this.lastSendAtMs = performance.now();
    return true;
  }

  private drain(): void {
    for (let frame = this.queue.peek(); frame !== undefined; frame = this.queue.peek()) {
      if (!this.trySend(frame)) return;
      this.queue.shift();
    }
    this.onDrained?.();
  }

  /** Waits for what is queued to leave, `lingerMs` at most. ZeroMQ does not tell, so its part gets the whole time. */
  private async flush(): Promise<void> {
    const { lingerMs } = this.environment.options;
    if (!this.connected) return;
    const deadlineMs = performance.now() + lingerMs;
    if (this.queue.length > 0) {
      const drained = new Promise<void>((resolve) => {
        this.onDrained = resolve;
      });
      await Promise.race([drained, delay(lingerMs)]);
    }
    const untilMs = Math.min(deadlineMs, this.lastSendAtMs + lingerMs);
    const waitMs = untilMs - performance.now();
    if (waitMs > 0 && !this.isDown) await delay(waitMs);
  }

  private goDown(cause: DownCause): void {
    if (this.isDown) return;
    this.isDown = true;
    // Later, so that nobody is called back from within openDealer() or send().
    setImmediate(() => {
      this.release();
      if (this.closing === undefined) this.events.onDown(cause);
    });
  }

  private release(): void {
    if (this.isReleased) return;
    this.isReleased = true;
    this.isDown = true;
    this.connected = false;
    this.queue.clear();
    this.onDrained?.();
    if (this.socket !== undefined) this.zmq.closeDealer(this.socket);
    this.socket = undefined;
    setTimeout(() => {
      this.environment.onGone(this);
      this.resolveGone();
    }, REOPEN_PAUSE_MS);
  }
}

/** @returns an IPv4 address if there is one, since vLLM listens on no other kind; undefined when there is none */
export async function resolveHost(host: string): Promise<string | undefined> {
  if (isIP(host) !== 0) return host;
  try {
    const found = await lookup(host, { all: true });
    return (found.find(({ family }) => family === 4) ?? found.at(0))?.address;
  } catch {
    return undefined;
  }
}
