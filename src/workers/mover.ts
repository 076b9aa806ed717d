// Writes blocks to remote peers through NIXL: batches, polling, fairness between peers, and the hard stop.
//
// A mover belongs to one worker. It has a current send agent and, after a hard stop, retired ones:
//
//     serve()  -> queue of the peer -> poll() posts one request a call, peers in turn -> current agent
//     hardStop() retires the agents with open requests to the peer: they are polled on for the sake of the other
//                peers, at most retireMs, then destroyed, which is the only thing that stops a write in flight
//
// What a destroyed agent cuts of a healthy peer is posted again once, on the current agent.

import type { ControlHandle, PoolHandle } from '../../native/index.js';
import { NixlStatus, PostResult } from '../../native/nixl.js';
import type { NixlPeerHandle, NixlSender, SendAgentHandle } from '../../native/nixl.js';
import { PositionStatus } from '../shared/operations.js';
import { SendAgents } from './send-agents.js';
import type { OpenRequest, SendGeneration } from './send-agents.js';
import { MoverPeer, Serve } from './serve.js';
import type { PairRange, ServeStatus } from './serve.js';
import { Turns } from './turns.js';

export type { ServeStatus } from './serve.js';

/** Requests in flight per peer: enough to keep a connection busy between two polls. */
export const MAX_OPEN_REQUESTS_PER_PEER = 4;
/** Default of `retireMs`. */
export const RETIRED_MS = 1000;
/** Ended requests that one poll reports per agent; more are seen by the next. */
const ENDED_PER_POLL = 64;

/** The writes of one SERVE. Offsets are bytes in the control mapping; the lists are read before serve() returns. */
export interface ServeWork {
  readonly opNumber: number;
  readonly peerId: number;
  /** int32 per position: the slot here. */
  readonly slotsOffset: number;
  /** int32 per position: the slot at the peer. */
  readonly indexesOffset: number;
  /** A byte per position: Pinned and Found ones are written. */
  readonly statusesOffset: number;
  readonly count: number;
}

export type AddPeerResult =
  { readonly status: 'added' } | { readonly status: 'refused'; readonly reason: string };

/** Called from inside the mover's methods, in this order: the serves of a peer before its stop or its removal. */
export interface MoverEvents {
  onServeEnd(opNumber: number, status: ServeStatus, bytesWritten: number, cutRequestCount: number): void;
  /** No write to the peer is under way any more; what is in socket buffers may still land. */
  onHardStopped(peerId: number): void;
  /** A removal that had to wait is complete. */
  onPeerRemoved(peerId: number): void;
  /** Something that is no fault of the caller, for the log: an agent that could not be made, a lost connection. */
  onTrouble(text: string): void;
}

/** How to see without JavaScript that a submission waits. */
export interface SubmissionWatch {
  /** Bytes in the control mapping. */
  readonly tailOffset: number;
  /** The word there, as an unsigned number, while none waits. */
  readonly emptyTail: number;
}

export interface MoverOptions {
  readonly nixl: NixlSender;
  readonly control: ControlHandle;
  readonly pool: PoolHandle;
  readonly numBlocks: number;
  readonly blockBytes: number;
  readonly events: MoverEvents;
  /** How long a retired agent may go on for the sake of healthy peers. Default 1 s. */
  readonly retireMs?: number | undefined;
  /** The worker's ring: while no record waits there, one peer's requests are posted without a look at anything else. */
  readonly submissions?: SubmissionWatch | undefined;
  /** Monotonic milliseconds. */
  readonly now: () => number;
}

export interface MoverCounters {
  /** Requests posted, without the warming of a connection. */
  postedRequestCount: number;
  /** Requests cut by the destruction of their agent. */
  cutRequestCount: number;
  /** Cut requests to healthy peers that were posted again. */
  repostedRequestCount: number;
  /** Agents retired by a hard stop. */
  retiredAgentCount: number;
  /** Of serves that have ended, from their first post to their last end. */
  writingMs: number;
}

export class Mover {
  readonly counters: MoverCounters = {
    postedRequestCount: 0,
    cutRequestCount: 0,
    repostedRequestCount: 0,
    retiredAgentCount: 0,
    writingMs: 0,
  };

