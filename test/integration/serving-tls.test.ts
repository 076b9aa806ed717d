// The TLS material of the sidecar's listener, served by a real HTTPS server and looked at by a real client.

import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect, type ConnectionOptions, type TLSSocket } from 'node:tls';

import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { openServingTls, type ServingTls, type ServingTlsOptions } from '../../src/main/sidecar/tls.js';
import { LogLines } from '../helpers/log-lines.js';
import { makeCertificate } from './support/certificate.js';

interface Pair {
  readonly cert: string;
  readonly key: string;
  readonly fingerprint: string;
}

const pairs: Pair[] = [];
let directory: string;
let log: LogLines;
let tls: ServingTls | undefined;
let server: Server | undefined;

beforeAll(async () => {
  for (const name of ['first', 'second']) {
    const { cert, key } = await makeCertificate(name);
    pairs.push({ cert, key, fingerprint: new X509Certificate(cert).fingerprint256 });
  }
});

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'kvpeer-tls-'));
  log = new LogLines();
});

afterEach(async () => {
  await tls?.close();
  if (server !== undefined) {
    const closed = once(server, 'close');
    server.close();
    server.closeAllConnections();
    await closed;
  }
  tls = undefined;
  server = undefined;
  await rm(directory, { recursive: true });
});

/** At once: the files are judged when there was no event for a moment, and that may be between two writes. */
function write({ cert, key }: Pair): void {
  writeFileSync(join(directory, 'tls.crt'), cert);
  writeFileSync(join(directory, 'tls.key'), key);
}

async function serve(options: Partial<ServingTlsOptions> = {}): Promise<ServingTls> {
  tls = await openServingTls({ certPath: directory, ...options }, log.logger);
  server = createServer(tls.options, (_, response) => response.end('ok'));
  tls.serve(server);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return tls;
}

async function dial(options: ConnectionOptions = {}): Promise<TLSSocket> {
  if (server === undefined) throw new Error('no server');
  const { port } = server.address() as AddressInfo;
  const socket = connect({ host: '127.0.0.1', port, rejectUnauthorized: false, ...options });
  await once(socket, 'secureConnect');
  return socket;
}

async function fingerprint(): Promise<string> {
  const socket = await dial();
  const found = socket.getPeerX509Certificate()?.fingerprint256 ?? '';
  socket.destroy();
  return found;
}

async function served(pair: Pair): Promise<void> {
  await expect.poll(fingerprint).toBe(pair.fingerprint);
}

describe('a pair of files', () => {
  test('is served, and its successor too, while connections that are open go on', async () => {
    write(pairs[0]);
    const material = await serve();
    expect(material.isSelfSigned).toBe(false);
    const early = await dial();
    expect(early.getPeerX509Certificate()?.fingerprint256).toBe(pairs[0].fingerprint);
    write(pairs[1]);
    await served(pairs[1]);
    early.write('GET / HTTP/1.1\r\nhost: h\r\n\r\n');
    const [answer] = (await once(early, 'data')) as [Buffer];
    expect(answer.toString()).toContain('200 OK');
    early.destroy();
    expect(log.messages('info')).toContain('the certificate was replaced');
  });

  test('is served in the new form after both files were renamed into place', async () => {
    write(pairs[0]);
    await serve();
    for (const [file, content] of [
      ['tls.crt', pairs[1].cert],
      ['tls.key', pairs[1].key],
    ]) {
      await writeFile(join(directory, `${file}.new`), content);
      await rename(join(directory, `${file}.new`), join(directory, file));
    }
    await served(pairs[1]);
  });

  test('of which only one was replaced is refused, and the last good pair stays', async () => {
    write(pairs[0]);
    await serve();
    writeFileSync(join(directory, 'tls.crt'), pairs[1].cert);
    await expect.poll(() => log.messages('error').length).toBe(1);
    expect(await fingerprint()).toBe(pairs[0].fingerprint);
    writeFileSync(join(directory, 'tls.key'), pairs[1].key);
    await served(pairs[1]);
  });

  test('that is missing, or does not fit together, is an error that names the files', async () => {
    await expect(openServingTls({ certPath: '/nonexistent' }, log.logger)).rejects.toMatchObject({
      code: 'KVPEER_INVALID_OPTION',
      message: expect.stringContaining('/nonexistent/tls.crt') as unknown,
    });
    write({ ...pairs[0], key: pairs[1].key });
    await expect(openServingTls({ certPath: directory }, log.logger)).rejects.toThrow(/no usable pair/);
  });
});

test('without a path a self-signed RSA-4096 certificate of ten years is served, with a warning', async () => {
  const material = await serve({ certPath: undefined });
  expect(material.isSelfSigned).toBe(true);
  expect(log.messages('warn').join()).toContain('self-signed');
  const socket = await dial();
  const certificate = socket.getPeerX509Certificate();
  socket.destroy();
  expect(certificate?.publicKey.asymmetricKeyType).toBe('rsa');
  expect(certificate?.publicKey.asymmetricKeyDetails?.modulusLength).toBe(4096);
  const years =
    new Date(certificate?.validTo ?? 0).getFullYear() - new Date(certificate?.validFrom ?? 0).getFullYear();
  expect(years).toBe(10);
  // The search for two primes of 2,048 bits ends by chance, and no event tells how far it is.
}, 300_000);

describe('versions and suites', () => {
  beforeEach(() => {
    write(pairs[0]);
  });

  test('TLS 1.2 and 1.3 are spoken, older versions are not', async () => {
    await serve();
    for (const version of ['TLSv1.2', 'TLSv1.3'] as const) {
      const socket = await dial({ minVersion: version, maxVersion: version });
      expect(socket.getProtocol()).toBe(version);
      socket.destroy();
    }
    const old = { minVersion: 'TLSv1.1', maxVersion: 'TLSv1.1', ciphers: 'DEFAULT@SECLEVEL=0' } as const;
    await expect(dial(old)).rejects.toThrow();
  });

  test('TLS 1.2 can be ruled out', async () => {
    await serve({ minVersion: 'VersionTLS13' });
    await expect(dial({ maxVersion: 'TLSv1.2' })).rejects.toThrow();
    (await dial()).destroy();
  });

  test('suites of TLS 1.2 can be chosen; others, and those without forward secrecy, are not spoken', async () => {
    await serve({ cipherSuites: ['TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384'] });
    const socket = await dial({ maxVersion: 'TLSv1.2' });
    expect(socket.getCipher().name).toBe('ECDHE-RSA-AES256-GCM-SHA384');
    socket.destroy();
    for (const ciphers of ['ECDHE-RSA-AES128-GCM-SHA256', 'AES256-GCM-SHA384']) {
      await expect(dial({ maxVersion: 'TLSv1.2', ciphers })).rejects.toThrow();
    }
  });

  test.each([
    [{ minVersion: 'VersionTLS11' }, /--tls-min-version/],
    [{ cipherSuites: ['TLS_RSA_WITH_AES_128_CBC_SHA'] }, /--tls-cipher-suites/],
  ])('%j is refused', async (options, message) => {
    await expect(openServingTls({ certPath: directory, ...options }, log.logger)).rejects.toThrow(message);
  });
});
