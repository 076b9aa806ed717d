// The prompt of the token-in API: the token ids that stand in the body.

import type { Body } from './body.js';
import type { JsonObject } from './json-scan.js';

const MAX_TOKEN_ID = 0xffff_ffff;

/** @returns undefined when `token_ids` is absent or no list of whole numbers of 32 bits */
export function tokenIdsOf(body: Body, object: JsonObject): Uint32Array | undefined {
  const member = object.members.findLast(({ key }) => key === 'token_ids');
  if (member === undefined) return undefined;
  const value: unknown = JSON.parse(body.text(member.valueStart, member.valueEnd));
  if (!Array.isArray(value) || !value.every(isTokenId)) return undefined;
  return Uint32Array.from(value);
}

function isTokenId(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= MAX_TOKEN_ID;
}
