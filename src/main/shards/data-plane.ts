// The receive agent: what remote peers write through. Owned by main, made before the workers start.

import { existsSync } from 'node:fs';
import type { PoolHandle } from '../../../native/index.js';
import type { Arrivals, ReceiveAgent } from '../../../native/nixl.js';
import { loadNixl } from '../../../native/nixl.js';
import { resolveNixl } from '../../shared/nixl-dir.js';
import { applyNixlEnvironment } from '../../shared/nixl-environment.js';
import { KvpeerError } from '../errors.js';
import type { DataPlaneStatus } from '../observe/health.js';
import type { DataPlane } from './running-shards.js';
import { transportsIn } from './transports.js';

/** Where the kernel lists RDMA devices. */
const RDMA_DEVICES = '/sys/class/infiniband';

/** Metadata of a node without a data plane, and what it accepts from others. */
/** What a node without a data plane announces in place of a NIXL agent's metadata. */
export const NO_METADATA = Buffer.from('none');

export interface OwnedDataPlane extends DataPlane {
  readonly status: DataPlaneStatus;
  /** See LandingGate; undefined while there is no receive agent. */
  waitingArrivals(): Arrivals | undefined;
  haveBeenRead(arrivals: Arrivals): boolean;
  /** Destroys the receive agent; the pool may be unmapped afterwards. Idempotent. */
  close(): Promise<void>;
}

/** Where the NIXL library is, with its environment applied: before any worker starts. */
export interface NixlLibrary {
  readonly libraryPath: string;
  readonly version: string;
  /** The settings that chose the transports. */
  readonly settings: string;
}

/**
 * Finds the library and puts UCX's settings into the environment. Only on the main thread, before workers start: theirs
 * is a copy that the library does not see.
 *
 * @throws KVPEER_NIXL_UNAVAILABLE with reason and remedy
 */
export function prepareNixl(host: string): NixlLibrary {
  const location = resolveNixl();
  if (location.kind === 'missing') {
    throw new KvpeerError('KVPEER_NIXL_UNAVAILABLE', `${location.reason} ${location.remedy}`);
  }
  const settings = applyNixlEnvironment(host);
  const chosenBy = settings.filter(({ name }) => name === 'UCX_TLS' || name === 'UCX_NET_DEVICES');
  return {
    libraryPath: location.libraryPath,
    version: location.version,
    settings: chosenBy.map(({ name, value }) => `${name}=${value}`).join(' '),
  };
}

/** Without NIXL: peers connect and look up, nothing is moved. */
export function noDataPlane(): OwnedDataPlane {
  return {
    name: 'none',
    status: { name: 'none', version: '', transports: '' },
    baseAddr: 0,
    offersCma: false,
    metadata: () => NO_METADATA,
    waitingArrivals: () => undefined,
    haveBeenRead: () => true,
    recycle: () => Promise.resolve(),
    close: () => Promise.resolve(),
  };
}

/** Makes the receive agent over the pool, off the event loop. */
export async function startDataPlane(
  library: NixlLibrary,
  pool: PoolHandle,
  numBlocks: number,
  blockBytes: number,
): Promise<OwnedDataPlane> {
  const nixl = loadNixl();
  const create = (): Promise<ReceiveAgent> =>
    nixl.createReceiveAgent(library.libraryPath, pool, numBlocks, blockBytes);
  let agent: ReceiveAgent | undefined;
  try {
    agent = await create();
  } catch (cause) {
    throw new KvpeerError(
      'KVPEER_NIXL_UNAVAILABLE',
      `NIXL at ${library.libraryPath} cannot be used: ${cause instanceof Error ? cause.message : String(cause)}; run the set-up again, check UCX_TLS, or start with --data-plane none`,
      { cause },
    );
  }
  let metadata = Buffer.from(agent.metadata);
  let replacing = Promise.resolve();
  let isClosed = false;
  const destroy = async (): Promise<void> => {
    const last = agent;
    agent = undefined;
    if (last) await nixl.destroyReceiveAgent(last.handle);
  };
  const replace = async (): Promise<void> => {
    await destroy();
    if (isClosed) return;
    agent = await create();
    metadata = Buffer.from(agent.metadata);
  };
  const transports = transportsIn(metadata, existsSync(RDMA_DEVICES));
  return {
    name: 'nixl',
    status: {
      name: 'nixl',
      version: library.version,
      transports: `${transports.join(', ')} (${library.settings})`,
    },
    baseAddr: agent.baseAddr,
    offersCma: transports.includes('cma'),
    metadata: () => metadata,
    waitingArrivals: () => agent && nixl.waitingArrivals(agent.handle),
    haveBeenRead: (arrivals) => nixl.haveBeenRead(arrivals),
    recycle: () => {
      replacing = replace();
      return replacing;
    },
    close: async () => {
      isClosed = true;
      // An agent that is being made or destroyed holds the pool.
      await replacing.catch(() => undefined);
      await destroy();
    },
  };
}
