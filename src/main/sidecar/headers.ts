// The headers of llm-d's router, and which headers of a request and of an answer travel on.

import { parseHostPort, isSameAddress, formatHostPort } from '../params/address.js';
import type { PeerAddress } from '../params/types.js';
import { SIGNATURE_HEADER } from './leg-signature.js';

export const PREFILLER_HEADER = 'x-prefiller-host-port';
export const SOURCE_HEADER = 'x-kv-cache-source-host-port';
export const ENCODERS_HEADER = 'x-encoder-hosts-ports';
export const DATA_PARALLEL_HEADER = 'x-data-parallel-host-port';

/** Taken out before anything is forwarded, on every route. */
const ROUTING_HEADERS = new Set([PREFILLER_HEADER, SOURCE_HEADER, ENCODERS_HEADER]);
/** Belong to one connection (RFC 9110, section 7.6.1). */
const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

/** Header lines as they arrived: name, value, name, value ... */
export type RawHeaders = readonly string[];

/** All values of a header, one per line. @param name in lower case */
export function headerLines(raw: RawHeaders, name: string): string[] {
  const lines: string[] = [];
  for (let i = 0; i + 1 < raw.length; i += 2) {
    if (raw[i].length === name.length && raw[i].toLowerCase() === name) lines.push(raw[i + 1]);
  }
  return lines;
}

export interface PrefillerTarget extends PeerAddress {
  readonly isTls: boolean;
}

export type PrefillerChoice =
  | { readonly kind: 'none' }
  | { readonly kind: 'target'; readonly target: PrefillerTarget }
  | { readonly kind: 'fault'; readonly message: string };

export interface PrefillerRules {
  /** Prefillers are reached over TLS: `https://` is then a legal prefix. */
  readonly isTls: boolean;
  /** `--enable-prefiller-sampling`: chooses among the candidates; otherwise the first one counts. */
  readonly pick?: ((count: number) => number) | undefined;
}

/**
 * Chooses the prefiller. One header line is split at commas; of several lines each is one candidate. An empty
 * candidate means no prefiller. The chosen one must be host:port (the reference pastes anything into a URL).
 */
export function choosePrefiller(raw: RawHeaders, rules: PrefillerRules): PrefillerChoice {
  const lines = headerLines(raw, PREFILLER_HEADER);
  if (lines.length === 0) return { kind: 'none' };
  const candidates = (lines.length === 1 ? lines[0].split(',') : lines).map((candidate) => candidate.trim());
  const chosen = candidates[rules.pick?.(candidates.length) ?? 0];
  if (chosen === '') return { kind: 'none' };
  const prefix = /^https?:\/\//.exec(chosen)?.[0] ?? '';
  if (prefix === 'https://' && !rules.isTls)
    return faulty(chosen, 'asks for TLS, and TLS to prefillers is off');
  const address = parseHostPort(chosen.slice(prefix.length));
  if ('reason' in address) return faulty(chosen, address.reason);
  if (address.host.includes('%')) return faulty(chosen, 'has an IPv6 zone, which no URL can name');
  const target = { ...address, isTls: rules.isTls };
  // A label that begins with xn-- and is no punycode, for one.
  if (!URL.canParse(originOf(target))) return faulty(chosen, 'has a host that no URL can name');
  return { kind: 'target', target };
}

function faulty(value: string, reason: string): PrefillerChoice {
  const shown = JSON.stringify(value.length > 64 ? `${value.slice(0, 64)}…` : value);
  return { kind: 'fault', message: `header ${PREFILLER_HEADER}: ${shown} ${reason}; write host:port` };
}

export type SourceChoice =
  | { readonly kind: 'none' }
  | { readonly kind: 'source'; readonly address: PeerAddress }
  | { readonly kind: 'malformed'; readonly reason: string };

/** Reads the KV source: the first line only, not split. A bad one is never an error: the request goes on without. */
export function readSource(raw: RawHeaders): SourceChoice {
  const value = headerLines(raw, SOURCE_HEADER).at(0)?.trim();
  if (value === undefined || value === '') return { kind: 'none' };
  const address = parseHostPort(value);
  return 'reason' in address
    ? { kind: 'malformed', reason: address.reason }
    : { kind: 'source', address: { host: address.host, port: address.port } };
}

/** The endpoint of a header against one of ours; spellings of one IPv6 address are the same, names are not resolved. */
export function isEndpoint(text: string, own: PeerAddress): boolean {
  const address = parseHostPort(text.trim());
  return !('reason' in address) && isSameAddress(address, own);
}

/**
 * The headers that a leg gets: everything the client sent but what belongs to the connection, the routing headers, and
 * `expect`, which is answered here. `content-length` is left to the sender of the body.
 *
 * @param remoteAddress the client's, appended to `x-forwarded-for`
 */
export function requestHeaders(raw: RawHeaders, remoteAddress: string | undefined): string[] {
  const named = connectionNames(raw);
  const out: string[] = [];
  const forwardedFor: string[] = [];
  for (let i = 0; i + 1 < raw.length; i += 2) {
    const name = raw[i].toLowerCase();
    const value = raw[i + 1];
    if (name === 'x-forwarded-for') forwardedFor.push(value);
    else if (name === 'te' && /\btrailers\b/i.test(value)) out.push('te', 'trailers');
    else if (isEndToEnd(name, named) && !ROUTING_HEADERS.has(name) && !OWN.has(name)) out.push(raw[i], value);
  }
  const client = remoteAddress?.replace(/^::ffff:/, '');
  if (client !== undefined) forwardedFor.push(client);
  if (forwardedFor.length > 0) out.push('x-forwarded-for', forwardedFor.join(', '));
  return out;
}

const OWN = new Set(['expect', 'content-length', SIGNATURE_HEADER]);

/** Hosts that a request has come through, as its proxies say. */
export function hopCount(raw: RawHeaders): number {
  return headerLines(raw, 'x-forwarded-for').reduce((count, line) => count + line.split(',').length, 0);
}

/** The headers of a model server's answer that the client gets; a 204 must not have a length (RFC 9110, section 8.6). */
export function responseHeaders(raw: RawHeaders, status: number): string[] {
  const named = connectionNames(raw);
  const out: string[] = [];
  for (let i = 0; i + 1 < raw.length; i += 2) {
    const name = raw[i].toLowerCase();
    if (isEndToEnd(name, named) && !(status === 204 && name === 'content-length'))
      out.push(raw[i], raw[i + 1]);
  }
  return out;
}

function isEndToEnd(name: string, named: ReadonlySet<string>): boolean {
  return !HOP_BY_HOP.has(name) && !named.has(name);
}

const NOTHING: ReadonlySet<string> = new Set();

function connectionNames(raw: RawHeaders): ReadonlySet<string> {
  const lines = headerLines(raw, 'connection');
  if (lines.length === 0) return NOTHING;
  return new Set(lines.flatMap((line) => line.split(',').map((name) => name.trim().toLowerCase())));
}

/** `host:port` for an URL. A zone of an IPv6 address cannot be dialled through one and is refused before. */
export function originOf({ host, port, isTls }: PrefillerTarget): string {
  return `${isTls ? 'https' : 'http'}://${formatHostPort({ host, port })}`;
}
