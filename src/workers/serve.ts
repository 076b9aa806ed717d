// What a mover keeps about a remote peer and about one serve: what is posted, what is not, how it ends.

/** How a serve ended. */
export type ServeStatus =
  /** Every block is in the peer's memory. */
  | 'done'
  /** NIXL reported a failure, or a cut part could not be posted again. */
  | 'failed'
  /** Unposted parts were dropped on request; the posted ones have ended. */
  | 'cancelled'
  /** Cut by a hard stop. */
  | 'stopped';

export interface PairRange {
  first: number;
  count: number;
  readonly isAgain: boolean;
}

/** A remote peer as a mover knows it. */
export class MoverPeer {
  /** Serves that still have something to post, oldest first. */
  readonly queue: Serve[] = [];
  /** Every serve that has not ended. */
  readonly serves = new Set<Serve>();
  /** Open requests on all agents, the warm-up included. */
  openCount = 0;
  /** NIXL lost the connection: every serve fails until the peer is removed and added again. */
  isFailed = false;
  /** A hard stop is under way. */
  isStopping = false;
  /** It is forgotten once its requests have ended. */
  isLeaving = false;

  constructor(
    readonly id: number,
    /** Kept: a new agent loads it again without a handshake. */
    readonly blob: Uint8Array,
    readonly baseAddr: number,
    readonly numBlocks: number,
    readonly hasScratch: boolean,
  ) {}
}

/** One serve. Its lists are copied out of the extent, which is in key order and lives on as a lease. */
export class Serve {
  /** Parts to post, first those that were cut. */
  readonly unposted: PairRange[] = [];
  openCount = 0;
  bytesWritten = 0;
  cutRequestCount = 0;
  firstPostedAtMs: number | undefined;
  private ending: Exclude<ServeStatus, 'done'> | undefined;

  constructor(
    readonly opNumber: number,
    readonly peer: MoverPeer,
    /** Slot here, slot there, sorted so that neighbours merge. */
    readonly pairs: Int32Array,
    pairCount: number,
  ) {
    if (pairCount > 0) this.unposted.push({ first: 0, count: pairCount, isAgain: false });
  }

  /** Some of it is lost already: nothing more is posted. */
  get isEnding(): boolean {
    return this.ending !== undefined;
  }

  get isFinished(): boolean {
    return this.openCount === 0 && this.unposted.length === 0;
  }

  get status(): ServeStatus {
    return this.ending ?? 'done';
  }

  /** Drops what is not posted. Without such a part the serve ends by its posted ones, as if nothing had been asked. */
  dropUnposted(reason: 'cancelled' | 'stopped' | 'failed'): void {
    if (this.unposted.length === 0) return;
    this.unposted.length = 0;
    this.ending ??= reason;
  }

  /** A posted part is lost for good, and with it the rest. */
  lose(reason: 'stopped' | 'failed'): void {
    this.unposted.length = 0;
    this.ending = reason;
  }
}
