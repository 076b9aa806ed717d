// Reads kv_transfer_params field by field into typed parts, and collects everything that is wrong on the way.

import { formatHostPort, isPort, isSameAddress, parseHost, parsePeerUrl } from './address.js';
import { checkFields, describe, Findings, isFields, join, unknownKey, type Fields } from './findings.js';
import {
  MAX_ID_BYTES,
  MAX_SOURCES,
  type KvTransferParams,
  type ParamsResult,
  type ParseParamsOptions,
  type RemoteDecoder,
  type RemoteKvSource,
  type RemotePrefiller,
} from './types.js';
import { checkTogether, combinationOf } from './validate.js';

const ROOT = 'kv_transfer_params';
const ROLES = ['remote_decoder', 'remote_prefiller', 'remote_kv_source'] as const;
/** Keys of the same object that other parts of vLLM's offloading connector read. */
const CONNECTOR_KEYS = ['max_offload_tokens', 'max_load_tokens', 'kv_load_tiers'] as const;
/** Renamed between 2026-06-30 and 2026-07-22; no side reads the old names, the request is then recomputed in silence. */
const RETIRED = new Map([
  ['prefill', 'remote_prefiller'],
  ['decode', 'remote_decoder'],
  ['p2p', 'remote_kv_source'],
]);
/** Flat keys of NIXL's own connector and of the first drafts, with what does the same thing here. */
const OTHER_CONNECTOR = new Map([
  ['do_remote_prefill', 'remote_prefiller'],
  ['do_remote_decode', 'remote_decoder'],
  ['do_p2p_fetch', 'remote_kv_source'],
]);
/** Travel with the flat keys; without them they are stray. */
const OTHER_CONNECTOR_COMPANIONS = new Set([
  'remote_engine_id',
  'remote_block_ids',
  'remote_request_id',
  'remote_host',
  'remote_port',
  'tp_size',
]);
const ADDRESS_KEYS = ['remote_host', 'remote_port', 'remote_url'] as const;
const PEER_KEYS = ['kv_request_id', ...ADDRESS_KEYS] as const;

/**
 * Parses and validates the `kv_transfer_params` of a request: the rules of the llm-d contract, section 3.3, except
 * those over two legs (`validateLegs`) and over time (`UsedIds`).
 *
 * @param value what stands in the request, as `JSON.parse` gives it; undefined when the key is absent
 * @returns all errors and warnings at once, never throws
 */
export function parseParams(value: unknown, options: ParseParamsOptions = {}): ParamsResult {
  const findings = new Findings(options.strict ?? false);
  const params = readParams(value, findings, options);
  if (findings.errors.length > 0) return { ok: false, errors: findings.errors, warnings: findings.warnings };
  return { ok: true, params, warnings: findings.warnings };
}

function readParams(value: unknown, findings: Findings, options: ParseParamsOptions): KvTransferParams {
  if (value !== undefined && !isFields(value)) {
    const remedy = 'give an object, or leave the key out';
    findings.error('NOT_AN_OBJECT', ROOT, `is ${describe(value)}, not an object`, remedy);
  }
  const fields = isFields(value) ? value : {};
  checkTopLevelKeys(fields, findings, options.connector ?? 'offloading');
  const present = ROLES.filter((role) => Object.hasOwn(fields, role));
  const parts = {
    combination: combinationOf(present, ROOT, findings.error),
    remoteDecoder: present.includes('remote_decoder')
      ? readDecoder(fields.remote_decoder, findings)
      : undefined,
    remotePrefiller: present.includes('remote_prefiller')
      ? readPrefiller(fields.remote_prefiller, findings)
      : undefined,
    remoteKvSource: present.includes('remote_kv_source')
      ? readSources(fields.remote_kv_source, findings)
      : undefined,
    isPullOff: Array.isArray(fields.kv_load_tiers) && fields.kv_load_tiers.length === 0,
    passThrough: Object.fromEntries(Object.entries(fields).filter(([key]) => !isRole(key))),
  };
  checkTogether(parts, options.self ?? [], ROOT, findings.error);
  return parts;
}

