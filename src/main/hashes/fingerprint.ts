// vLLM's config_fingerprint: a hash over what decides the bytes of a block (wire reference section 2.5).

import { createHash } from 'node:crypto';

import { z } from 'zod';

const layers = z.union([
  z.array(z.string().min(1)).min(1),
  z.strictObject({
    /** Names of layers 0 .. count - 1: `{}` stands for the number. */
    pattern: z.string().refine((text) => text.includes('{}')),
    count: z.int().min(1).max(100_000),
  }),
]);
const size = z.int().min(1).default(1);

/** The model and its parallelism, as the engine has them. */
export const fingerprintSchema = z.strictObject({
  /** `--model` exactly as the engine was given it; a local path and a hub name of one model differ. */
  model: z.string().min(1),
  /** dtype of the KV cache: the model's (`bfloat16`) with `--kv-cache-dtype auto`, else the cache's (`fp8`). */
  dtype: z.string().min(1),
  tokensPerHash: z.int().min(1),
  blocksPerChunk: size,
  tensorParallel: size,
  pipelineParallel: size,
  prefillContextParallel: size,
  decodeContextParallel: size,
  /** One KV cache group of full attention without MLA: the sizes above do not count then. */
  parallelAgnostic: z.boolean(),
  /** Rows that are the same on every rank (compact MLA). */
  replicatedLayout: z.boolean().default(false),
  /** `v1-hnd`, `v1-nhd`: with `canonical_layout` only. */
  canonicalFormat: z.string().min(1).optional(),
  groups: z.array(z.strictObject({ tokensPerBlock: z.int().min(1), layers })).min(1),
});

export type FingerprintDescription = z.input<typeof fingerprintSchema>;

/**
 * The fingerprint that vLLM computes of this model and parallelism: 16 hexadecimal digits. Fields are those of vLLM
 * 0.33; other releases may hash others.
 *
 * @throws ZodError when the description is wrong
 */
export function configFingerprint(description: FingerprintDescription): string {
  const found = fingerprintSchema.parse(description);
  const isAgnostic = found.parallelAgnostic || found.replicatedLayout;
  const fields = {
    blocks_per_file: found.blocksPerChunk,
    ...(found.canonicalFormat === undefined ? {} : { canonical_format: found.canonicalFormat }),
    dcp_size: isAgnostic ? 1 : found.decodeContextParallel,
    dtype: found.dtype,
    inference_engine: 'vllm',
    kv_cache_groups: found.groups.map((group) => ({
      layer_names: layerNames(group.layers),
      tokens_per_block: group.tokensPerBlock,
    })),
    model_name: found.model,
    ...(isAgnostic ? {} : { parallel_agnostic: false }),
    pcp_size: isAgnostic ? 1 : found.prefillContextParallel,
    pp_size: isAgnostic ? 1 : found.pipelineParallel,
    ...(found.replicatedLayout ? { replicated_layout: true } : {}),
    tokens_per_hash: found.tokensPerHash,
    tp_size: isAgnostic ? 1 : found.tensorParallel,
  };
  // Keys stand in alphabetical order above, as Python's json.dumps(sort_keys=True) writes them.
  return createHash('sha256').update(asciiJson(fields)).digest('hex').slice(0, 16);
}

function layerNames(found: z.infer<typeof layers>): readonly string[] {
  if (!('pattern' in found)) return found;
  return Array.from({ length: found.count }, (_, i) => found.pattern.replaceAll('{}', String(i)));
}

/** JSON as Python writes it by default: what is not printable ASCII as \u and four digits. */
function asciiJson(value: unknown): string {
  return JSON.stringify(value).replaceAll(
    /[\u007f-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