  private readonly peers = new Map<number, MoverPeer>();
  private readonly serves = new Map<number, Serve>();
  private readonly agents: SendAgents;
  private readonly turns = new Turns();
  private readonly result = new Int32Array(PostResult.Words);
  private readonly ended = new Int32Array(2 * ENDED_PER_POLL);
  private readonly retireMs: number;

  constructor(private readonly options: MoverOptions) {
    this.retireMs = options.retireMs ?? RETIRED_MS;
    this.agents = new SendAgents(options);
  }

  /** Makes the first send agent, so that the first peer does not wait for it. @throws KVPEER_NIXL_UNAVAILABLE */
  start(): void {
    this.agents.current();
  }

  get peerCount(): number {
    return this.peers.size;
  }

  get openRequestCount(): number {
    return this.agents.openRequestCount;
  }

  /** 0 without open requests. */
  get oldestOpenAgeMs(): number {
    const { oldestPostedAtMs } = this.agents;
    return oldestPostedAtMs === undefined ? 0 : this.options.now() - oldestPostedAtMs;
  }

  /** Loads a peer's metadata and, when it has a scratch page, makes its first write there. */
  addPeer(
    peerId: number,
    blob: Uint8Array,
    baseAddr: number,
    numBlocks: number,
    options: { readonly scratch: boolean },
  ): AddPeerResult {
    if (this.peers.has(peerId)) throw new RangeError(`peer ${peerId} is known already`);
    const peer = new MoverPeer(peerId, blob.slice(), baseAddr, numBlocks, options.scratch);
    try {
      const generation = this.agents.current();
      const handle = this.agents.handleOf(peer, generation);
      if (peer.hasScratch) this.warmUp(generation, handle, peer);
    } catch (error) {
      return { status: 'refused', reason: reasonOf(error) };
    }
    if (peer.isFailed) {
      this.forget(peer);
      return { status: 'refused', reason: 'the first write to it failed' };
    }
    this.peers.set(peerId, peer);
    return { status: 'added' };
  }

  /**
   * Forgets a peer: at once, or once its posted requests have ended or were stopped (then onPeerRemoved is called). What
   * is not posted is dropped. An unknown peer counts as removed.
   */
  removePeer(peerId: number): 'removed' | 'waiting' {
    const peer = this.peers.get(peerId);
    if (peer === undefined) return 'removed';
    this.dropUnposted(peer, 'cancelled');
    if (peer.openCount === 0) {
      this.forget(peer);
      return 'removed';
    }
    peer.isLeaving = true;
    return 'waiting';
  }

  /**
   * Queues the writes of one serve, which ends with exactly one onServeEnd when the answer is 'accepted'.
   *
   * @returns 'badDestination' when a slot or an index is out of range (duplicates are the caller's to check)
   */
  serve(work: ServeWork): 'accepted' | 'unknownPeer' | 'badDestination' {
    const peer = this.peers.get(work.peerId);
    if (peer === undefined || peer.isLeaving) return 'unknownPeer';
    const pairs = new Int32Array(2 * work.count);
    const pairCount = this.options.nixl.preparePairs(
      this.options.control,
      work.slotsOffset,
      work.indexesOffset,
      work.statusesOffset,
      work.count,
      PositionStatus.Pinned,
      PositionStatus.Found,
      this.options.numBlocks,
      peer.numBlocks,
      pairs,
    );
    if (pairCount < 0) return 'badDestination';
    const serve = new Serve(work.opNumber, peer, pairs, pairCount);
    this.serves.set(serve.opNumber, serve);
    peer.serves.add(serve);
    if (peer.isFailed) serve.dropUnposted('failed');
    if (peer.isStopping) serve.dropUnposted('stopped');
    this.turns.add(serve);
    this.endIfFinished(serve);
    return 'accepted';
  }

  /** Drops what the serve has not posted; the posted parts run to their end. Ended and unknown serves are left alone. */
  cancelUnposted(opNumber: number): void {
    const serve = this.serves.get(opNumber);
    if (serve === undefined) return;
    serve.dropUnposted('cancelled');
    this.endIfFinished(serve);
  }

