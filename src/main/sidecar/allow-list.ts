// The SSRF allow-list: the host:port endpoints that a routing header may make the sidecar name or dial.

import type { Logger } from 'pino';

import { KvpeerError } from '../errors.js';
import { parseHostPort } from '../params/address.js';
import { openAllowFile } from './allow-file.js';
import { Endpoints } from './endpoints.js';
import { hasKubeConfig, noCluster } from './kube-config.js';
import { openInferencePool } from './inference-pool.js';
import { parsePoolAddress } from './pool-spec.js';

export interface AllowListOptions {
  /** `--enable-ssrf-protection`. `allow` and `allowFile` turn the protection on by themselves. */
  readonly isProtectionOn: boolean;
  /** `--ssrf-allow HOST:PORT`, each time it was given. */
  readonly allow: readonly string[];
  /** `--ssrf-allow-file`: one HOST:PORT per line, `#` begins a comment; watched. */
  readonly allowFile: string | undefined;
  /** `--inference-pool` or INFERENCE_POOL: `name`, or `namespace/name`; watched while the protection is on. */
  readonly inferencePool: string | undefined;
  /** `--pool-group`: the API group of the InferencePool. Default `inference.networking.k8s.io`. */
  readonly poolGroup: string | undefined;
  /** Profile A knows the pool's hosts only and allows every port of them; B allows the pool's target ports. */
  readonly poolPorts: 'any' | 'target';
}

export interface AllowList {
  /** @param host without brackets, as `parseHostPort` and a SplitHostPort give it */
  allows(host: string, port: number): boolean;
  /** False when no protection was asked for: then everything is allowed, as upstream. */
  readonly enabled: boolean;
  close(): Promise<void>;
}

/** What a source of endpoints offers to the list. */
export interface AllowSource {
  allows(host: string, port: number): boolean;
  close(): Promise<void>;
}

/**
 * Opens the allow-list of all the sources that are given; an endpoint is allowed when one of them has it. Settles when
 * each source was read once.
 *
 * @throws KVPEER_INVALID_OPTION when an endpoint, the file or the pool's name cannot be used, or protection is asked
 * for without any source; KVPEER_KUBERNETES when the cluster cannot be asked
 */
export async function openAllowList(options: AllowListOptions, log: Logger): Promise<AllowList> {
  const isOn = options.isProtectionOn || options.allow.length > 0 || options.allowFile !== undefined;
  if (!isOn) {
    log.warn(
      'SSRF protection is off: a routing header makes this sidecar dial any host; ' +
        'turn it on with --ssrf-allow, --ssrf-allow-file, or --enable-ssrf-protection and --inference-pool',
    );
    return { enabled: false, allows: () => true, close: () => Promise.resolve() };
  }
  // Everything that can be judged without waiting is judged before anything is opened.
  const given = new Endpoints(options.allow.map(parseAllowed));
  const { inferencePool, poolGroup } = options;
  const hasPool = inferencePool !== undefined && inferencePool !== '';
  const pool = hasPool ? parsePoolAddress(inferencePool, poolGroup) : undefined;
  if (given.size === 0 && options.allowFile === undefined && pool === undefined) {
    const message =
      '--enable-ssrf-protection has nothing to allow; add --inference-pool, --ssrf-allow or --ssrf-allow-file';
    throw new KvpeerError('KVPEER_INVALID_OPTION', message);
  }
  const sources: AllowSource[] = [
    { allows: (host, port) => given.has(host, port), close: () => Promise.resolve() },
  ];
  const close = async (): Promise<void> => {
    await Promise.all(sources.map((source) => source.close()));
  };
  try {
    if (options.allowFile !== undefined) sources.push(await openAllowFile(options.allowFile, log));
    if (pool !== undefined) {
      if (!hasKubeConfig()) throw noCluster('there is no configuration');
      const { openCluster } = await import('./cluster.js');
      sources.push(await openInferencePool(openCluster(), { pool, ports: options.poolPorts }, log));
    }
  } catch (error) {
    await close();
    throw error;
  }
  return {
    enabled: true,
    allows: (host, port) => sources.some((source) => source.allows(host, port)),
    close,
  };
}

function parseAllowed(text: string): { host: string; port: number } {
  const address = parseHostPort(text);
  if ('reason' in address) {
    const message = `--ssrf-allow ${JSON.stringify(text)} ${address.reason}; write HOST:PORT, IPv6 in brackets`;
    throw new KvpeerError('KVPEER_INVALID_OPTION', message);
  }
  return address;
}
