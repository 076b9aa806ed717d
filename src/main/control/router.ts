// The receiving half: one bound ROUTER, one pump that hands frames to the handlers and lets the event loop breathe.

import { randomBytes } from 'node:crypto';
import { isIPv6 } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Router, type Context } from 'zeromq';
import { KvpeerError } from '../errors.js';
import { parseIdentity, type ParsedAddress } from './address.js';
import { resolveHost } from './dealer.js';
import type { ControlHandlers, ControlOptions, PeerAddress } from './transport.js';

/** ZMQ_DISCONNECT_MSG, of libzmq's draft API: what the ROUTER "receives" from an identity whose connection ended. */
const DISCONNECT_MSG = 111;

/** Identities whose reading is remembered; beyond that all are forgotten, which costs no more than reading them again. */
const MAX_REMEMBERED_IDENTITIES = 1_024;

const BIND_REMEDIES: Readonly<Record<string, string>> = {
  EADDRINUSE: 'another process listens there: stop it, or choose another --port',
  EADDRNOTAVAIL: 'no interface of this host has that address: choose another --host',
  ENODEV: 'no interface of this host has that address: choose another --host',
  EACCES: 'this user may not listen there: choose a port above 1023',
};

class NotifyingRouter extends Router {
  /** @returns whether this libzmq has the option */
  notifyPeerGone(notice: Buffer): boolean {
    try {
      this.setStringOption(DISCONNECT_MSG, notice);
      return true;
    } catch {
      return false;
    }
  }
}

export class Receiver {
  readonly reportsPeerGone: boolean;
  private readonly socket: NotifyingRouter;
  // Not guessable, so that no remote can announce the end of a connection that goes on.
  private readonly notice = randomBytes(32);
  private readonly identities = new Map<string, ParsedAddress>();
  private isMuted = false;
  private pump: Promise<void> | undefined;

  constructor(
    context: Context,
    private readonly options: ControlOptions,
    private readonly handlers: ControlHandlers,
  ) {
    this.socket = new NotifyingRouter({
      context,
      handover: true,
      maxMessageSize: options.maxFrameBytes,
      // Never sends; no heartbeats either, see transport.ts.
      linger: 0,
      // Never throttled: a connection that breaks while it is, with a heartbeat among what is still to be read, aborts
      // the process in libzmq 4.3.5 (restart_input answers it, see transport.ts). What waits costs memory instead,
      // until it is read.
      receiveHighWaterMark: 0,
    });
    this.reportsPeerGone = this.socket.notifyPeerGone(this.notice);
  }

  async bind(): Promise<PeerAddress> {
    const { bindHost, bindPort } = this.options;
    // libzmq binds to addresses and interfaces only, not to names such as `localhost`.
    const host = bindHost === '*' ? '0.0.0.0' : await resolveHost(bindHost);
    if (host === undefined) throw bindError(this.options, 'ENOTFOUND', 'choose a --host that has an address');
    this.socket.ipv6 = isIPv6(host);
    try {
      await this.socket.bind(`tcp://${isIPv6(host) ? `[${host}]` : host}:${bindPort}`);
    } catch (error) {
      const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown';
      const remedy = BIND_REMEDIES[code] ?? 'choose another --host or --port';
      throw bindError(this.options, code, remedy, error);
    }
    this.pump = this.receiveAll();
    return { host, port: Number(/:(\d+)$/.exec(this.socket.lastEndpoint ?? '')?.[1] ?? bindPort) };
  }

  /** What still arrives is thrown away. */
  mute(): void {
    this.isMuted = true;
  }

  async close(): Promise<void> {
    this.socket.close();
    await this.pump;
  }

  private async receiveAll(): Promise<void> {
    const { receiveBatch, receiveTurnMs } = this.options;
    let handled = 0;
    let busyMs = 0;
    for (;;) {
      let parts: Buffer[];
      try {
        parts = await this.socket.receive();
      } catch (error) {
        if (this.socket.closed) return;
        throw error;
      }
      const startMs = performance.now();
      if (!this.isMuted) this.deliver(parts);
      busyMs += performance.now() - startMs;
      // A message that is there already is delivered without a turn of the event loop: a busy peer would keep timers,
      // completions and every other socket waiting.
      if (++handled < receiveBatch && busyMs < receiveTurnMs) continue;
      await nextTurn();
      handled = 0;
      busyMs = 0;
    }
  }

  private deliver(parts: readonly Buffer[]): void {
    const [identity, payload] = parts;
    const from = this.sender(identity);
    if (parts.length !== 2) {
      this.handlers.onRejected('frame_count', `${parts.length - 1} parts from ${describe(identity, from)}`);
      return;
    }
    const isNotice = this.reportsPeerGone && payload.equals(this.notice);
    if (!from.ok) {
      if (!isNotice) this.handlers.onRejected('bad_identity', `${describe(identity, from)}: ${from.reason}`);
    } else if (isNotice) {
      this.handlers.onPeerGone(from.text);
    } else {
      this.handlers.onMessage(from.text, payload);
    }
  }

  private sender(identity: Buffer): ParsedAddress {
    const raw = identity.toString('latin1');
    const known = this.identities.get(raw);
    if (known !== undefined) return known;
    const parsed = parseIdentity(identity);
    if (this.identities.size >= MAX_REMEMBERED_IDENTITIES) this.identities.clear();
    this.identities.set(raw, parsed);
    return parsed;
  }
}

function bindError(options: ControlOptions, code: string, remedy: string, cause?: unknown): KvpeerError {
  const address = `${options.bindHost}:${options.bindPort}`;
  return new KvpeerError('KVPEER_BIND', `cannot listen at ${address} (${code}); ${remedy}`, { cause });
}

/** An identity in a form that is safe to log: short, printable. */
function describe(identity: Buffer, parsed: ParsedAddress): string {
  return parsed.ok
    ? parsed.text
    : `identity 0x${identity.toString('hex', 0, 32)}${identity.length > 32 ? '...' : ''}`;
}
