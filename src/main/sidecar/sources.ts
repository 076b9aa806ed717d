// Whom a request names as its KV source or as its rank: by header or by hint, allowed, and told from this pod itself.

import type { IncomingMessage } from 'node:http';
import type { Logger } from 'pino';
import { formatHostPort } from '../params/address.js';
import type { PeerAddress } from '../params/types.js';
import type { AllowList } from './allow-list.js';
import type { JsonBody } from './body.js';
import { isEndpoint, readSource } from './headers.js';
import { hintedSource } from './hinted-source.js';
import { p2pPortOf } from './legs.js';
import type { SidecarMetrics } from './metrics.js';

export interface SourceOptions {
  /** Base port of the sidecar: rank r listens on port + r. */
  readonly port: number;
  readonly dataParallelSize: number;
  readonly p2pConnectorPort: number;
  /** POD_IP: tells a source that is this pod itself. */
  readonly podIp: string | undefined;
  /** `kv_hints` of a request may name a source; they go no further than here. */
  readonly readsHints: boolean;
}

export interface SourceParts {
  readonly options: SourceOptions;
  readonly allowList: AllowList;
  readonly metrics: SidecarMetrics;
  readonly log: Logger;
}

export const HINTS = 'kv_hints';
const NULL = Buffer.from('null');

export class Sources {
  readonly #parts: SourceParts;

  constructor(parts: SourceParts) {
    this.#parts = parts;
  }

  /** The serving endpoint that the header names, unless it is ignored (and counted). */
  named(request: IncomingMessage): PeerAddress | undefined {
    const { allowList, metrics, log } = this.#parts;
    const choice = readSource(request.rawHeaders);
    if (choice.kind === 'none') return undefined;
    if (choice.kind === 'malformed') {
      log.debug({ reason: choice.reason }, 'ignoring malformed KV cache source header');
      metrics.ignored('source-malformed');
      return undefined;
    }
    const { host, port } = choice.address;
    if (allowList.allows(host, port)) return choice.address;
    log.warn({ source: formatHostPort(choice.address) }, 'SSRF protection: KV cache source not in allowlist');
    metrics.ignored('source-denied');
    return undefined;
  }

  /** Another port of the same pod is another rank, and a legal source. */
  isSelf(source: PeerAddress, rank: number): boolean {
    const { podIp, port } = this.#parts.options;
    return podIp !== undefined && isEndpoint(formatHostPort(source), { host: podIp, port: port + rank });
  }

  /** The local rank that `x-data-parallel-host-port` names. */
  rankOf(text: string): number | undefined {
    const { podIp, port, dataParallelSize } = this.#parts.options;
    if (podIp === undefined) return undefined;
    for (let rank = 0; rank < dataParallelSize; rank++) {
      if (isEndpoint(text, { host: podIp, port: port + rank })) return rank;
    }
    return undefined;
  }

  /** The P2P address that belongs to a serving endpoint. */
  p2pAddress({ host, port }: PeerAddress): PeerAddress {
    const { port: servingPort, p2pConnectorPort: p2pPort, dataParallelSize: count } = this.#parts.options;
    return { host, port: p2pPortOf(port, { servingPort, p2pPort, count }) };
  }

  /** The P2P address of the engine of a rank, as far as it is known. */
  selfAt(rank: number): readonly PeerAddress[] {
    const { podIp, p2pConnectorPort } = this.#parts.options;
    return podIp === undefined ? [] : [{ host: podIp, port: p2pConnectorPort + rank }];
  }

  /**
   * The P2P address of the source that the request's hints name.
   *
   * @param self the engine that will pull; undefined when header or params have said who pulls from whom: they win
   */
  hinted({ body, object }: JsonBody, self: readonly PeerAddress[] | undefined): PeerAddress | undefined {
    const { options, allowList, metrics } = this.#parts;
    const member = object.members.findLast(({ key }) => key === HINTS);
    if (!options.readsHints || member === undefined) return undefined;
    const hints = body.slice(member.valueStart, member.valueEnd);
    if (hints.equals(NULL)) return undefined;
    if (self === undefined) {
      metrics.hintIgnored('params-win');
      return undefined;
    }
    const { port, p2pConnectorPort, dataParallelSize } = options;
    const ignored = metrics.hintIgnored.bind(metrics);
    const source = hintedSource(hints, self, {
      allowList,
      port,
      p2pConnectorPort,
      dataParallelSize,
      ignored,
    });
    return source === undefined ? undefined : { host: source.host, port: source.port };
  }
}
