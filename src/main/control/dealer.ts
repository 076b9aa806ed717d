// The sending half: one DEALER towards one address, a bounded queue in front of it and one pump that empties it.
//
//     send() -> [ our queue, bounded ] -> pump, one frame at a time -> [ ZeroMQ's queue, SNDHWM ] -> TCP
//
// zeromq.js allows one send() per socket at a time, takes frames by reference, and settles when ZeroMQ has queued the
// frame, not when it has left.

import { lookup } from 'node:dns/promises';
import { isIP, isIPv6 } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { Dealer, type Context } from 'zeromq';
import { advertisable } from './address.js';
import { FrameQueue } from './frame-queue.js';
import type { ControlOptions, DealerEvents, DealerHandle, DownCause, PeerAddress } from './transport.js';

/**
 * Longest frame accepted on a DEALER, in bytes. A ROUTER sends nothing but the ZMTP handshake and heartbeat answers,
 * which have a routing id of up to 255 bytes in them.
 */
const MAX_INBOUND_BYTES = 1_024;

const HANDSHAKE_ERRORS = [
  'handshake:error:protocol',
  'handshake:error:auth',
  'handshake:error:other',
] as const;

/**
 * Time between the end of a connection and the next one to the same address. A ROUTER without handover (vLLM's) drops
 * everything from a second connection with a known identity, for good, unless it saw the end of the first one before;
 * without a pause the first frame was lost in 2 of 30 tries.
 */
const REOPEN_PAUSE_MS = 100;

/** What a DEALER needs from its transport. */
export interface DealerEnvironment {
  readonly context: Context;
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
  private socket: Dealer | undefined;
  private connected = false;
  private isReleased = false;
  private isDown = false;
  private pumping: Promise<void> | undefined;
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
    if (this.isDown || this.closing !== undefined || !this.queue.push(frame)) return false;
    this.startPump();
    return true;
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
    const socket = new Dealer({
      context,
      routingId: localAddress,
      heartbeatInterval: options.heartbeatMs,
      heartbeatTimeout: options.heartbeatTimeoutMs,
      heartbeatTimeToLive: options.heartbeatTimeoutMs,
      sendHighWaterMark: options.sendHighWaterMark,
      // An inbound queue that cannot fill up, of frames that cannot be large, the first of which ends the connection:
      // a full one could be made to abort the process (see transport.ts on heartbeats).
      receiveHighWaterMark: 0,
      maxMessageSize: MAX_INBOUND_BYTES,
      // A connection that ended is dead for good.
      reconnectInterval: -1,
      immediate: false,
      // close() waits for the last frames itself: a socket that libzmq closes in the background still has heartbeats,
      // and no reader.
      linger: 0,
      ipv6: isIPv6(host),
    });
    this.socket = socket;
    this.watch(socket);
    socket.connect(`tcp://${isIPv6(host) ? `[${host}]` : host}:${port}`);
    void this.guardInbound(socket);
    this.startPump();
  }

  private watch(socket: Dealer): void {
    socket.events.on('handshake', () => {
      this.connected = !this.isDown;
      if (this.connected && this.closing === undefined) this.events.onConnected?.();
    });
    // With reconnection off there is one attempt: a `close` is that of an attempt that failed.
    socket.events.on('close', () => {
      this.goDown('refused');
    });
    socket.events.on('disconnect', () => {
      this.goDown(this.connected ? 'disconnected' : 'handshake-failed');
    });
    for (const type of HANDSHAKE_ERRORS) {
      socket.events.on(type, () => {
        this.goDown('handshake-failed');
      });
    }
  }

  private async guardInbound(socket: Dealer): Promise<void> {
    try {
      await socket.receive();
    } catch {
      // The socket was closed, which ends the wait.
      return;
    }
    this.goDown('unexpected-frame');
  }

  private startPump(): void {
    if (this.pumping !== undefined || this.socket === undefined || this.queue.length === 0) return;
    this.pumping = this.pump(this.socket);
  }

  private async pump(socket: Dealer): Promise<void> {
    try {
      for (let frame = this.queue.shift(); frame !== undefined; frame = this.queue.shift()) {
        await socket.send(frame);
        this.lastSendAtMs = performance.now();
      }
    } catch {
      // The end of an attempt reaches a waiting frame before it reaches the events.
      this.goDown(this.connected ? 'send-failed' : 'refused');
    }
    // In the same step in which the queue was found empty: what is sent one microtask later starts another pump.
    this.pumping = undefined;
  }

  /** Waits for what is queued to leave, `lingerMs` at most. ZeroMQ does not tell, so its part gets the whole time. */
  private async flush(): Promise<void> {
    const { lingerMs } = this.environment.options;
    if (!this.connected) return;
    const deadlineMs = performance.now() + lingerMs;
    if (this.pumping !== undefined) await Promise.race([this.pumping, delay(lingerMs)]);
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
    this.socket?.close();
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
