// Certificates for tests that are not about them: the sidecar's own search for primes of 2,048 bits takes from one to
// tens of seconds, by chance and by what else the machine does.

import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { generate } from 'selfsigned';
import { onTestFinished } from 'vitest';

export async function makeCertificate(
  name: string,
): Promise<{ readonly cert: string; readonly key: string }> {
  const { cert, private: key } = await generate([{ name: 'commonName', value: name }], { keySize: 2048 });
  return { cert, key };
}

/** For --cert-path; removed after the test. */
export async function certificateFolder(): Promise<string> {
  const { cert, key } = await makeCertificate('localhost');
  const folder = await mkdtemp(join(tmpdir(), 'kvpeer-certificate-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  await writeFile(join(folder, 'tls.crt'), cert);
  await writeFile(join(folder, 'tls.key'), key);
  return folder;
}
