// kv_transfer_params that a trusted client wrote itself: checked, and handed on in the canonical form.

import { canonicalParams } from '../params/build.js';
import { parseParams } from '../params/parse.js';
import { formatIssue, type KvTransferParams, type ParamsIssue } from '../params/types.js';
import type { JsonEdit } from './json-edit.js';
import { nestedObject, type JsonMember, type JsonObject } from './json-scan.js';
import type { InferenceApi } from './routes.js';

/** The client's params are not legal: a 400 with every finding. */
export class ClientParamsFault extends Error {
  override readonly name = 'ClientParamsFault';
  readonly issues: readonly ParamsIssue[];

  constructor(issues: readonly ParamsIssue[]) {
    super(issues.map(formatIssue).join('. '));
    this.issues = issues;
  }
}

export interface ClientEdits {
  /** Puts the canonical form where the params stood. */
  readonly edits: ReadonlyMap<string, JsonEdit>;
  /** The canonical form, or undefined when the client sent none. */
  readonly params: Record<string, unknown> | undefined;
}

/** vLLM adds these to its extra arguments unseen; params have their own place. */
const UNCHECKED: readonly [string, JsonEdit] = [
  'vllm_xargs',
  { kind: 'inside', edits: new Map([['kv_transfer_params', { kind: 'remove' }]]), isMade: false },
];

/**
 * Reads the params at the top of the body, and for the generate API inside `sampling_params.extra_args` too. Where they
 * stand in both places, both are checked and each is made canonical.
 *
 * @throws ClientParamsFault
 */
export function clientEdits(body: Buffer, object: JsonObject, api: InferenceApi): ClientEdits {
  const edits = new Map<string, JsonEdit>([UNCHECKED]);
  const top = readMember(body, find(object, 'kv_transfer_params'));
  if (top !== undefined) edits.set('kv_transfer_params', { kind: 'set', json: JSON.stringify(top) });
  const inside = api === 'generate' ? readMember(body, findInside(body, object)) : undefined;
  if (inside !== undefined) {
    const edit: JsonEdit = { kind: 'set', json: JSON.stringify(inside) };
    const extraArgs: JsonEdit = {
      kind: 'inside',
      edits: new Map([['kv_transfer_params', edit]]),
      isMade: false,
    };
    edits.set('sampling_params', {
      kind: 'inside',
      edits: new Map([['extra_args', extraArgs]]),
      isMade: false,
    });
  }
  return { edits, params: top ?? inside };
}

/** Of a repeated key the last member counts, as in the engines' parsers. */
function find(object: JsonObject | undefined, key: string): JsonMember | undefined {
  return object?.members.findLast((member) => member.key === key);
}

function findInside(body: Buffer, object: JsonObject): JsonMember | undefined {
  const within = (outer: JsonObject | undefined, key: string): JsonObject | undefined => {
    const member = find(outer, key);
    return member === undefined ? undefined : nestedObject(body, member);
  };
  return find(within(within(object, 'sampling_params'), 'extra_args'), 'kv_transfer_params');
}

function readMember(body: Buffer, member: JsonMember | undefined): Record<string, unknown> | undefined {
  if (member === undefined) return undefined;
  const value: unknown = JSON.parse(body.toString('utf8', member.valueStart, member.valueEnd));
  return value === null ? undefined : canonicalParams(checked(value));
}

function checked(value: unknown): KvTransferParams {
  const result = parseParams(value, { connector: 'multi' });
  if (!result.ok) throw new ClientParamsFault(result.errors);
  return result.params;
}
