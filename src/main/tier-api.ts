// The step-driven form of a peer, for engines that poll once per scheduler step (types only).

import type { OpenOptions } from './peer-api.js';

/** One request of the engine, opened with its kv_transfer_params and its kv_hints. */
export interface TierRequest extends OpenOptions {
  readonly requestId: string;
  readonly kvTransferParams?: unknown;
}

/** Blocks to move between the engine and the pool. Keys packed, `count * keyBytes` bytes. */
export interface TierJob {
  readonly jobId: number;
  readonly requestId: string;
  readonly keys: Uint8Array;
  /** Store: the blocks, back to back. Load: not used. */
  readonly blocks?: Uint8Array;
}

export interface TierJobResult {
  readonly jobId: number;
  readonly success: boolean;
  /** Load: where the blocks are; borrowed until releaseJob(jobId). */
  readonly slots?: Int32Array;
}

export interface Tier {
  /** Registers the request. @throws KVPEER_INVALID_PARAMS */
  onNewRequest(request: TierRequest): void;
  /** true = hit, false = miss, null = not known yet: ask again after the next step. */
  lookup(key: Uint8Array, requestId: string): boolean | null;
  /** End of a step: one `lookup` per peer and request goes out with the keys first asked in this step. */
  onScheduleEnd(): void;
  submitLoad(job: TierJob): void;
  submitStore(job: TierJob): void;
  /** Each job exactly once. */
  getFinished(): TierJobResult[];
  /** The pinned blocks of a finished load are not needed any more. */
  releaseJob(jobId: number): void;
  onRequestFinished(requestId: string): void;
}
