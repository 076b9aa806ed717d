// The allow-list's file: one HOST:PORT per line, read again when it changes; a bad file never replaces a good one.

import type { Logger } from 'pino';

import { KvpeerError } from '../errors.js';
import { parseHostPort } from '../params/address.js';
import type { PeerAddress } from '../params/types.js';
import type { AllowSource } from './allow-list.js';
import { Endpoints } from './endpoints.js';
import { openWatchedFiles } from './watched-files.js';

/** Some 50,000 endpoints. */
const MAX_FILE_BYTES = 1 << 20;

/** @throws KVPEER_INVALID_OPTION when the file cannot be read, or one of its lines is no endpoint */
export async function openAllowFile(path: string, log: Logger): Promise<AllowSource> {
  let endpoints: Endpoints;
  try {
    const files = await openWatchedFiles({
      paths: [path],
      parse: ([content]) => parseAllowFile(content.toString('utf8')),
      onChange: (changed) => {
        endpoints = changed;
        log.info({ file: path, endpointCount: changed.size }, 'the allow-list file was read again');
      },
      onRefused: (error) => {
        const fields = { file: path, reason: messageOf(error), endpointCount: endpoints.size };
        log.error(fields, 'the allow-list file changed and cannot be used; the last good list stays');
      },
      maxBytes: MAX_FILE_BYTES,
    });
    endpoints = files.initial;
    log.info({ file: path, endpointCount: endpoints.size }, 'the allow-list file was read');
    return {
      allows: (host, port) => endpoints.has(host, port),
      close: () => {
        files.close();
        return Promise.resolve();
      },
    };
  } catch (error) {
    const message = `--ssrf-allow-file ${path} cannot be used: ${messageOf(error)}; correct it, or leave the option out`;
    throw new KvpeerError('KVPEER_INVALID_OPTION', message, { cause: error });
  }
}

/** @throws Error that names the first bad line */
export function parseAllowFile(text: string): Endpoints {
  const addresses: PeerAddress[] = [];
  for (const [index, line] of text.split('\n').entries()) {
    const entry = line.replace(/#.*$/s, '').trim();
    if (entry === '') continue;
    const address = parseHostPort(entry);
    if ('reason' in address) throw new Error(`line ${index + 1}: ${quote(entry)} ${address.reason}`);
    addresses.push(address);
  }
  return new Endpoints(addresses);
}

function quote(text: string): string {
  return JSON.stringify(text.length > 64 ? `${text.slice(0, 64)}…` : text);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
