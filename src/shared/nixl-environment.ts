// The environment that NIXL's transport (UCX) needs before the library is loaded, and why.

import { readdirSync, readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { isIP, isIPv6 } from 'node:net';

const FIXED = {
  // UCX tests its memory hooks with sbrk outside malloc's lock: a thread that grows the heap meanwhile loses a page.
  UCX_MEM_EVENTS: 'n',
  // UCX would take SIGHUP for a debug dump.
  UCX_DEBUG_SIGNO: '0',
  // Its log goes to stdout otherwise. (/dev/stderr would truncate a redirected log.)
  UCX_LOG_FILE: 'stderr',
  // posix reports success for writes to a dead peer; without these two CMA and RDMA stay.
  UCX_TLS: '^posix,sysv',
} as const;

export interface NixlSetting {
  readonly name: string;
  readonly value: string;
  /** Set by the operator before: left as it was. */
  readonly isOperators: boolean;
}

type Interfaces = ReturnType<typeof networkInterfaces>;

/**
 * The settings in force for a node that listens on `host`. UCX listens on every interface unless told otherwise.
 *
 * @param host the node's bind address; for a wildcard or a name all interfaces are left open
 * @param rdmaPorts active RDMA ports as UCX names them
 */
export function nixlSettings(
  host: string,
  env: NodeJS.ProcessEnv = process.env,
  interfaces: Interfaces = networkInterfaces(),
  rdmaPorts: readonly string[] = activeRdmaPorts(),
): NixlSetting[] {
  const devices = netDevices(host, interfaces, rdmaPorts);
  const wanted = { ...FIXED, ...(devices === undefined ? {} : { UCX_NET_DEVICES: devices }) };
  return Object.entries(wanted).map(([name, value]) => {
    const own = env[name];
    return { name, value: own ?? value, isOperators: own !== undefined };
  });
}

/**
 * Puts the settings into this process's environment, never over what is there. Only on the main thread, before any
 * worker starts and before the library is loaded: a worker's process.env is a copy that the library does not see.
 */
export function applyNixlEnvironment(host: string): NixlSetting[] {
  const settings = nixlSettings(host);
  for (const { name, value } of settings) process.env[name] = value;
  return settings;
}

function netDevices(host: string, interfaces: Interfaces, rdmaPorts: readonly string[]): string | undefined {
  if (isIP(host) === 0) return undefined;
  const found = Object.entries(interfaces).find(([, addresses]) =>
    addresses?.some(({ address }) => canonical(address) === canonical(host)),
  );
  // All of 127.0.0.0/8 is the loopback interface's, listed or not.
  const name = found?.[0] ?? (host.startsWith('127.') ? 'lo' : undefined);
  if (name === undefined) return undefined;
  return name === 'lo' ? name : [...rdmaPorts, name].join(',');
}

/** IPv6 has many spellings of one address. */
function canonical(address: string): string {
  return isIPv6(address) ? new URL(`http://[${address.split('%', 1)[0]}]`).hostname : address;
}

/**
 * All active RDMA ports of the host, like `mlx5_0:1`: naming a network interface alone would leave them out. Not only
 * those of the interface's own card: in a container the address is on a virtual interface, the RDMA card beside it.
 */
export function activeRdmaPorts(folder = '/sys/class/infiniband'): string[] {
  return list(folder).flatMap((device) =>
    list(`${folder}/${device}/ports`)
      .filter((port) => isActive(`${folder}/${device}/ports/${port}/state`))
      .map((port) => `${device}:${port}`),
  );
}

/** A host without RDMA does not have these folders. */
function list(folder: string): string[] {
  try {
    return readdirSync(folder).sort();
  } catch {
    return [];
  }
}

function isActive(stateFile: string): boolean {
  try {
    return readFileSync(stateFile, 'utf8').includes('ACTIVE');
  } catch {
    return false;
  }
}