function checkTopLevelKeys(fields: Fields, findings: Findings, connector: 'offloading' | 'multi'): void {
  for (const key of Object.keys(fields)) {
    const path = join(ROOT, key);
    const renamed = RETIRED.get(key);
    const here = OTHER_CONNECTOR.get(key);
    if (isRole(key)) continue;
    if (renamed !== undefined) {
      findings.error('RETIRED_KEY', path, `was renamed to ${renamed}`, `write ${renamed}`);
    } else if (here !== undefined || OTHER_CONNECTOR_COMPANIONS.has(key)) {
      if (connector === 'multi') continue;
      const remedy = `use ${here ?? 'the fields inside remote_prefiller or remote_kv_source'}`;
      findings.doubt('OTHER_CONNECTOR', path, 'is a key of another connector and is ignored here', remedy);
    } else if (CONNECTOR_KEYS.includes(key as (typeof CONNECTOR_KEYS)[number])) {
      checkConnectorValue(key, fields[key], findings);
    } else {
      unknownKey(path, key, [...ROLES, ...CONNECTOR_KEYS], findings);
    }
  }
}

/** vLLM takes a wrong value for no value and goes on; so does this, aloud. */
function checkConnectorValue(key: string, value: unknown, findings: Findings): void {
  const path = join(ROOT, key);
  if (key === 'kv_load_tiers') {
    if (Array.isArray(value)) return;
    const remedy = 'give a list of {medium, locality}';
    findings.doubt('VALUE_IGNORED', path, `is ${describe(value)}, not a list`, remedy);
  } else if (typeof value !== 'number' || !Number.isInteger(value) || value < 0) {
    const remedy = 'give a whole number of tokens, 0 or more';
    findings.doubt('VALUE_IGNORED', path, `is ${describe(value)} and counts as no limit`, remedy);
  }
}

function readDecoder(value: unknown, findings: Findings): RemoteDecoder | undefined {
  const path = join(ROOT, 'remote_decoder');
  if (!checkFields(value, path, findings)) return undefined;
  for (const key of Object.keys(value)) {
    if (isAddressKey(key)) {
      const remedy = 'leave it out: the decoder dials the prefiller';
      findings.error('DECODER_ADDRESS', join(path, key), 'has no place in remote_decoder', remedy);
    } else if (key !== 'kv_request_id') {
      unknownKey(join(path, key), key, ['kv_request_id'], findings);
    }
  }
  const kvRequestId = readId(value, path, findings);
  return kvRequestId === undefined ? undefined : { kvRequestId };
}

function readPrefiller(value: unknown, findings: Findings): RemotePrefiller | undefined {
  const path = join(ROOT, 'remote_prefiller');
  if (!checkFields(value, path, findings)) return undefined;
  checkPeerKeys(value, path, findings);
  const kvRequestId = readId(value, path, findings);
  const address = readAddress(value, path, findings);
  return kvRequestId === undefined || address === undefined ? undefined : { kvRequestId, ...address };
}

function readSources(value: unknown, findings: Findings): readonly RemoteKvSource[] | undefined {
  const path = join(ROOT, 'remote_kv_source');
  if (!Array.isArray(value)) {
    const source = readSource(value, path, findings);
    return source === undefined ? undefined : [source];
  }
  if (value.length < 1 || value.length > MAX_SOURCES) {
    const remedy = `name 1 to ${MAX_SOURCES} sources, the preferred one first`;
    findings.error('SOURCE_COUNT', path, `is a list of ${value.length} sources`, remedy);
    return undefined;
  }
  const sources: RemoteKvSource[] = [];
  for (const [index, item] of value.entries()) {
    const at = `${path}[${index}]`;
    const source = readSource(item, at, findings);
    if (source === undefined) continue;
    if (sources.some((earlier) => isSameAddress(earlier, source))) {
      const message = `names ${formatHostPort(source)} a second time`;
      findings.error('SOURCE_REPEATED', at, message, 'name every source once');
    }
    sources.push(source);
  }
  return sources;
}

function readSource(value: unknown, path: string, findings: Findings): RemoteKvSource | undefined {
  if (!checkFields(value, path, findings)) return undefined;
  checkPeerKeys(value, path, findings);
  // The id of a source is the consumer's own business, so it may choose one. vLLM 0.33 wants it from outside.
  const isLeftToUs = !Object.hasOwn(value, 'kv_request_id') && !findings.strict;
  const kvRequestId = isLeftToUs ? undefined : readId(value, path, findings);
  const address = readAddress(value, path, findings);
  return address === undefined ? undefined : { kvRequestId, ...address };
}

