// What Peer.start() gets from startShards(options, log) of start.ts: everything below the control plane, running.

import type { Counter } from '../../shared/counters.js';
import type { DataPlaneStatus } from '../observe/health.js';
import type { RingDepth } from '../observe/metrics.js';
import type { ShardClient } from './shard-client.js';

/** The data plane as the control plane sees it. */
export interface DataPlane {
  readonly name: 'nixl' | 'none';
  /** Address of block 0 in this process. */
  readonly baseAddr: number;
  /** The receive agent's metadata, as it goes into `connect`. */
  metadata(): Uint8Array;
  /** Destroys the receive agent and makes a new one: no TCP write of a peer's old session lands afterwards. */
  recycle(): Promise<void>;
  /** The metadata offers CMA: a stopped writer of this host may go on when it is continued. */
  readonly offersCma: boolean;
}

export interface RunningShards {
  readonly client: ShardClient;
  readonly shardCount: number;
  /** The pool's memory: slots, then the scratch page. */
  readonly pool: SharedArrayBuffer;
  readonly dataPlane: DataPlane;
  readonly dataPlaneStatus: DataPlaneStatus;
  /** Workers that died and were replaced. */
  readonly restartCount: number;
  /** Sum over the workers. */
  counter(counter: Counter): number;
  stats(): {
    readonly slots: {
      readonly free: number;
      readonly writing: number;
      readonly ready: number;
      readonly quarantined: number;
    };
    readonly pins: number;
    readonly nixlPeers: number;
  };
  ringDepths(): readonly RingDepth[];
  /** Why the node cannot do its work right now, one sentence each; empty when it can. */
  troubles(): readonly string[];
  /** Stops the workers, destroys the agents, unmaps. Idempotent. */
  close(): Promise<void>;
}
