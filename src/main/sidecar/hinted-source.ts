// The KV source that a request's kv_hints name, for requests whose headers and params name none.

import { withHints, type IgnoredHint } from '../params/hints.js';
import { parseParamsOrThrow } from '../params/build.js';
import type { PeerAddress, RemoteKvSource } from '../params/types.js';
import type { AllowList } from './allow-list.js';

export interface HintedSourceOptions {
  readonly allowList: Pick<AllowList, 'allows'>;
  /** The sidecar's own port: the one that the routing headers name, rank 0's. */
  readonly port: number;
  /** `--p2p-connector-port`: where rank 0 of an engine listens for peers. */
  readonly p2pConnectorPort: number;
  readonly dataParallelSize: number;
  readonly ignored: (reason: IgnoredHint) => void;
}

/**
 * The first source of the hints that may be pulled from. Its `filter` holds the hashes that it was named for; an engine
 * is told the address alone.
 *
 * @param hints the value of `kv_hints` as it stands in the body
 * @param self P2P addresses of the engine that computes the request
 */
export function hintedSource(
  hints: string | Uint8Array,
  self: readonly PeerAddress[],
  options: HintedSourceOptions,
): RemoteKvSource | undefined {
  const params = withHints(parseParamsOrThrow(undefined), hints, {
    allows: (host, port) => allowsP2p(host, port, options),
    self,
    ignored: options.ignored,
  });
  return params.remoteKvSource?.at(0);
}

/**
 * A hint names a P2P port, the allow-list mostly has serving ports. The sidecar itself derives a rank's P2P port from
 * its serving port when a header names that; so a P2P port is allowed when the serving port of its rank is.
 */
function allowsP2p(host: string, p2pPort: number, options: HintedSourceOptions): boolean {
  const { allowList, port, p2pConnectorPort, dataParallelSize } = options;
  if (allowList.allows(host, p2pPort)) return true;
  const rank = p2pPort - p2pConnectorPort;
  return rank >= 0 && rank < dataParallelSize && allowList.allows(host, port + rank);
}
