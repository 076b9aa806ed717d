// TLS for the sidecar's listener: the certificate in use, made by ourselves when none is given, renewed without a restart.

import { createSecureContext, type SecureContextOptions, type Server } from 'node:tls';
import { join } from 'node:path';

import type { Logger } from 'pino';

import { KvpeerError } from '../errors.js';
import { openWatchedFiles } from './watched-files.js';

export interface ServingTlsOptions {
  /** `--cert-path`: directory of `tls.crt` and `tls.key`; undefined or empty makes a self-signed certificate. */
  readonly certPath: string | undefined;
  /** `--tls-min-version`: `VersionTLS12` (the default) or `VersionTLS13`. */
  readonly minVersion?: string | undefined;
  /** `--tls-cipher-suites`: names of TLS 1.2 suites as IANA and Go spell them; empty or undefined: all of the six. */
  readonly cipherSuites?: readonly string[] | undefined;
}

export interface ServingTls {
  /** For `https.createServer`, `http2.createSecureServer` and the like; `cert` and `key` are those of now. */
  readonly options: SecureContextOptions;
  readonly isSelfSigned: boolean;
  /** From now on connections to the server get the newest certificate; those that are open keep theirs. */
  serve(server: Pick<Server, 'setSecureContext'>): void;
  /** Ends the watch; servers keep the certificate they have. */
  close(): Promise<void>;
}

/** A chain of certificates; more is no certificate. */
const MAX_PEM_BYTES = 1 << 20;

/** The six suites of the contract, by their names in Go and in OpenSSL. TLS 1.3 has suites of its own. */
const CIPHER_SUITES: ReadonlyMap<string, string> = new Map([
  ['TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256', 'ECDHE-ECDSA-AES128-GCM-SHA256'],
  ['TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256', 'ECDHE-RSA-AES128-GCM-SHA256'],
  ['TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384', 'ECDHE-ECDSA-AES256-GCM-SHA384'],
  ['TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384', 'ECDHE-RSA-AES256-GCM-SHA384'],
  ['TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256', 'ECDHE-ECDSA-CHACHA20-POLY1305'],
  ['TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256', 'ECDHE-RSA-CHACHA20-POLY1305'],
]);
const TLS13_SUITES = 'TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256';

/**
 * Opens what a TLS listener needs. With `certPath` both files are watched: a pair that does not fit together, which is
 * what an update of one file after the other looks like in between, is logged and the last good pair stays in use.
 *
 * @throws KVPEER_INVALID_OPTION when the pair, the version or a suite cannot be used
 */
export async function openServingTls(options: ServingTlsOptions, log: Logger): Promise<ServingTls> {
  const rules = { minVersion: minVersionOf(options.minVersion), ciphers: ciphersOf(options.cipherSuites) };
  if (options.certPath === undefined || options.certPath === '') {
    log.warn('no --cert-path: serving with a self-signed certificate that no client can verify');
    // Loaded only here: the library for certificates takes as long to load as all the rest of the sidecar.
    const { makeSelfSigned } = await import('./self-signed.js');
    const pair = await makeSelfSigned();
    return {
      options: { ...rules, ...pair },
      isSelfSigned: true,
      serve: () => undefined,
      close: () => Promise.resolve(),
    };
  }
  return openPair(options.certPath, rules, log);
}

type Rules = Pick<SecureContextOptions, 'minVersion' | 'ciphers'>;

async function openPair(directory: string, rules: Rules, log: Logger): Promise<ServingTls> {
  const paths = [join(directory, 'tls.crt'), join(directory, 'tls.key')];
  const servers = new Set<Pick<Server, 'setSecureContext'>>();
  let current: SecureContextOptions;
  try {
    const files = await openWatchedFiles({
      paths,
      parse: ([cert, key]) => checked({ ...rules, cert, key }),
      onChange: (options) => {
        current = options;
        for (const server of servers) server.setSecureContext(options);
        log.info({ files: paths }, 'the certificate was replaced');
      },
      onRefused: (error) => {
        const reason = error instanceof Error ? error.message : String(error);
        log.error(
          { files: paths, reason },
          'the certificate changed and cannot be used; the last good one stays',
        );
      },
      maxBytes: MAX_PEM_BYTES,
    });
    current = files.initial;
    return {
      get options() {
        return current;
      },
      isSelfSigned: false,
      serve: (server) => {
        servers.add(server);
        server.setSecureContext(current);
      },
      close: () => {
        files.close();
        servers.clear();
        return Promise.resolve();
      },
    };
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    const message = `--cert-path ${directory}: ${paths.join(' and ')} are no usable pair: ${reason}; put both there in PEM form`;
    throw new KvpeerError('KVPEER_INVALID_OPTION', message, { cause: error });
  }
}

/** Throws for what is no certificate, no key, or a key of another certificate. */
function checked(options: SecureContextOptions): SecureContextOptions {
  createSecureContext(options);
  return options;
}

function minVersionOf(name: string | undefined): 'TLSv1.2' | 'TLSv1.3' {
  if (name === undefined || name === '' || name === 'VersionTLS12') return 'TLSv1.2';
  if (name === 'VersionTLS13') return 'TLSv1.3';
  const message = `--tls-min-version ${JSON.stringify(name)} is not known; give VersionTLS12 or VersionTLS13`;
  throw new KvpeerError('KVPEER_INVALID_OPTION', message);
}

function ciphersOf(names: readonly string[] | undefined): string {
  const wanted = names === undefined || names.length === 0 ? [...CIPHER_SUITES.keys()] : names;
  const suites = wanted.map((name) => {
    const suite = CIPHER_SUITES.get(name.trim());
    if (suite !== undefined) return suite;
    const known = [...CIPHER_SUITES.keys()].join(', ');
    const message = `--tls-cipher-suites ${JSON.stringify(name)} is not known; give some of ${known}`;
    throw new KvpeerError('KVPEER_INVALID_OPTION', message);
  });
  return `${TLS13_SUITES}:${suites.join(':')}`;
}
