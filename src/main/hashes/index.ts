// vLLM's names for blocks and for a cache's layout, computed outside of it.

export {
  BLOCK_HASH_BYTES,
  blockKey,
  BlockHasher,
  splitBlockKey,
  type BlockHashAlgorithm,
  type BlockHasherOptions,
  type BlockKeyOptions,
} from './block-hasher.js';
export type { ExtraKeyForm, HashContext, MultimodalItem } from './extra-keys.js';
export { configFingerprint, type FingerprintDescription } from './fingerprint.js';
