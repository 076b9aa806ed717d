// One send agent of a mover: the peers that it has loaded and its open requests.

import type { NixlPeerHandle, SendAgentHandle } from '../../native/nixl.js';
import type { MoverPeer, Serve } from './serve.js';

/** One posted request. */
export interface OpenRequest {
  readonly peer: MoverPeer;
  /** Undefined: the warm-up of a connection. */
  readonly serve: Serve | undefined;
  /** Pairs of the serve that it writes. */
  readonly first: number;
  readonly count: number;
  readonly postedAtMs: number;
  /** Posted before, on an agent that was destroyed. */
  readonly isAgain: boolean;
}

/** A send agent, current or retired. */
export class SendGeneration {
  /** What each peer is called on this agent; a peer is loaded when first needed. */
  readonly peers = new Map<MoverPeer, NixlPeerHandle>();
  /** By request id, oldest first. */
  readonly requests = new Map<number, OpenRequest>();
  /** Peers whose writes end with this agent at the latest. */
  readonly stops = new Set<MoverPeer>();
  /** Set when nothing more is posted on it. */
  retiredAtMs: number | undefined;

  constructor(readonly agent: SendAgentHandle) {}

  hasRequestsTo(peer: MoverPeer): boolean {
    for (const request of this.requests.values()) if (request.peer === peer) return true;
    return false;
  }

  /** A write to a peer that is not being stopped is still going on. */
  hasOtherRequests(): boolean {
    for (const request of this.requests.values()) if (!this.stops.has(request.peer)) return true;
    return false;
  }

  oldestPostedAtMs(): number | undefined {
    for (const request of this.requests.values()) return request.postedAtMs;
    return undefined;
  }
}
