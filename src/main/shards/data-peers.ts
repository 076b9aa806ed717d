// Remote peers on main: which mover holds which peer, serves to them, hard stops, and loading them again after a loss.

import { packBits } from '../../shared/bitmap.js';
import type { Layout } from '../../shared/layout.js';
import {
  ADD_PEER_SCRATCH,
  ExtentFlag,
  NO_EXTENT,
  Opcode,
  Outcome,
  PositionStatus,
} from '../../shared/operations.js';
import type { Extents } from './extents.js';
import { failureOf } from './failures.js';
import { CLOSED, LOST_RESULT, type OperationsInFlight } from './operations-in-flight.js';
import type {
  AddPeerRequest,
  DataPeer,
  Done,
  ServeHandle,
  ServeRequest,
  ServeResult,
} from './shard-client.js';
import { type ExtentSet, ownSet } from './slot-set.js';
import type { SlotSets } from './slot-sets.js';

interface KnownPeer extends DataPeer {
  readonly mover: number;
  /** Kept with a copy of its metadata: a replaced mover loads it again without a handshake. */
  readonly request: AddPeerRequest;
  isLeaving: boolean;
}

export interface DataPeersParts {
  readonly layout: Layout;
  readonly inFlight: OperationsInFlight;
  readonly extents: Extents;
  readonly sets: SlotSets;
  /** Workers that move data; none with --data-plane none. */
  readonly movers: readonly number[];
  readonly onTrouble: (text: string) => void;
}

const NOTHING_SERVED: ServeResult = { blockCount: 0, bytes: 0 };

export class DataPeers {
  private readonly parts: DataPeersParts;
  private readonly peers = new Map<number, KnownPeer>();
  /** Peers per worker, those that are being loaded included. */
  private readonly peerCounts: number[];
  private nextPeerId = 0;

  constructor(parts: DataPeersParts) {
    this.parts = parts;
    this.peerCounts = Array.from({ length: parts.layout.shardCount }, () => 0);
  }

  get count(): number {
    return this.peers.size;
  }

  add(request: AddPeerRequest, done: Done<DataPeer | undefined>): void {
    const { inFlight, movers } = this.parts;
    const peerId = this.nextPeerId;
    this.nextPeerId += 1;
    if (movers.length === 0) {
      queueMicrotask(() => {
        done(undefined, { peerId, numBlocks: request.numBlocks });
      });
      return;
    }
    const kept = { ...request, agentMetadata: request.agentMetadata.slice() };
    const attempt = (): boolean => {
      const mover = this.leastLoadedMover();
      if (mover < 0) return false;
      const peer: KnownPeer = {
        peerId,
        numBlocks: request.numBlocks,
        mover,
        request: kept,
        isLeaving: false,
      };
      const isAsked = this.load(peer, (outcome) => {
        if (outcome === Outcome.Ok) {
          this.peers.set(peerId, peer);
          done(undefined, peer);
        } else {
          this.peerCounts[mover] -= 1;
          done(failureOf(outcome), undefined);
        }
      });
      if (isAsked) this.peerCounts[mover] += 1;
      return isAsked;
    };
    inFlight.whenRoom(attempt, 'bounded', (reason) => {
      done(failureOf(reason), undefined);
    });
  }

  private leastLoadedMover(): number {
    const { movers, inFlight } = this.parts;
    let best = -1;
    for (const mover of movers) {
      if (!inFlight.hasRoom(1 << mover)) continue;
      if (best < 0 || this.peerCounts[mover] < this.peerCounts[best]) best = mover;
    }
    return best;
  }

  private load(peer: KnownPeer, done: (outcome: Outcome | typeof CLOSED) => void): boolean {
    const { extents, inFlight } = this.parts;
    const { agentMetadata, baseAddr, hasScratch } = peer.request;
    const space = extents.make({
      count: 0,
      spaceBytes: 8 + agentMetadata.length,
      flags: 0,
      pinLimit: 0,
      peerNumBlocks: agentMetadata.length,
    });
    if (space === undefined) return false;
    const at = extents.memory.keysAt(space.extent);
    new Float64Array(extents.memory.bytes.buffer, at, 1)[0] = baseAddr;
    extents.memory.bytes.set(agentMetadata, at + 8);
    inFlight.submit(
      {
        opcode: Opcode.AddPeer,
        extent: space.extent,
        arg0: peer.peerId,
        arg1: peer.numBlocks,
        arg2: hasScratch ? ADD_PEER_SCRATCH : 0,
        onWorkerLost: 'repeat',
        done: (outcome) => {
          this.parts.sets.giveBack(space);
          done(outcome);
        },
      },
      1 << peer.mover,
    );
    return true;
  }

  /** The mover was replaced: its peers are loaded again, before anything else is asked of it. */
  loadAgain(mover: number): void {
    for (const peer of this.peers.values()) {
      if (peer.mover !== mover || peer.isLeaving) continue;
      const attempt = (): boolean =>
        this.parts.inFlight.hasRoom(1 << mover) &&
        this.load(peer, (outcome) => {
          if (outcome === Outcome.Ok || outcome === CLOSED) return;
          this.parts.onTrouble(`peer ${peer.peerId} could not be loaded again (outcome ${outcome})`);
        });
      // At once, before what waits: a serve to a peer that is not loaded yet would fail.
      if (!attempt()) this.parts.inFlight.whenRoom(attempt, 'must', () => undefined);
    }
  }

