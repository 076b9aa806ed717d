// The step-driven form of a peer: per key, polled once per engine step, on the same requests as the promise form.

import { KvpeerError } from './errors.js';
import type { Load, PeerApi, PeerRequest } from './peer-api.js';
import type { Tier, TierJob, TierJobResult, TierRequest } from './tier-api.js';

interface TierState {
  readonly request: PeerRequest;
  readonly expectsAll: boolean;
  /** Known answers by key (latin1); a key that is asked for the first time waits in `unsent`. */
  readonly answers: Map<string, boolean | null>;
  unsent: Uint8Array[];
}

/** The scheduler asks key by key, by nature; one lookup per peer and request leaves at the end of the step. */
export class StepTier implements Tier {
  readonly #peer: Pick<PeerApi, 'open' | 'keyBytes' | 'store'>;
  readonly #requests = new Map<string, TierState>();
  readonly #toFlush = new Set<TierState>();
  readonly #loads = new Map<number, Load>();
  readonly #openJobs = new Set<number>();
  #finished: TierJobResult[] = [];

  constructor(peer: Pick<PeerApi, 'open' | 'keyBytes' | 'store'>) {
    this.#peer = peer;
  }

  onNewRequest({ requestId, kvTransferParams, ...options }: TierRequest): void {
    if (this.#requests.has(requestId)) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `request ${requestId} is open already; finish it before the id is used again`,
      );
    }
    const request = this.#peer.open(kvTransferParams, options);
    const expectsAll =
      typeof kvTransferParams === 'object' &&
      kvTransferParams !== null &&
      'remote_prefiller' in kvTransferParams;
    this.#requests.set(requestId, { request, expectsAll, answers: new Map(), unsent: [] });
  }

  lookup(key: Uint8Array, requestId: string): boolean | null {
    const state = this.#state(requestId);
    if (key.byteLength !== this.#peer.keyBytes) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `a key of this node has ${this.#peer.keyBytes} bytes; got ${key.byteLength}`,
      );
    }
    if (state.expectsAll) return true;
    const text = textOf(key);
    const known = state.answers.get(text);
    if (known !== undefined) return known;
    state.answers.set(text, null);
    state.unsent.push(key.slice());
    this.#toFlush.add(state);
    return null;
  }

  onScheduleEnd(): void {
    for (const state of this.#toFlush) {
      const keys = state.unsent;
      state.unsent = [];
      const packed = new Uint8Array(keys.length * this.#peer.keyBytes);
      keys.forEach((key, i) => {
        packed.set(key, i * this.#peer.keyBytes);
      });
      const settle = (isHit: (index: number) => boolean): void => {
        keys.forEach((key, i) => {
          state.answers.set(textOf(key), isHit(i));
        });
      };
      state.request.lookup(packed).then(
        (hits) => {
          settle((i) => hits.has(i));
        },
        // A lookup that failed is a miss: the engine computes the block.
        () => {
          settle(() => false);
        },
      );
    }
    this.#toFlush.clear();
  }

  submitLoad(job: TierJob): void {
    const state = this.#state(job.requestId);
    this.#openJob(job.jobId);
    // The round ends with the load: what is asked again afterwards is asked anew.
    state.answers.clear();
    state.request.load(job.keys).then(
      (load) => {
        const isComplete = load.presentCount === load.count;
        if (isComplete) this.#loads.set(job.jobId, load);
        else load.release();
        this.#finish({ jobId: job.jobId, success: isComplete, ...(isComplete ? { slots: load.slots } : {}) });
      },
      () => {
        this.#finish({ jobId: job.jobId, success: false });
      },
    );
  }

  submitStore(job: TierJob): void {
    const state = this.#state(job.requestId);
    const { blocks } = job;
    if (!blocks) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `store job ${job.jobId} has no blocks; give the bytes of its keys back to back`,
      );
    }
    this.#openJob(job.jobId);
    state.request.store(job.keys, blocks).then(
      (result) => {
        this.#finish({ jobId: job.jobId, success: result.notStoredCount === 0 });
      },
      () => {
        this.#finish({ jobId: job.jobId, success: false });
      },
    );
  }

  getFinished(): TierJobResult[] {
    const finished = this.#finished;
    this.#finished = [];
    return finished;
  }

  releaseJob(jobId: number): void {
    this.#loads.get(jobId)?.release();
    this.#loads.delete(jobId);
  }

  onRequestFinished(requestId: string): void {
    const state = this.#requests.get(requestId);
    if (!state) return;
    this.#requests.delete(requestId);
    this.#toFlush.delete(state);
    state.request.finish();
  }

  #state(requestId: string): TierState {
    const state = this.#requests.get(requestId);
    if (state) return state;
    throw new KvpeerError(
      'KVPEER_INVALID_ARGUMENT',
      `request ${requestId} is not open; call onNewRequest first`,
    );
  }

  #openJob(jobId: number): void {
    if (this.#openJobs.has(jobId) || this.#loads.has(jobId)) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `job ${jobId} is open already; a job number names one job until it is finished and released`,
      );
    }
    this.#openJobs.add(jobId);
  }

  #finish(result: TierJobResult): void {
    this.#openJobs.delete(result.jobId);
    this.#finished.push(result);
  }
}

function textOf(key: Uint8Array): string {
  return Buffer.from(key.buffer, key.byteOffset, key.byteLength).toString('latin1');
}
