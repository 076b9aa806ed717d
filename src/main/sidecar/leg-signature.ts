// Tells the prefill leg of another sidecar from a client: its kv_transfer_params are signed, and only then kept.

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import type { Body } from './body.js';
import type { JsonMember, JsonObject } from './json-scan.js';

/** On a prefill leg, since the prefiller may stand behind a sidecar of its own. */
export const SIGNATURE_HEADER = 'x-kvpeer-leg-signature';

/** Params of a leg have two ids, two hosts and two ports at most. */
const MAX_SIGNED_BYTES = 4096;

/**
 * Signs params with a key that the sidecars of one deployment share. The signature covers the params and nothing else:
 * whoever sees it can only repeat the same params, whose id is used up. Without a shared key a sidecar knows its own
 * legs only (another rank of the same pod).
 */
export class LegSigner {
  readonly #key: Buffer;

  constructor(key: Buffer = randomBytes(32)) {
    this.#key = key;
  }

  sign(paramsJson: string | Buffer): string {
    return createHmac('sha256', this.#key).update(paramsJson).digest('base64url');
  }

  /** Whether every kv_transfer_params of the body are, byte for byte, those that were signed. */
  isSigned(body: Body, object: JsonObject, signature: string): boolean {
    const found = paramsMembers(object);
    return found.length > 0 && found.every((member) => this.#isMatch(body, member, signature));
  }

  #isMatch(body: Body, { valueStart, valueEnd }: JsonMember, signature: string): boolean {
    if (valueEnd - valueStart > MAX_SIGNED_BYTES) return false;
    const expected = Buffer.from(this.sign(body.slice(valueStart, valueEnd)));
    const given = Buffer.from(signature);
    return given.length === expected.length && timingSafeEqual(given, expected);
  }
}

/** Every place where an engine would read them. */
function paramsMembers(object: JsonObject): JsonMember[] {
  const named = (objects: readonly JsonObject[], key: string): JsonMember[] =>
    objects.flatMap(({ members }) => members.filter((member) => member.key === key));
  const inside = (members: readonly JsonMember[]): JsonObject[] =>
    members.map((member) => member.object).filter((found) => found !== undefined);
  const extraArgs = inside(named(inside(named([object], 'sampling_params')), 'extra_args'));
  const xargs = inside(named([object], 'vllm_xargs'));
  return named([object, ...extraArgs, ...xargs], 'kv_transfer_params');
}
