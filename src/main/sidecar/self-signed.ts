// A certificate for a listener that was given none.

import { generate } from 'selfsigned';

export interface PemPair {
  readonly cert: string;
  readonly key: string;
}

/** As upstream: RSA, ten years. It only keeps the wire from being read; no client can verify it. */
const KEY_BITS = 4096;
const VALID_YEARS = 10;

/** Takes one to several seconds, on a thread of the crypto pool. */
export async function makeSelfSigned(now = new Date()): Promise<PemPair> {
  const notAfterDate = new Date(now);
  notAfterDate.setFullYear(now.getFullYear() + VALID_YEARS);
  const pair = await generate([{ name: 'commonName', value: 'kvpeer sidecar' }], {
    keySize: KEY_BITS,
    algorithm: 'sha256',
    notBeforeDate: now,
    notAfterDate,
    extensions: [
      { name: 'basicConstraints', cA: false, critical: true },
      { name: 'keyUsage', digitalSignature: true, keyEncipherment: true, critical: true },
      { name: 'extKeyUsage', serverAuth: true },
      { name: 'subjectAltName', altNames: [{ type: 2, value: 'localhost' }] },
    ],
  });
  return { cert: pair.cert, key: pair.private };
}
