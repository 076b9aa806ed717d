// Hosts, ports and p2p:// URLs: what is one, its canonical spelling, and when two are the same.

import { isIPv4, isIPv6 } from 'node:net';
import type { PeerAddress } from './types.js';

export type HostResult = { readonly host: string } | { readonly reason: string; readonly remedy: string };

/**
 * Checks a host and gives its canonical spelling: IPv6 compressed and without brackets (vLLM joins host and port
 * with a colon and splits at the last one), names as written because an engine compares its own name as text.
 */
export function parseHost(text: string): HostResult {
  if (text === '') return { reason: 'is empty', remedy: 'give a host name or an IP address' };
  const bare = text.startsWith('[') && text.endsWith(']') ? text.slice(1, -1) : text;
  if (isIPv6(bare)) return checkWildcard(compressIpv6(bare));
  if (bare !== text) return { reason: 'has brackets around no IPv6 address', remedy: 'write the host alone' };
  if (isIPv4(text)) return checkWildcard(text);
  if (text.includes('://'))
    return { reason: 'has a scheme', remedy: 'write the host alone, or use remote_url' };
  if (/\s/u.test(text)) return { reason: 'has white space in it', remedy: 'write the host alone' };
  if (text.includes(','))
    return { reason: 'has a comma', remedy: 'write several sources as a list of objects' };
  if (text.includes('@')) return { reason: 'has user information', remedy: 'write the host alone' };
  if (/[/?#\\]/.test(text)) return { reason: 'has a path or query', remedy: 'write the host alone' };
  if (text.includes(':')) {
    return { reason: 'has a port or is no IPv6 address', remedy: 'put the port into remote_port' };
  }
  if (!HOST_NAME.test(text) || text.length > 253) {
    return { reason: 'is no host name', remedy: 'use letters, digits, dots and hyphens, at most 253' };
  }
  // Resolvers read 1.2.3, 127.1 or 0x7f.1 as IPv4: such a spelling could slip past an allow-list of addresses.
  if (NUMERIC_LAST_LABEL.test(text)) {
    return { reason: 'looks like an IPv4 address and is none', remedy: 'write four decimal numbers' };
  }
  return { host: text };
}

const HOST_NAME =
  /^[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?$/;
const NUMERIC_LAST_LABEL = /(?:^|\.)(?:\d+|0[xX][0-9A-Fa-f]*)\.?$/;

function checkWildcard(host: string): HostResult {
  if (host !== '0.0.0.0' && host !== '::') return { host };
  return {
    reason: 'is the wildcard address, which names no host',
    remedy: "give the peer's advertised address",
  };
}

function compressIpv6(text: string): string {
  const zoneAt = text.indexOf('%');
  const address = zoneAt === -1 ? text : text.slice(0, zoneAt);
  const zone = zoneAt === -1 ? '' : text.slice(zoneAt);
  return new URL(`http://[${address}]`).hostname.slice(1, -1) + zone;
}

export function isPort(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 65_535;
}

export interface PeerUrl extends PeerAddress {
  readonly transport: string | undefined;
}

/** Reads `p2p://host:port`, IPv6 in brackets, with an optional `?transport=NAME`. */
export function parsePeerUrl(text: string): PeerUrl | { readonly reason: string } {
  const match = PEER_URL.exec(text);
  if (match === null) return { reason: 'is not p2p://host:port' };
  const [, hostText, portText] = match;
  const host = parseHost(hostText);
  if ('reason' in host) return { reason: `has a host that ${host.reason}` };
  const port = Number(portText);
  if (!isPort(port)) return { reason: 'has a port outside 1 to 65535' };
  return { host: host.host, port, transport: match.groups?.transport };
}

const PEER_URL =
  /^[pP]2[pP]:\/\/(\[[^\]]*\]|[^:/?#[\]@]+):(\d{1,5})\/?(?:\?transport=(?<transport>[A-Za-z0-9._-]{1,32}))?$/;

/** Reads `host:port`, IPv6 in brackets. */
export function parseHostPort(text: string): PeerAddress | { readonly reason: string } {
  const match = HOST_PORT.exec(text);
  if (match === null) return { reason: 'is not host:port (IPv6 in brackets)' };
  const [, hostText, portText] = match;
  const host = parseHost(hostText);
  if ('reason' in host) return { reason: `has a host that ${host.reason}` };
  const port = Number(portText);
  if (!isPort(port)) return { reason: 'has a port outside 1 to 65535' };
  return { host: host.host, port };
}

const HOST_PORT = /^(\[[^\]]*\]|[^:[\]]+):(\d{1,5})$/;

/** `host:port` for people and for logs, IPv6 in brackets. */
export function formatHostPort(address: PeerAddress): string {
  return address.host.includes(':') ? `[${address.host}]:${address.port}` : `${address.host}:${address.port}`;
}

/** Whether two canonical addresses are written for the same endpoint; names compare without case and final dot. */
export function isSameAddress(a: PeerAddress, b: PeerAddress): boolean {
  return a.port === b.port && foldHost(a.host) === foldHost(b.host);
}

/** One spelling for every spelling of a host: IPv6 compressed and without brackets, names in lower case without final dot. */
export function foldHost(host: string): string {
  const bare = host.startsWith('[') && host.endsWith(']') ? host.slice(1, -1) : host;
  const lower = isIPv6(bare) ? compressIpv6(bare).toLowerCase() : bare.toLowerCase();
  return lower.endsWith('.') ? lower.slice(0, -1) : lower;
}
