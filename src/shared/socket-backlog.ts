// How much of a stopped write still sits in this host's kernel: send queues of closed TCP connections to a peer.

import { readFile } from 'node:fs/promises';

/** What an open socket has queued is not counted: after a hard stop the send agent's sockets are closed. */
const CLOSED_INODE = '0';
const TIME_WAIT = '06';
const LISTEN = '0A';

/**
 * Unsent bytes of closed connections in one table of /proc/net/tcp or /proc/net/tcp6.
 *
 * A closed socket whose data has not been sent belongs to no process any more (inode 0). So connections of other
 * processes of this host to the same address count as well: waiting for them is harmless.
 *
 * @param table the file's text
 * @param addresses remote addresses, IPv4 dotted or IPv6 in any spelling; undefined: any address
 */
export function unsentBytesIn(table: string, addresses?: ReadonlySet<string>): number {
  const wanted = addresses && new Set([...addresses].map(normalizeAddress));
  let sum = 0;
  for (const line of table.split('\n').slice(1)) {
    const [, , remote, state, queues, , , , , inode] = line.trim().split(/\s+/);
    if (inode !== CLOSED_INODE || state === TIME_WAIT || state === LISTEN) continue;
    if (wanted !== undefined && !wanted.has(addressOf(remote))) continue;
    sum += Number.parseInt(queues.split(':')[0], 16);
  }
  return sum;
}

/** The same over both tables of this host's network namespace. */
export async function unsentBytesTo(addresses?: ReadonlySet<string>): Promise<number> {
  const tables = await Promise.all(['/proc/net/tcp', '/proc/net/tcp6'].map(readTable));
  return tables.reduce((sum, table) => sum + unsentBytesIn(table, addresses), 0);
}

async function readTable(path: string): Promise<string> {
  try {
    return await readFile(path, 'latin1');
  } catch (error) {
    // A kernel without IPv6 has no tcp6.
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return '';
    throw error;
  }
}

/** `0100007F:9E17` -> `127.0.0.1`. The kernel prints each 32-bit word in the machine's (little-endian) order. */
function addressOf(field: string): string {
  const hex = field.slice(0, field.indexOf(':'));
  const bytes = Array.from({ length: hex.length / 2 }, (_, i) => {
    const word = i - (i % 4);
    return Number.parseInt(hex.slice(2 * (word + 3 - (i % 4)), 2 * (word + 3 - (i % 4)) + 2), 16);
  });
  if (bytes.length === 4) return bytes.join('.');
  const groups = Array.from({ length: 8 }, (_, i) => ((bytes[2 * i] << 8) | bytes[2 * i + 1]).toString(16));
  return normalizeAddress(groups.join(':'));
}

/** One spelling per address; an IPv4 address inside IPv6 (::ffff:a.b.c.d) is the IPv4 address. */
function normalizeAddress(address: string): string {
  if (!address.includes(':')) return address;
  const host = new URL(`http://[${address}]`).hostname.slice(1, -1);
  const mapped = /^::ffff:([0-9a-f]+):([0-9a-f]+)$/.exec(host);
  if (mapped === null) return host;
  const [high, low] = [Number.parseInt(mapped[1], 16), Number.parseInt(mapped[2], 16)];
  return [high >> 8, high & 255, low >> 8, low & 255].join('.');
}
