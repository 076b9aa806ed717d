// kv_transfer_params that a trusted client wrote itself: checked, and handed on in the canonical form.

import { canonicalParams } from '../params/build.js';
import { parseParams } from '../params/parse.js';
import { formatIssue, type KvTransferParams, type ParamsIssue } from '../params/types.js';
import { editJson, type JsonEdit } from './json-edit.js';
import { Body } from './body.js';
import { JsonFault, scanJsonObject, type JsonMember, type JsonObject } from './json-scan.js';
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
export function clientEdits(body: Body, object: JsonObject, api: InferenceApi): ClientEdits {
  const edits = new Map<string, JsonEdit>([UNCHECKED]);
  const top = readMember(body, find(object, 'kv_transfer_params'));
  if (top !== undefined) edits.set('kv_transfer_params', { kind: 'set', json: top.json });
  const inside = api === 'generate' ? readMember(body, findInside(object)) : undefined;
  if (inside !== undefined) {
    const edit: JsonEdit = { kind: 'set', json: inside.json };
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
  return { edits, params: top?.params ?? inside?.params };
}

/** Of a repeated key the last member counts, as in the engines' parsers. */
function find(object: JsonObject | undefined, key: string): JsonMember | undefined {
  return object?.members.findLast((member) => member.key === key);
}

function findInside(object: JsonObject): JsonMember | undefined {
  const samplingParams = find(object, 'sampling_params')?.object;
  return find(find(samplingParams, 'extra_args')?.object, 'kv_transfer_params');
}

/** Params of one place. */
interface ReadParams {
  readonly params: Record<string, unknown>;
  readonly json: string;
}

/** Far more than eight sources and the block ids of other connectors need; longer ones are not parsed. */
const MAX_PARAMS_BYTES = 1 << 20;

function readMember(body: Body, member: JsonMember | undefined): ReadParams | undefined {
  if (member === undefined) return undefined;
  const { valueStart, valueEnd } = member;
  if (valueEnd - valueStart > MAX_PARAMS_BYTES) {
    throw new JsonFault(`kv_transfer_params have more than ${MAX_PARAMS_BYTES} bytes; send fewer`);
  }
  const bytes = body.slice(valueStart, valueEnd);
  const value: unknown = JSON.parse(bytes.toString('utf8'));
  if (value === null) return undefined;
  const params = canonicalParams(checked(value));
  return { params, json: canonicalText(bytes, params) };
}

/** The roles in canonical form; what is there for other connectors stays byte for byte, with every digit. */
function canonicalText(bytes: Buffer, params: Record<string, unknown>): string {
  const roles = ROLES.filter((role) => Object.hasOwn(params, role));
  const edits = new Map<string, JsonEdit>(
    roles.map((role) => [role, { kind: 'set', json: JSON.stringify(params[role]) }]),
  );
  return Buffer.concat(editJson(Body.of(bytes), scanJsonObject(bytes), edits)).toString('utf8');
}

const ROLES = ['remote_decoder', 'remote_prefiller', 'remote_kv_source'];

function checked(value: unknown): KvTransferParams {
  const result = parseParams(value, { connector: 'multi' });
  if (!result.ok) throw new ClientParamsFault(result.errors);
  return result.params;
}
