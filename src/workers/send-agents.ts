// The send agents of one mover: the current one and, after a hard stop, retired ones that still have writes under way.

import type { PoolHandle } from '../../native/index.js';
import type { NixlPeerHandle, NixlSender, SendAgentHandle } from '../../native/nixl.js';
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

/** A send agent with the peers that it has loaded and its open requests. */
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

export interface SendAgentsOptions {
  readonly nixl: NixlSender;
  readonly pool: PoolHandle;
  readonly numBlocks: number;
  readonly blockBytes: number;
}

export class SendAgents {
  /** Oldest first; the current one, if there is one, is the last. */
  private readonly generations: SendGeneration[] = [];

  constructor(private readonly options: SendAgentsOptions) {}

  /** A copy: an agent may go while the caller walks. */
  all(): SendGeneration[] {
    return [...this.generations];
  }

  get openRequestCount(): number {
    return this.generations.reduce((sum, generation) => sum + generation.requests.size, 0);
  }

  get oldestPostedAtMs(): number | undefined {
    const posted = this.generations.flatMap((generation) => generation.oldestPostedAtMs() ?? []);
    return posted.length === 0 ? undefined : Math.min(...posted);
  }

  /** The agent to post on; made when there is none (about 30 ms). */
  current(): SendGeneration {
    const last = this.generations.at(-1);
    if (last !== undefined && last.retiredAtMs === undefined) return last;
    const { nixl, pool, numBlocks, blockBytes } = this.options;
    const generation = new SendGeneration(nixl.createSendAgent(pool, numBlocks, blockBytes));
    this.generations.push(generation);
    return generation;
  }

  /** What the peer is called on this agent; its metadata is loaded there when that has not been done. */
  handleOf(peer: MoverPeer, generation: SendGeneration): NixlPeerHandle {
    const known = generation.peers.get(peer);
    if (known !== undefined) return known;
    const { blob, baseAddr, numBlocks, hasScratch } = peer;
    const handle = this.options.nixl.addPeer(generation.agent, blob, baseAddr, numBlocks, hasScratch);
    generation.peers.set(peer, handle);
    return handle;
  }

  /** The peer must have no open requests. */
  forget(peer: MoverPeer): void {
    for (const { agent, peers } of this.generations) {
      const handle = peers.get(peer);
      if (handle !== undefined) this.options.nixl.removePeer(agent, handle);
      peers.delete(peer);
    }
  }

  /** Retires the agents with open requests to the peer, whose writes end with them. @returns how many are new to it */
  retireFor(peer: MoverPeer, nowMs: number): number {
    let count = 0;
    for (const generation of this.generations) {
      if (!generation.hasRequestsTo(peer)) continue;
      generation.stops.add(peer);
      if (generation.retiredAtMs !== undefined) continue;
      generation.retiredAtMs = nowMs;
      count += 1;
    }
    return count;
  }

  /** The peer's writes have ended by themselves. */
  unstop(peer: MoverPeer): void {
    for (const generation of this.generations) generation.stops.delete(peer);
  }

  /** Retired agents without a write to a healthy peer, or whose time is over. */
  due(nowMs: number, retireMs: number): SendGeneration[] {
    return this.generations.filter(
      (generation) =>
        generation.retiredAtMs !== undefined &&
        (!generation.hasOtherRequests() || nowMs - generation.retiredAtMs >= retireMs),
    );
  }

  /** About 5 ms. @returns the requests that it cut, oldest first */
  destroy(generation: SendGeneration): OpenRequest[] {
    this.options.nixl.destroySendAgent(generation.agent);
    this.generations.splice(this.generations.indexOf(generation), 1);
    generation.peers.clear();
    const cut = [...generation.requests.values()];
    generation.requests.clear();
    return cut;
  }
}
