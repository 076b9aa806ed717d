// The memory of a bare client: a pool that producers write into through NIXL, and nothing that decides about it.

import { loadNative } from '../../native/index.js';
import type { ControlHandle, PoolHandle } from '../../native/index.js';
import { loadNixl } from '../../native/nixl.js';
import type { Layout } from '../../src/shared/layout.js';
import { writeHeader } from '../../src/shared/layout-header.js';
import { computeLayout, slotOffset } from '../../src/shared/layout.js';
import { resolveNixl } from '../../src/shared/nixl-dir.js';
import { applyNixlEnvironment } from '../../src/shared/nixl-environment.js';
import { KEY_BYTES } from './keys.js';
import type { AnnouncedMemory } from './wire-client.js';

export interface PoolSize {
  readonly numBlocks: number;
  readonly blockBytes: number;
}

/** A pool with its control mapping, both attached in this thread. */
export interface BarePool {
  readonly layout: Layout;
  readonly control: SharedArrayBuffer;
  readonly controlHandle: ControlHandle;
  readonly pool: SharedArrayBuffer;
  readonly poolHandle: PoolHandle;
}

/** @param byte what every byte of the pool is */
export async function makePool({ numBlocks, blockBytes }: PoolSize, byte: number): Promise<BarePool> {
  const native = loadNative();
  const layout = computeLayout({ numBlocks, blockBytes, keyBytes: KEY_BYTES, shardCount: 1 });
  const map = (bytes: number): SharedArrayBuffer =>
    native.mapAnonymous({ bytes, huge: true, lock: false }).buffer;
  const control = map(layout.controlBytes);
  const pool = map(layout.poolBytes);
  await native.touch(pool);
  writeHeader(control, layout, { seed: 1n, incarnation: 1n });
  for (let slot = 0; slot < numBlocks; slot++) {
    new Uint8Array(pool, slotOffset(layout, slot), blockBytes).fill(byte);
  }
  const controlHandle = native.attachControl(control);
  return { layout, control, controlHandle, pool, poolHandle: native.attachPool(pool, controlHandle) };
}

/** Path of the library, its environment set. @throws when NIXL is not there */
export function nixlLibrary(): string {
  applyNixlEnvironment('127.0.0.1');
  const location = resolveNixl();
  if (location.kind === 'missing') throw new Error(`${location.reason} ${location.remedy}`);
  return location.libraryPath;
}

/** A pool that others can write to. */
export async function receivingMemory(
  size: PoolSize,
): Promise<AnnouncedMemory & { readonly bare: BarePool }> {
  const library = nixlLibrary();
  const bare = await makePool(size, 0);
  const agent = await loadNixl().createReceiveAgent(
    library,
    bare.poolHandle,
    size.numBlocks,
    size.blockBytes,
  );
  return { ...size, agentMetadata: agent.metadata, baseAddr: agent.baseAddr, bare };
}
