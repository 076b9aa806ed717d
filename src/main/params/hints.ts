// kv_hints, the envelope that KV routers send beside kv_transfer_params: read with patience, and turned into sources.

import { isSafeNumber, parse } from 'lossless-json';

import { isSameAddress, parseHostPort } from './address.js';
import { isFields, type Fields } from './findings.js';
import { HashFilter } from './hash-filter.js';
import { MAX_SOURCES, type KvTransferParams, type PeerAddress, type RemoteKvSource } from './types.js';

/**
 * Why a hint, or a part of one, has no effect. A hint is advice: whatever is wrong with it is counted under one of
 * these, and the request goes on without it.
 */
export const IGNORED_HINTS = {
  malformed: 'kv_hints are no JSON, no object, or have no list of actions',
  'too-large': 'the JSON text, or a list in it, is longer than its bound',
  'protocol-version': 'the envelope has another protocol_version than 0.1',
  action: 'an action is no object with a payload',
  'action-type': 'an action of a type that is not known here',
  'action-version': 'kv.fetch of another version than 1.0',
  mode: 'kv.fetch in another mode than copy',
  endpoint: 'source_control_endpoint is not tcp://host:port',
  'endpoint-denied': 'the source is not in the allow-list',
  self: 'the source is this node itself',
  'block-hash': 'a block hash is no unsigned 64-bit integer, or lost digits before it came here',
  'no-hashes': 'kv.fetch names no block',
  'too-many-sources': 'more sources than one request may have',
  'unknown-field': 'a field that is not known here',
  'params-win': 'kv_transfer_params name a peer themselves, or forbid a pull',
} as const;

export type IgnoredHint = keyof typeof IGNORED_HINTS;
export type CountIgnoredHint = (reason: IgnoredHint) => void;

/** One usable `kv.fetch`: where, and which blocks. */
export interface FetchHint extends PeerAddress {
  readonly hashes: readonly bigint[];
}

const PROTOCOL_VERSION = '0.1';
const FETCH = { type: 'kv.fetch', version: '1.0' };
const ENVELOPE_FIELDS = ['protocol_version', 'message_id', 'actions'];
const ACTION_FIELDS = ['action_id', 'action_type', 'action_version', 'payload'];
const PAYLOAD_FIELDS = ['source_control_endpoint', 'block_hashes', 'mode'];
/** 65,536 hashes of 20 digits are 1.4 MB. Text that is all names of members holds the event loop for 0.1 s a MiB. */
const MAX_JSON_LENGTH = 2 << 20;
const MAX_ACTIONS = 64;
/** The wire's bound for keys in a list (design section 6, rule 5). */
const MAX_HASHES = 65_536;
const MAX_HASH = (1n << 64n) - 1n;

/**
 * Reads JSON text without losing digits: an integer beyond 2^53 becomes a bigint, which `JSON.parse` would round.
 *
 * @throws SyntaxError, or RangeError for text nested too deeply
 */
export function parseHintsJson(text: string): unknown {
  return parse(text, undefined, { parseNumber, onDuplicateKey: ({ newValue }) => newValue });
}

function parseNumber(text: string): number | bigint {
  const value = Number(text);
  // 9007199254740991.4 and 1.00000000000000000001 are no integers, but their nearest doubles are.
  if (/[.eE]/.test(text)) return Number.isSafeInteger(value) && !isSafeNumber(text) ? NaN : value;
  // 20 digits hold every unsigned 64-bit integer; the time to read an integer grows with the square of its length.
  return Number.isSafeInteger(value) || !/^\d{1,20}$/.test(text) ? value : BigInt(text);
}

/**
 * The usable fetches of an envelope, in its order. Never throws.
 *
 * @param value the `kv_hints` of a request: parsed, with integers beyond 2^53 as bigint, or JSON text as string or bytes
 */
export function readHints(value: unknown, ignored: CountIgnoredHint): readonly FetchHint[] {
  try {
    return readEnvelope(value, ignored);
  } catch {
    // A getter or a proxy of the caller's that throws.
    ignored('malformed');
    return [];
  }
}

function readEnvelope(value: unknown, ignored: CountIgnoredHint): readonly FetchHint[] {
  const envelope =
    typeof value === 'string' || value instanceof Uint8Array ? readText(value, ignored) : value;
  if (envelope === undefined) return [];
  if (!isFields(envelope)) {
    ignored('malformed');
    return [];
  }
  countUnknown(envelope, ENVELOPE_FIELDS, ignored);
  if (own(envelope, 'protocol_version') !== PROTOCOL_VERSION) {
    ignored('protocol-version');
    return [];
  }
  const actions = own(envelope, 'actions');
  if (!Array.isArray(actions)) {
    ignored('malformed');
    return [];
  }
  if (actions.length > MAX_ACTIONS) ignored('too-large');
  return actions.slice(0, MAX_ACTIONS).flatMap((action: unknown) => readAction(action, ignored));
}

