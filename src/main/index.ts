// What the package exports.

export { KvpeerError } from './errors.js';
export type { ErrorCode } from './errors.js';
export {
  blockKey,
  BlockHasher,
  configFingerprint,
  splitBlockKey,
  type BlockHashAlgorithm,
  type BlockHasherOptions,
  type BlockKeyOptions,
  type ExtraKeyForm,
  type FingerprintDescription,
  type HashContext,
  type MultimodalItem,
} from './hashes/index.js';
export type { PeerOptions } from './options.js';
export {
  buildParams,
  canonicalParams,
  formatIssue,
  IGNORED_HINTS,
  parseHintsJson,
  parseParams,
} from './params/index.js';
export type { IgnoredHint, KvTransferParams, ParamsIssue } from './params/index.js';
export { Peer } from './peer.js';
export type {
  Connection,
  Hits,
  Load,
  LoadRequest,
  OpenOptions,
  PackedKeys,
  PeerApi,
  PeerRequest,
  PeerStats,
  PinnedBlocks,
  Reservation,
  StoreResult,
} from './peer-api.js';
export type { Tier, TierJob, TierJobResult, TierRequest } from './tier-api.js';
export { createSidecar } from './sidecar/index.js';
export type {
  Decision,
  Prompt,
  PromptFault,
  Sidecar,
  SidecarHooks,
  SidecarOptions,
  SidecarParts,
} from './sidecar/index.js';