  /**
   * Cuts everything unfinished to the peer. Ends with onHardStopped, possibly before this returns; one call stands for
   * all stops of the peer that were asked for meanwhile. An unknown peer has nothing to cut.
   */
  hardStop(peerId: number): void {
    const peer = this.peers.get(peerId);
    if (peer === undefined) {
      this.options.events.onHardStopped(peerId);
      return;
    }
    peer.isStopping = true;
    this.dropUnposted(peer, 'stopped');
    this.counters.retiredAgentCount += this.agents.retireFor(peer, this.options.now());
    this.settle(peer);
    this.destroyRetired();
  }

  /**
   * One pass: posts, looks at every open request once, destroys the retired agents whose time has come. It posts one
   * request, since the caller looks at its ring between two; or several, when they are copies that end at once, nobody
   * else has something to post and no submission waits: after a copy of 4 MiB neither this code nor its data is in the
   * processor's caches, and a pass between two of them costs 30 to 75 us.
   *
   * @returns whether anything moved
   */
  poll(): boolean {
    let hasMoved = this.postNext();
    for (const generation of this.agents.all()) {
      if (generation.requests.size === 0) continue;
      const count = this.options.nixl.poll(generation.agent, this.ended);
      for (let i = 0; i < count; i++) this.requestEnded(generation, this.ended[2 * i], this.ended[2 * i + 1]);
      if (count > 0) hasMoved = true;
    }
    return this.destroyRetired() || hasMoved;
  }

  /** Destroys every agent. Serves that have not ended are stopped. */
  close(): void {
    const agents = this.agents.all();
    for (const peer of this.peers.values()) {
      this.dropUnposted(peer, 'stopped');
      for (const generation of agents) generation.stops.add(peer);
    }
    for (const generation of agents) this.destroy(generation);
    this.peers.clear();
  }

  private warmUp(generation: SendGeneration, handle: NixlPeerHandle, peer: MoverPeer): void {
    this.options.nixl.warmUp(generation.agent, handle, this.result);
    const request = { peer, serve: undefined, first: 0, count: 0, isAgain: false };
    this.posted(generation, { ...request, postedAtMs: this.options.now() });
  }

  private postNext(): boolean {
    const serve = this.turns.next(MAX_OPEN_REQUESTS_PER_PEER);
    if (serve === undefined) return false;
    this.postPart(serve);
    return true;
  }

  private postPart(serve: Serve): void {
    const { peer, pairs } = serve;
    const range = serve.unposted[0];
    // The post is the copy: its time counts.
    serve.firstPostedAtMs ??= this.options.now();
    let generation: SendGeneration;
    try {
      generation = this.agents.current();
      const handle = this.agents.handleOf(peer, generation);
      this.postTo(generation.agent, handle, pairs, range);
    } catch (error) {
      this.failPeer(peer, reasonOf(error));
      return;
    }
    const endedCount = this.result[PostResult.EndedPairCount];
    const count = this.result[PostResult.TakenCount];
    const first = range.first + endedCount;
    const { isAgain } = range;
    range.first = first + count;
    range.count -= endedCount + count;
    if (range.count === 0) serve.unposted.shift();
    serve.bytesWritten += endedCount * this.options.blockBytes;
    this.counters.postedRequestCount += this.result[PostResult.EndedRequestCount];
    this.posted(generation, { peer, serve, first, count, isAgain, postedAtMs: this.options.now() });
  }

  private postTo(agent: SendAgentHandle, handle: NixlPeerHandle, pairs: Int32Array, range: PairRange): void {
    const { nixl, control, submissions } = this.options;
    const isAlone = this.turns.peerCount === 1 && this.agents.openRequestCount === 0;
    if (submissions === undefined || !isAlone) {
      nixl.post(agent, handle, pairs, range.first, range.count, this.result);
      return;
    }
    const { tailOffset, emptyTail } = submissions;
    nixl.postMany(
      agent,
      handle,
      pairs,
      range.first,
      range.count,
      this.result,
      control,
      tailOffset,
      emptyTail,
    );
  }

