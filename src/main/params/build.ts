// Writes kv_transfer_params: always the canonical form that vLLM 0.33 understands.

import { randomUUID } from 'node:crypto';
import { KvpeerError } from '../errors.js';
import { parseParams } from './parse.js';
import {
  formatIssue,
  type KvTransferParams,
  type ParamsIssue,
  type ParseParamsOptions,
  type PeerAddress,
  type RemoteKvSource,
} from './types.js';

/** A source whose id is settled. */
export interface IdentifiedKvSource extends RemoteKvSource {
  readonly kvRequestId: string;
}

/** Legal params in which every id is settled: what a consumer works with. */
export interface IdentifiedParams extends KvTransferParams {
  readonly remoteKvSource: readonly IdentifiedKvSource[] | undefined;
}

/** Gives every source without an id a fresh one; ids that came with the request stay. */
export function allocateIds(params: KvTransferParams, newId: () => string = randomUUID): IdentifiedParams {
  const remoteKvSource = params.remoteKvSource?.map((source) => ({
    ...source,
    kvRequestId: source.kvRequestId ?? newId(),
  }));
  return { ...params, remoteKvSource };
}

export interface CanonicalOptions {
  /** Makes ids for sources that have none. Default: random UUIDs. */
  readonly newId?: () => string;
  /** Chooses the one source that is handed on; gets 2 to 8 of them. Default: the preferred, first one. */
  readonly pickSource?: (sources: readonly IdentifiedKvSource[]) => IdentifiedKvSource;
  /** The engine is declared to take a list in `remote_kv_source`: all sources are handed on. Default false. */
  readonly engineAcceptsLists?: boolean;
}

/**
 * The canonical form for an engine: every id present, host and port instead of a URL, one source as one object. A
 * value of another shape never reaches an engine, because one that is not a map ends vLLM's scheduler. Other
 * top-level keys are handed on as they came; unknown keys inside the roles are left out.
 *
 * @returns a new object, empty when there is nothing to say
 */
export function canonicalParams(
  params: KvTransferParams,
  options: CanonicalOptions = {},
): Record<string, unknown> {
  const { remoteDecoder, remotePrefiller, remoteKvSource } = allocateIds(params, options.newId);
  const roles: [string, unknown][] = [];
  if (remoteDecoder !== undefined)
    roles.push(['remote_decoder', { kv_request_id: remoteDecoder.kvRequestId }]);
  if (remotePrefiller !== undefined) roles.push(['remote_prefiller', peerFields(remotePrefiller)]);
  if (remoteKvSource !== undefined) roles.push(['remote_kv_source', sourceFields(remoteKvSource, options)]);
  // fromEntries defines own properties: a key named __proto__ stays a key.
  return Object.fromEntries([...roles, ...Object.entries(params.passThrough)]);
}

function sourceFields(sources: readonly IdentifiedKvSource[], options: CanonicalOptions): unknown {
  if (sources.length === 1) return peerFields(sources[0]);
  if (options.engineAcceptsLists ?? false) return sources.map(peerFields);
  return peerFields(options.pickSource?.(sources) ?? sources[0]);
}

function peerFields(peer: PeerAddress & { readonly kvRequestId: string }): Record<string, unknown> {
  return { kv_request_id: peer.kvRequestId, remote_host: peer.host, remote_port: peer.port };
}

/** Illegal kv_transfer_params, with all findings as data. */
export class KvpeerParamsError extends KvpeerError {
  readonly issues: readonly ParamsIssue[];

  constructor(issues: readonly ParamsIssue[]) {
    super('KVPEER_INVALID_PARAMS', issues.map(formatIssue).join('. '));
    this.issues = issues;
  }
}

/** `parseParams` for callers that throw. @throws KvpeerParamsError (KVPEER_INVALID_PARAMS) */
export function parseParamsOrThrow(value: unknown, options: ParseParamsOptions = {}): KvTransferParams {
  const result = parseParams(value, options);
  if (!result.ok) throw new KvpeerParamsError(result.errors);
  return result.params;
}

/** The parts of kv_transfer_params as a program names them. */
export interface ParamsParts {
  readonly remoteDecoder?: { readonly kvRequestId: string } | undefined;
  readonly remotePrefiller?: (PeerAddress & { readonly kvRequestId: string }) | undefined;
  /** One source or 1 to 8 of them in order of preference; an absent id is allocated. */
  readonly remoteKvSource?: SourcePart | readonly SourcePart[] | undefined;
  /** Further top-level keys, for other connectors. */
  readonly passThrough?: Readonly<Record<string, unknown>>;
}

type SourcePart = PeerAddress & { readonly kvRequestId?: string | undefined };

/**
 * Builds kv_transfer_params in canonical form, checked by the same rules as those that come from outside.
 *
 * @throws KvpeerParamsError (KVPEER_INVALID_PARAMS) when the parts make no legal params
 */
export function buildParams(parts: ParamsParts, options: CanonicalOptions = {}): Record<string, unknown> {
  const raw: Record<string, unknown> = { ...parts.passThrough };
  if (parts.remoteDecoder !== undefined) {
    raw.remote_decoder = { kv_request_id: parts.remoteDecoder.kvRequestId };
  }
  if (parts.remotePrefiller !== undefined) raw.remote_prefiller = peerFields(parts.remotePrefiller);
  if (parts.remoteKvSource !== undefined) {
    raw.remote_kv_source = isList(parts.remoteKvSource)
      ? parts.remoteKvSource.map(rawSource)
      : rawSource(parts.remoteKvSource);
  }
  return canonicalParams(parseParamsOrThrow(raw, { connector: 'multi' }), options);
}

function rawSource(source: SourcePart): Record<string, unknown> {
  const address = { remote_host: source.host, remote_port: source.port };
  return source.kvRequestId === undefined ? address : { kv_request_id: source.kvRequestId, ...address };
}

function isList(value: SourcePart | readonly SourcePart[]): value is readonly SourcePart[] {
  return Array.isArray(value);
}
