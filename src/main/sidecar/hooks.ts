// The seam for a program that wants to know what was decided for a request: an embedded peer starts its pull here.

import type { Prompt, PromptFault } from './prompt.js';
import type { InferenceApi } from './routes.js';

/** What the sidecar decided for the request that its own model server will compute. */
export interface Decision {
  readonly api: InferenceApi;
  /** Path and query of the leg. */
  readonly path: string;
  /** `remote_prefiller` in the decode leg of a prefill/decode request, else `remote_kv_source`. */
  readonly kind: 'decode' | 'pull';
  /** kv_transfer_params in canonical form, as the engine gets them. */
  readonly params: Readonly<Record<string, unknown>>;
  /** Data-parallel rank whose model server gets the request. */
  readonly rank: number;
  /**
   * The prompt of `/inference/v1/generate`, where it is in the body; undefined for every other API and for what is no
   * list of token ids. Parsed when asked for, outside the sidecar's own path.
   */
  tokenIds(): Uint32Array | undefined;
  /**
   * The same with what else goes into the hashes of its blocks, or why they cannot be computed from the body; undefined
   * for every other API. Parsed when asked for.
   */
  prompt(): Prompt | PromptFault | undefined;
  /** Fires when the request ends for any reason: answered, failed, or the client left. */
  readonly signal: AbortSignal;
}

export interface SidecarHooks {
  /**
   * Called before the leg is sent; in profile B's prefill/decode path before the prefill leg, so that a pull can run
   * beside it. Must not throw and must not wait: what it starts runs on its own, bounded by `signal`.
   */
  onDecision?(decision: Decision): void;
}