function readText(text: string | Uint8Array, ignored: CountIgnoredHint): unknown {
  if (text.length > MAX_JSON_LENGTH) {
    ignored('too-large');
    return undefined;
  }
  try {
    return parseHintsJson(typeof text === 'string' ? text : Buffer.from(text).toString('utf8'));
  } catch {
    ignored('malformed');
    return undefined;
  }
}

function readAction(action: unknown, ignored: CountIgnoredHint): readonly FetchHint[] {
  if (!isFields(action)) {
    ignored('action');
    return [];
  }
  countUnknown(action, ACTION_FIELDS, ignored);
  if (own(action, 'action_type') !== FETCH.type) ignored('action-type');
  else if (own(action, 'action_version') !== FETCH.version) ignored('action-version');
  else return readPayload(own(action, 'payload'), ignored);
  return [];
}

function readPayload(payload: unknown, ignored: CountIgnoredHint): readonly FetchHint[] {
  if (!isFields(payload)) {
    ignored('action');
    return [];
  }
  countUnknown(payload, PAYLOAD_FIELDS, ignored);
  const mode = own(payload, 'mode');
  const endpoint = own(payload, 'source_control_endpoint');
  const address = typeof endpoint === 'string' ? parseEndpoint(endpoint) : undefined;
  if (mode !== undefined && mode !== null && mode !== 'copy') ignored('mode');
  else if (address === undefined) ignored('endpoint');
  else {
    const hashes = readHashes(own(payload, 'block_hashes'), ignored);
    if (hashes.length > 0) return [{ ...address, hashes }];
    ignored('no-hashes');
  }
  return [];
}

function parseEndpoint(text: string): PeerAddress | undefined {
  const match = /^tcp:\/\/(.+)$/.exec(text);
  if (match === null) return undefined;
  const address = parseHostPort(match[1]);
  return 'reason' in address ? undefined : address;
}

function readHashes(value: unknown, ignored: CountIgnoredHint): readonly bigint[] {
  if (!Array.isArray(value)) return [];
  if (value.length > MAX_HASHES) ignored('too-large');
  const hashes: bigint[] = [];
  for (const item of value.slice(0, MAX_HASHES) as unknown[]) {
    const hash = typeof item === 'number' && Number.isSafeInteger(item) ? BigInt(item) : item;
    if (typeof hash === 'bigint' && hash >= 0n && hash <= MAX_HASH) hashes.push(hash);
    else ignored('block-hash');
  }
  return hashes;
}

function countUnknown(fields: Fields, known: readonly string[], ignored: CountIgnoredHint): void {
  for (const key of Object.keys(fields)) if (!known.includes(key)) ignored('unknown-field');
}

function own(fields: Fields, key: string): unknown {
  return Object.hasOwn(fields, key) ? fields[key] : undefined;
}

export interface HintRules {
  /** The allow-list that header and hint have in common. Default: everything is allowed. */
  readonly allows?: ((host: string, port: number) => boolean) | undefined;
  /** Addresses of the node that computes the request: nobody pulls from itself. */
  readonly self?: readonly PeerAddress[] | undefined;
  readonly ignored: CountIgnoredHint;
}

/**
 * Params with the sources of the hints as `remote_kv_source`, each with its hashes as a filter: keys that it was not
 * named for are not asked for there. Params that name a peer, or forbid a pull, win: they come back as they are.
 *
 * @param hints as for `readHints`; undefined when the request has none
 */
export function withHints(params: KvTransferParams, hints: unknown, rules: HintRules): KvTransferParams {
  if (hints === undefined || hints === null) return params;
  if (params.combination !== 'none' || params.isPullOff) {
    rules.ignored('params-win');
    return params;
  }
  const sources = mergeSources(readHints(hints, rules.ignored), rules);
  if (sources.length === 0) return params;
  return { ...params, combination: 'remote_kv_source', remoteKvSource: sources };
}

/** Several fetches from one source are one source with all their hashes. */
function mergeSources(fetches: readonly FetchHint[], rules: HintRules): readonly RemoteKvSource[] {
  const merged: { address: PeerAddress; hashes: bigint[] }[] = [];
  for (const { host, port, hashes } of fetches) {
    const address = { host, port };
    const known = merged.find((source) => isSameAddress(source.address, address));
    if (known !== undefined) {
      const room = MAX_HASHES - known.hashes.length;
      if (hashes.length > room) rules.ignored('too-large');
      known.hashes.push(...hashes.slice(0, room));
    } else if (rules.self?.some((own) => isSameAddress(own, address)) === true) rules.ignored('self');
    else if (rules.allows?.(host, port) === false) rules.ignored('endpoint-denied');
    else if (merged.length === MAX_SOURCES) rules.ignored('too-many-sources');
    else merged.push({ address, hashes: [...hashes] });
  }
  return merged.map(({ address, hashes }) => ({
    ...address,
    kvRequestId: undefined,
    transport: undefined,
    filter: new HashFilter(BigUint64Array.from(hashes)),
  }));
}