  remove(peer: DataPeer, done: Done<undefined>): void {
    const known = this.peers.get(peer.peerId);
    if (known === undefined) {
      queueMicrotask(() => {
        done(undefined, undefined);
      });
      return;
    }
    known.isLeaving = true;
    this.tell(known, Opcode.RemovePeer, (failure) => {
      if (this.peers.delete(known.peerId)) this.peerCounts[known.mover] -= 1;
      done(failure, undefined);
    });
  }

  hardStop(peer: DataPeer, done: Done<undefined>): void {
    const known = this.peers.get(peer.peerId);
    // A mover that died has taken its agent, and every write in flight, with it.
    if (known === undefined || !this.parts.inFlight.isUp(known.mover)) {
      queueMicrotask(() => {
        done(undefined, undefined);
      });
      return;
    }
    this.tell(known, Opcode.HardStop, (failure) => {
      done(failure, undefined);
    });
  }

  private tell(peer: KnownPeer, opcode: Opcode, done: (failure: ReturnType<typeof failureOf>) => void): void {
    const { inFlight } = this.parts;
    const attempt = (): boolean => {
      if (!inFlight.hasRoom(1 << peer.mover)) return false;
      inFlight.submit(
        {
          opcode,
          extent: NO_EXTENT,
          arg0: peer.peerId,
          arg1: 0,
          arg2: 0,
          onWorkerLost: 'complete',
          done: (outcome) => {
            done(failureOf(outcome));
          },
        },
        1 << peer.mover,
      );
      return true;
    };
    inFlight.whenRoom(attempt, 'must', (reason) => {
      done(failureOf(reason));
    });
  }

  serve(request: ServeRequest, done: Done<ServeResult>): ServeHandle {
    const { inFlight, movers } = this.parts;
    const known = this.peers.get(request.peer.peerId);
    if (movers.length === 0 || known === undefined || known.isLeaving) {
      const outcome = movers.length === 0 ? Outcome.NoDataPlane : Outcome.UnknownPeer;
      queueMicrotask(() => {
        done(failureOf(outcome), NOTHING_SERVED);
      });
      return { cancelUnposted: () => undefined };
    }
    const held: ExtentSet[] = [
      ...(request.byLease?.leases ?? []),
      ...(request.resolved === undefined ? [] : [request.resolved]),
    ].map(ownSet);
    for (const set of held) set.holdCount += 1;
    let opNumber = 0;
    let isCancelled = false;
    let isDone = false;
    const finish: Done<ServeResult> = (failure, result) => {
      isDone = true;
      for (const set of held) this.parts.sets.unhold(set);
      done(failure, result);
    };
    const attempt = (): boolean => {
      if (isDone) return true;
      if (isCancelled) {
        finish(failureOf(Outcome.Cancelled), NOTHING_SERVED);
        return true;
      }
      if (!inFlight.hasRoom(1 << known.mover)) return false;
      opNumber = this.submitServe(request, known, held, finish);
      return opNumber > 0;
    };
    inFlight.whenRoom(attempt, 'bounded', (reason) => {
      if (!isDone) finish(failureOf(reason), NOTHING_SERVED);
    });
    return {
      cancelUnposted: () => {
        if (isDone || isCancelled) return;
        isCancelled = true;
        // While it waits for room, the next attempt sees the flag.
        if (opNumber === 0) return;
        const tell = (): boolean =>
          isDone ||
          (inFlight.isUp(known.mover) && inFlight.notify(known.mover, Opcode.CancelServe, opNumber));
        inFlight.whenRoom(tell, 'must', () => undefined);
      },
    };
  }

  /** @returns the operation's number, or 0 when the arena has no room */
  private submitServe(
    request: ServeRequest,
    peer: KnownPeer,
    held: readonly ExtentSet[],
    done: Done<ServeResult>,
  ): number {
    const { extents, inFlight, layout } = this.parts;
    const { byLease, indexes } = request;
    const count = byLease?.keys.count ?? held[0].count;
    const work = extents.make({
      count,
      keys: byLease?.keys,
      indexes,
      leases: byLease === undefined ? undefined : held,
      flags:
        byLease === undefined
          ? 0
          : ExtentFlag.ByLease | (byLease.isPartial === true ? ExtentFlag.Partial : 0),
      pinLimit: 0,
      peerNumBlocks: peer.numBlocks,
    });
    if (work === undefined) return 0;
    if (byLease === undefined) extents.copyPositions(held[0], work);
    return inFlight.submit(
      {
        opcode: Opcode.Serve,
        extent: work.extent,
        arg0: peer.peerId,
        arg1: 0,
        arg2: 0,
        onWorkerLost: 'fail',
        done: (outcome, result0) => {
          let blockCount = result0;
          if (blockCount === LOST_RESULT) blockCount = outcome === Outcome.Ok ? presentCount(work) : 0;
          const isPart = outcome === Outcome.Ok && byLease !== undefined && blockCount < count;
          const written = isPart ? writtenOf(work) : undefined;
          this.parts.sets.giveBack(work);
          done(failureOf(outcome), { blockCount, bytes: blockCount * layout.blockBytes, written });
        },
      },
      1 << peer.mover,
    );
  }
}

/** Positions that a serve writes. */
function presentCount(set: ExtentSet): number {
  let count = 0;
  for (const status of set.statuses) if (isPresent(status)) count += 1;
  return count;
}

/** The bitmap of what a serve has written. */
function writtenOf(set: ExtentSet): Uint8Array {
  const { statuses } = set;
  return packBits(set.count, (position) => isPresent(statuses[position]));
}

function isPresent(status: number): boolean {
  return status === PositionStatus.Pinned || status === PositionStatus.Found;
}
