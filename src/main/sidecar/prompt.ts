// The prompt of the token-in API as it stands in a body: token ids, and what else goes into the hashes of its blocks.

import type { MultimodalItem } from '../hashes/index.js';
import type { Body } from './body.js';
import { JsonFault, scanJsonObject, type JsonObject } from './json-scan.js';
import { tokenIdsOf } from './token-ids.js';

export interface Prompt {
  readonly tokenIds: Uint32Array;
  /** As the client names it: the base model, or an adapter. Undefined: the base model. */
  readonly model: string | undefined;
  readonly cacheSalt: string | undefined;
  /** In the order of their offsets, none over another. */
  readonly multimodal: readonly MultimodalItem[];
}

/** Why the hashes of a prompt cannot be computed from its body. */
export type PromptFault = 'no-tokens' | 'unknown-model' | 'unknown-salt' | 'unknown-features';

/** Placeholders of multimodal items, at most: each one is held against each block. */
const MAX_ITEMS = 1024;
const MAX_FEATURE_BYTES = 1 << 20;
/** Python hashes such text otherwise than it is written here, or not at all. */
const LONE_SURROGATE = /\p{Surrogate}/u;

/** Reads what vLLM 0.33 makes a request of; whatever it might read otherwise is a fault. */
export function promptOf(body: Body, object: JsonObject): Prompt | PromptFault {
  const tokenIds = tokenIdsOf(body, object);
  if (tokenIds === undefined) return 'no-tokens';
  const model = textOf(body, object, 'model');
  if (model === FAULT) return 'unknown-model';
  const cacheSalt = textOf(body, object, 'cache_salt');
  if (cacheSalt === FAULT) return 'unknown-salt';
  const multimodal = featuresOf(body, object);
  if (multimodal === FAULT) return 'unknown-features';
  return { tokenIds, model, cacheSalt, multimodal };
}

const FAULT = Symbol('fault');

function valueOf(body: Pick<Body, 'slice'> | Buffer, object: JsonObject, name: string): Buffer | undefined {
  const member = object.members.findLast(({ key }) => key === name);
  if (member === undefined) return undefined;
  const { valueStart, valueEnd } = member;
  return Buffer.isBuffer(body) ? body.subarray(valueStart, valueEnd) : body.slice(valueStart, valueEnd);
}

/** Absent, null and empty text are the same to vLLM. */
function textOf(body: Body, object: JsonObject, name: string): string | undefined | typeof FAULT {
  const bytes = valueOf(body, object, name);
  if (bytes === undefined) return undefined;
  const value: unknown = JSON.parse(bytes.toString());
  if (value === null || value === '') return undefined;
  return isText(value) ? value : FAULT;
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && !LONE_SURROGATE.test(value);
}

/** `features`: hashes and placeholders by modality. Its data, which may be large, is not looked at. */
function featuresOf(body: Body, object: JsonObject): MultimodalItem[] | typeof FAULT {
  const bytes = valueOf(body, object, 'features');
  if (bytes === undefined || bytes.equals(NULL)) return [];
  const features = objectIn(bytes);
  if (features === undefined) return FAULT;
  const hashes = listsIn(bytes, features, 'mm_hashes');
  const placeholders = listsIn(bytes, features, 'mm_placeholders');
  if (hashes === undefined || placeholders === undefined) return FAULT;
  const modalities = Object.keys(hashes);
  if (modalities.length !== Object.keys(placeholders).length) return FAULT;
  const items: MultimodalItem[] = [];
  for (const modality of modalities) {
    const identifiers = hashes[modality];
    const places = Object.hasOwn(placeholders, modality) ? placeholders[modality] : [];
    if (identifiers.length !== places.length || items.length + places.length > MAX_ITEMS) return FAULT;
    for (const [i, identifier] of identifiers.entries()) {
      const place = places[i];
      if (!isText(identifier) || !isPlace(place)) return FAULT;
      items.push({ identifier, offset: place.offset, length: place.length });
    }
  }
  items.sort((a, b) => a.offset - b.offset);
  const isOver = items.some((item, i) => i > 0 && items[i - 1].offset + items[i - 1].length > item.offset);
  return isOver ? FAULT : items;
}

const NULL = Buffer.from('null');

function objectIn(bytes: Buffer): JsonObject | undefined {
  try {
    return scanJsonObject(bytes);
  } catch (error) {
    if (error instanceof JsonFault) return undefined;
    throw error;
  }
}

function listsIn(
  bytes: Buffer,
  object: JsonObject,
  name: string,
): Readonly<Record<string, readonly unknown[]>> | undefined {
  const text = valueOf(bytes, object, name);
  if (text === undefined || text.length > MAX_FEATURE_BYTES) return undefined;
  const value: unknown = JSON.parse(text.toString());
  return isLists(value) ? value : undefined;
}

function isLists(value: unknown): value is Readonly<Record<string, readonly unknown[]>> {
  return (
    typeof value === 'object' &&
    value !== null &&
    !Array.isArray(value) &&
    Object.values(value).every((list) => Array.isArray(list))
  );
}

function isPlace(value: unknown): value is { readonly offset: number; readonly length: number } {
  if (typeof value !== 'object' || value === null || !('offset' in value) || !('length' in value))
    return false;
  const { offset, length } = value;
  return (
    Number.isSafeInteger(offset) && Number(offset) >= 0 && Number.isSafeInteger(length) && Number(length) > 0
  );
}
