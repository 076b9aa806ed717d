// Flags that every short-lived node has in common: where it is, who it says it is, and how much it holds.

import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { Option } from 'commander';
import { destination, type DestinationStream } from 'pino';
import { KvpeerError } from '../errors.js';
import { count } from '../options/kinds.js';
import {
  defaultTextOf,
  flagOf,
  OPTION_TABLE,
  resolveOptions,
  variableOf,
  type OptionName,
  type ResolvedOptions,
} from '../options.js';

const FLAGS = [
  'host',
  'port',
  'advertise',
  'blockBytes',
  'hashSeed',
  'fingerprint',
  'fingerprintFrom',
  'dataPlane',
  'logLevel',
] as const satisfies readonly OptionName[];

export type IdentityFlags = Readonly<Partial<Record<(typeof FLAGS)[number], string>>>;

/** These name the node that serves on this host: a short-lived one beside it takes none of them over. */
const NOT_INHERITED = [
  ...(['host', 'port', 'advertise', 'poolBytes', 'keyBytes', 'logLevel'] as const).map(variableOf),
  'VLLM_P2P_SIDE_CHANNEL_HOST',
  'VLLM_P2P_SIDE_CHANNEL_PORT',
];

/** @param defaults texts for the help where a short-lived node differs from `kvpeer serve` */
export function identityFlags(
  defaults: Partial<Record<(typeof FLAGS)[number], string>> = {},
): readonly Option[] {
  const texts = { host: '127.0.0.1', port: 'a free port', logLevel: 'warn', ...defaults };
  return FLAGS.map((name) => {
    const { help, placeholder = 'VALUE' } = OPTION_TABLE[name];
    const text = name in texts ? texts[name] : defaultTextOf(name);
    return new Option(`${flagOf(name)} <${placeholder.toLowerCase()}>`, `${help} (default: ${text})`);
  });
}

/**
 * Options of a short-lived node: flags, then the times and limits that the environment sets, then defaults.
 *
 * @throws KVPEER_INVALID_OPTION
 */
export function probeOptions(
  flags: IdentityFlags,
  env: NodeJS.ProcessEnv,
  needs: { readonly keyBytes: number; readonly slots: number; readonly host: string },
): ResolvedOptions {
  const inherited = Object.fromEntries(Object.entries(env).filter(([name]) => !NOT_INHERITED.includes(name)));
  const base = { host: needs.host, port: '0', logLevel: 'warn', ...flags };
  // The pool is sized by these two, so any block must fit for now.
  const anySize = { ...base, poolBytes: String(2 ** 42) };
  const { blockBytes, shards } = resolveOptions({ flags: anySize, env: inherited }).options;
  // Keys fall into shards by chance: eight standard deviations of room beside each one's share.
  const slots = needs.slots + shards * Math.ceil(8 * Math.sqrt(needs.slots / shards) + 32);
  const sizes = { keyBytes: String(needs.keyBytes), poolBytes: String(slots * blockBytes) };
  return resolveOptions({ flags: { ...base, ...sizes }, env: inherited }).options;
}

/** A whole number of a flag that only a command has. @throws KVPEER_INVALID_OPTION */
export function wholeNumber(flag: string, text: string, max: number): number {
  const { schema, fromText, allowed } = count(0, max);
  const result = schema.safeParse(fromText(text));
  if (result.success) return result.data;
  throw new KvpeerError('KVPEER_INVALID_OPTION', `${flag} is ${JSON.stringify(text)}; it must be ${allowed}`);
}

/**
 * The address of this host from which the target is reached, as the kernel routes; nothing is sent.
 *
 * @throws KVPEER_INVALID_ARGUMENT when the target has no address, or none that this host can reach
 */
export async function addressTowards(host: string, port: number): Promise<string> {
  const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4');
  try {
    socket.connect(port, host);
    await once(socket, 'connect');
    return socket.address().address;
  } catch (cause) {
    const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'unknown';
    throw new KvpeerError(
      'KVPEER_INVALID_ARGUMENT',
      `${host} has no address that this host can reach (${code}); name another host, or give --host`,
      { cause },
    );
  } finally {
    socket.close();
  }
}

/** Where the log of a command goes whose standard output is its result. */
export function standardError(): DestinationStream {
  return destination({ dest: 2, sync: true });
}
