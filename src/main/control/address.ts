// Addresses as identities: parsing, the canonical form, and which ones may be told to whom.

import { isUtf8 } from 'node:buffer';
import { isIPv4, isIPv6 } from 'node:net';
import { networkInterfaces } from 'node:os';
import type { PeerAddress } from './transport.js';

/** A ZeroMQ routing id is one length byte and that many bytes. */
const LONGEST_IDENTITY = 255;

const HOST_NAME =
  /^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$/;

/** An address, or why the text is none. */
export type ParsedAddress =
  | { readonly ok: true; readonly address: PeerAddress; readonly text: string }
  | { readonly ok: false; readonly reason: string };

/**
 * Reads `host:port` as it stands in an identity or in `kv_transfer_params`: split at the last colon, an IPv6 literal in
 * brackets, port 1 to 65535 without leading zeroes (so that one address has one spelling). Wildcards are refused: nobody
 * can call them back.
 */
export function parseAddress(text: string): ParsedAddress {
  if (Buffer.byteLength(text) > LONGEST_IDENTITY) return refuse(`longer than ${LONGEST_IDENTITY} bytes`);
  const colon = text.lastIndexOf(':');
  if (colon < 0) return refuse('no colon');
  const portText = text.slice(colon + 1);
  if (!/^[1-9][0-9]{0,4}$/.test(portText) || Number(portText) > 65_535)
    return refuse('no port from 1 to 65535');
  const host = parseHost(text.slice(0, colon));
  if (host === undefined) return refuse('no host name, IPv4 address or [IPv6 address]');
  if (isWildcard(host)) return refuse('a wildcard address');
  const address = { host, port: Number(portText) };
  return { ok: true, address, text: formatAddress(address) };
}

/** Reads a routing id as it came from the ROUTER. */
export function parseIdentity(identity: Buffer): ParsedAddress {
  return isUtf8(identity) ? parseAddress(identity.toString('utf8')) : refuse('not UTF-8');
}

/** `host:port`, an IPv6 literal in brackets: the canonical identity. */
export function formatAddress({ host, port }: PeerAddress): string {
  return `${isIPv6(host) ? `[${host}]` : host}:${port}`;
}

function refuse(reason: string): ParsedAddress {
  return { ok: false, reason };
}

function parseHost(text: string): string | undefined {
  if (text.startsWith('[') && text.endsWith(']')) return canonicalIPv6(text.slice(1, -1));
  return isLegalHost(text) && !isIPv6(text) ? text : undefined;
}

/** The one spelling of an IPv6 literal; undefined for anything else, and for one with a zone. */
function canonicalIPv6(literal: string): string | undefined {
  if (!isIPv6(literal) || literal.includes('%')) return undefined;
  return new URL(`http://[${literal}]`).hostname.slice(1, -1);
}

/** Whether a bare host (no brackets) can stand in an address at all; wildcards included. */
export function isLegalHost(host: string): boolean {
  if (isIPv4(host) || isIPv6(host)) return true;
  // Four numbers that are no IPv4 address are a mistake, not a name.
  return host.length <= 253 && HOST_NAME.test(host) && !/^[0-9.]+$/.test(host);
}

/** Whether the host means "every interface". */
export function isWildcard(host: string): boolean {
  return host === '*' || host === '0.0.0.0' || canonicalIPv6(host) === '::';
}

/** Whether the host can be reached from its own host only. */
export function isLoopback(host: string): boolean {
  const name = host.toLowerCase().replace(/\.$/, '');
  if (name === 'localhost' || name.endsWith('.localhost')) return true;
  if (isIPv4(host)) return host.startsWith('127.');
  const literal = canonicalIPv6(host);
  return literal === '::1' || literal?.startsWith('::ffff:7f') === true;
}

/** Addresses of this host's interfaces. */
export function interfaceAddresses(): ReadonlySet<string> {
  const addresses = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
  return new Set(addresses.map((entry) => entry.address));
}

/**
 * Whether an address of ours may be told to a remote: a wildcard never; a loopback one only to a peer on this host,
 * because on another it would name that host itself.
 *
 * @param advertised our host, as others would use it
 * @param remote     the remote's host; a name must be resolved first
 * @param own        addresses of this host's interfaces
 */
export function advertisable(
  advertised: string,
  remote: string,
  own: ReadonlySet<string> = interfaceAddresses(),
): boolean {
  if (isWildcard(advertised)) return false;
  return !isLoopback(advertised) || isLoopback(remote) || own.has(remote);
}