function readId(fields: Fields, path: string, findings: Findings): string | undefined {
  const at = join(path, 'kv_request_id');
  if (!Object.hasOwn(fields, 'kv_request_id')) {
    findings.error('ID_MISSING', at, 'is missing', 'give a fresh UUID for every transfer');
    return undefined;
  }
  const id = fields.kv_request_id;
  const reason = idFault(id);
  if (reason === undefined) return id as string;
  const remedy = `give a printable string of 1 to ${MAX_ID_BYTES} bytes, a fresh UUID for every transfer`;
  findings.error('ID_INVALID', at, reason, remedy);
  return undefined;
}

/** Why a value cannot be a kv_request_id, or undefined when it can. */
export function idFault(id: unknown): string | undefined {
  if (typeof id !== 'string') return `is ${describe(id)}, not a string`;
  if (id === '') return 'is an empty string';
  const byteCount = Buffer.byteLength(id);
  if (byteCount > MAX_ID_BYTES) return `has ${byteCount} bytes`;
  if (UNPRINTABLE.test(id)) return 'has characters that cannot be printed';
  return undefined;
}

/** Control, format, surrogate and private characters, and every white space except the blank. */
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;

interface AddressFields {
  readonly host: string;
  readonly port: number;
  readonly transport: string | undefined;
}

function readAddress(fields: Fields, path: string, findings: Findings): AddressFields | undefined {
  const host = Object.hasOwn(fields, 'remote_host') ? readHost(fields.remote_host, path, findings) : 'absent';
  const port = Object.hasOwn(fields, 'remote_port') ? readPort(fields.remote_port, path, findings) : 'absent';
  if (Object.hasOwn(fields, 'remote_url')) {
    const url = readUrl(fields.remote_url, path, findings);
    if (url === undefined || host === undefined || port === undefined) return undefined;
    const other = {
      host: host === 'absent' ? url.host : host.host,
      port: port === 'absent' ? url.port : port,
    };
    if (isSameAddress(url, other)) return url;
    const message = `names ${formatHostPort(url)}, but the fields beside it ${formatHostPort(other)}`;
    const remedy = 'give remote_url, or remote_host and remote_port';
    findings.error('ADDRESS_CONFLICT', join(path, 'remote_url'), message, remedy);
    return undefined;
  }
  for (const [key, found] of [['remote_host', host] as const, ['remote_port', port] as const]) {
    if (found !== 'absent') continue;
    const remedy = 'give remote_host and remote_port, or remote_url';
    findings.error('ADDRESS_MISSING', join(path, key), 'is missing', remedy);
  }
  if (host === undefined || host === 'absent' || port === undefined || port === 'absent') return undefined;
  return { host: host.host, port, transport: undefined };
}

function readHost(value: unknown, path: string, findings: Findings): { readonly host: string } | undefined {
  const at = join(path, 'remote_host');
  if (typeof value !== 'string') {
    findings.error(
      'HOST_INVALID',
      at,
      `is ${describe(value)}, not a string`,
      'give a host name or an IP address',
    );
    return undefined;
  }
  const result = parseHost(value);
  if ('host' in result) return result;
  findings.error('HOST_INVALID', at, `${describe(value)} ${result.reason}`, result.remedy);
  return undefined;
}

function readPort(value: unknown, path: string, findings: Findings): number | undefined {
  if (isPort(value)) return value;
  const remedy = 'give a whole number from 1 to 65535, without quotes';
  findings.error('PORT_INVALID', join(path, 'remote_port'), `is ${describe(value)}, not a port`, remedy);
  return undefined;
}

function readUrl(value: unknown, path: string, findings: Findings): AddressFields | undefined {
  const url = typeof value === 'string' ? parsePeerUrl(value) : { reason: 'is not a string' };
  if ('host' in url) return url;
  const remedy = 'write p2p://host:port, IPv6 in brackets, optionally with ?transport=NAME';
  findings.error('URL_INVALID', join(path, 'remote_url'), `${describe(value)} ${url.reason}`, remedy);
  return undefined;
}

function checkPeerKeys(fields: Fields, path: string, findings: Findings): void {
  for (const key of Object.keys(fields)) {
    if (!PEER_KEYS.includes(key as (typeof PEER_KEYS)[number])) {
      unknownKey(join(path, key), key, PEER_KEYS, findings);
    }
  }
}

function isRole(key: string): boolean {
  return ROLES.includes(key as (typeof ROLES)[number]);
}

function isAddressKey(key: string): boolean {
  return ADDRESS_KEYS.includes(key as (typeof ADDRESS_KEYS)[number]);
}
