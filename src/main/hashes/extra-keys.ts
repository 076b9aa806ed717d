// What vLLM hashes of a block beside its tokens: adapter, multimodal items, cache salt, prompt embeddings.

import type { CborValue } from './cbor.js';

/** A multimodal item of the prompt: the placeholder tokens that stand for it. */
export interface MultimodalItem {
  /** vLLM's identifier of the item: the hash of its content unless the user gave one. */
  readonly identifier: string;
  /** First placeholder token, counted from the start of the prompt. */
  readonly offset: number;
  /** Number of placeholder tokens. */
  readonly length: number;
}

export interface HashContext {
  readonly lora?: { readonly name: string; readonly path: string };
  /** In the order of their offsets. */
  readonly multimodal?: readonly MultimodalItem[];
  /** Of the request; enters the first block only, and through it all others. */
  readonly cacheSalt?: string;
  /** SHA-256 of the prompt embeddings of block i, for prompts given as embeddings. */
  readonly promptEmbeds?: (blockIndex: number) => Uint8Array;
}

/**
 * How the entries are written. `tagged` is vLLM 0.33: each entry begins with its kind, and an adapter's path counts.
 * `bare` is what earlier releases wrote: names, pairs and salts as they are.
 */
export type ExtraKeyForm = 'tagged' | 'bare';

/** The third part of what a block's hash is made of, or null when there is nothing beside the tokens. */
export function extraKeysOf(
  context: HashContext,
  form: ExtraKeyForm,
  firstToken: number,
  tokenCount: number,
): CborValue {
  const isTagged = form === 'tagged';
  const keys: CborValue[] = [];
  const { lora, multimodal = [], cacheSalt, promptEmbeds } = context;
  if (lora) keys.push(isTagged ? ['lora', lora.name, lora.path] : lora.name);
  for (const { identifier, offset, length } of multimodal) {
    if (offset >= firstToken + tokenCount || offset + length <= firstToken) continue;
    // Negative when the item began in an earlier block.
    const relative = offset - firstToken;
    keys.push(isTagged ? ['mm', identifier, relative] : [identifier, relative]);
  }
  if (firstToken === 0 && cacheSalt) keys.push(isTagged ? ['cache_salt', cacheSalt] : cacheSalt);
  if (promptEmbeds) {
    const digest = promptEmbeds(firstToken / tokenCount);
    keys.push(isTagged ? ['prompt_embeds', digest] : digest);
  }
  return keys.length === 0 ? null : keys;
}

/**
 * What KV events say of a block in the place of its extra keys, as vLLM 0.33 publishes them: names and salts as they are,
 * items with their offset. Undefined when there is nothing beside the tokens.
 */
export function eventKeysOf(
  context: HashContext,
  firstToken: number,
  tokenCount: number,
): (string | readonly [string, number])[] | undefined {
  const { lora, multimodal = [], cacheSalt } = context;
  const keys: (string | readonly [string, number])[] = [];
  if (lora) keys.push(lora.name);
  for (const { identifier, offset, length } of multimodal) {
    if (offset >= firstToken + tokenCount || offset + length <= firstToken) continue;
    keys.push([identifier, offset - firstToken]);
  }
  if (firstToken === 0 && cacheSalt) keys.push(cacheSalt);
  return keys.length === 0 ? undefined : keys;
}