  /** Books the request that `this.result` tells of. */
  private posted(generation: SendGeneration, request: OpenRequest): void {
    const id = this.result[PostResult.RequestId];
    request.peer.openCount += 1;
    if (request.serve !== undefined) {
      request.serve.openCount += 1;
      this.counters.postedRequestCount += 1;
    }
    if (id !== 0) generation.requests.set(id, request);
    else this.finish(request, this.result[PostResult.Status]);
  }

  private requestEnded(generation: SendGeneration, id: number, status: number): void {
    const request = generation.requests.get(id);
    if (request === undefined) throw new Error(`NIXL request ${id} ended, but it is not open`);
    generation.requests.delete(id);
    this.finish(request, status);
  }

  private finish(request: OpenRequest, status: number): void {
    const { peer, serve } = request;
    peer.openCount -= 1;
    if (serve !== undefined) {
      serve.openCount -= 1;
      if (status === NixlStatus.Done) serve.bytesWritten += request.count * this.options.blockBytes;
      else serve.lose(peer.isStopping ? 'stopped' : 'failed');
    }
    if (status !== NixlStatus.Done) this.failPeer(peer, this.options.nixl.statusText(status));
    if (serve !== undefined) this.endIfFinished(serve);
    this.settle(peer);
  }

  private failPeer(peer: MoverPeer, reason: string): void {
    if (!peer.isFailed) this.options.events.onTrouble(`a write to peer ${peer.id} failed: ${reason}`);
    peer.isFailed = true;
    this.dropUnposted(peer, 'failed');
  }

  private dropUnposted(peer: MoverPeer, reason: 'cancelled' | 'stopped' | 'failed'): void {
    for (const serve of [...peer.serves]) {
      serve.dropUnposted(reason);
      this.endIfFinished(serve);
    }
  }

  private endIfFinished(serve: Serve): void {
    if (!serve.isFinished || !this.serves.delete(serve.opNumber)) return;
    serve.peer.serves.delete(serve);
    if (serve.firstPostedAtMs !== undefined) {
      this.counters.writingMs += this.options.now() - serve.firstPostedAtMs;
    }
    const { opNumber, status, bytesWritten, cutRequestCount } = serve;
    this.options.events.onServeEnd(opNumber, status, bytesWritten, cutRequestCount);
  }

  /** Completes a stop and a removal once the peer's last request is gone. */
  private settle(peer: MoverPeer): void {
    if (peer.openCount > 0) return;
    if (peer.isStopping) {
      peer.isStopping = false;
      this.agents.unstop(peer);
      this.options.events.onHardStopped(peer.id);
    }
    if (peer.isLeaving) {
      peer.isLeaving = false;
      this.forget(peer);
      this.options.events.onPeerRemoved(peer.id);
    }
  }

  private forget(peer: MoverPeer): void {
    this.peers.delete(peer.id);
    this.agents.forget(peer);
  }

  private destroyRetired(): boolean {
    const due = this.agents.due(this.options.now(), this.retireMs);
    for (const generation of due) this.destroy(generation);
    return due.length > 0;
  }

  private destroy(generation: SendGeneration): void {
    const cut = this.agents.destroy(generation);
    // The last first: each cut part goes to the front of its serve.
    for (const request of cut.toReversed()) this.requestCut(request, generation.stops.has(request.peer));
    for (const peer of new Set(cut.map((request) => request.peer))) this.settle(peer);
  }

  private requestCut(request: OpenRequest, isPeerStopped: boolean): void {
    const { peer, serve, first, count } = request;
    peer.openCount -= 1;
    this.counters.cutRequestCount += 1;
    if (serve === undefined) return;
    serve.openCount -= 1;
    serve.cutRequestCount += 1;
    if (isPeerStopped) {
      serve.lose('stopped');
    } else if (request.isAgain || serve.isEnding || peer.isFailed || peer.isLeaving) {
      serve.lose('failed');
    } else {
      serve.unposted.unshift({ first, count, isAgain: true });
      this.counters.repostedRequestCount += 1;
      this.turns.add(serve);
    }
    this.endIfFinished(serve);
  }
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
