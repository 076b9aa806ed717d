// The two mappings of a node: sized, checked against what the host has, made, touched, and taken over after a restart.

import { randomBytes } from 'node:crypto';
import { statSync, unlinkSync } from 'node:fs';
import { type Native, loadNative } from '../../../native/index.js';
import { type Layout, computeLayout } from '../../shared/layout.js';
import { readLayout, writeHeader, writeIncarnation } from '../../shared/layout-header.js';
import { KvpeerError } from '../errors.js';
import { type MemorySources, checkMemory, hostMemory } from './memory-limits.js';

export interface MemoryOptions {
  /** Memory for blocks; whole slots, the same number in every shard, are made of it. */
  readonly poolBytes: number;
  readonly blockBytes: number;
  readonly keyBytes: number;
  readonly shardCount: number;
  readonly ringCapacity?: number | undefined;
  /** Undefined: by the size of the pool. */
  readonly arenaBytes?: number | undefined;
  /** Directory on a tmpfs where both mappings are files, for another process to map. Undefined: private memory. */
  readonly sharedDirectory?: string | undefined;
}

export interface NodeMemory {
  readonly layout: Layout;
  readonly control: SharedArrayBuffer;
  readonly pool: SharedArrayBuffer;
  /** It holds blocks of an earlier process: shards rebuild themselves from the slot records. */
  readonly isAdopted: boolean;
  /** Why the pool is not locked or has no huge pages although asked for; empty otherwise. */
  readonly notes: readonly string[];
  /** Paths of the two files of shared memory; removeFiles() takes the names away once every user has mapped them. */
  readonly files: { readonly control: string; readonly pool: string } | undefined;
  removeFiles(): void;
}

/**
 * Sizes of both mappings.
 *
 * @throws KVPEER_INVALID_OPTION naming what does not fit
 */
export function planMemory(options: MemoryOptions): Layout {
  try {
    return computeLayout({
      numBlocks: Math.floor(options.poolBytes / options.blockBytes),
      blockBytes: options.blockBytes,
      keyBytes: options.keyBytes,
      shardCount: options.shardCount,
      ...(options.ringCapacity === undefined ? {} : { ringCapacity: options.ringCapacity }),
      ...(options.arenaBytes === undefined ? {} : { arenaBytes: options.arenaBytes }),
    });
  } catch (cause) {
    if (!(cause instanceof RangeError)) throw cause;
    throw new KvpeerError(
      'KVPEER_INVALID_OPTION',
      `a pool of ${options.poolBytes} bytes in blocks of ${options.blockBytes} over ${options.shardCount} shards cannot be made: ` +
        `${cause.message}; change poolBytes, blockBytes or shards`,
      { cause },
    );
  }
}

/**
 * Makes both mappings and touches every page off the event loop. The memory is checked for before anything is mapped:
 * a node that would be killed later says so now.
 *
 * @throws KVPEER_MEMORY, KVPEER_INVALID_OPTION
 */
export async function mapMemory(
  options: MemoryOptions,
  sources: MemorySources = hostMemory,
): Promise<NodeMemory> {
  const layout = planMemory(options);
  const { controlBytes, poolBytes } = layout;
  checkMemory(controlBytes + poolBytes, poolBytes, options.sharedDirectory, sources);
  const native = loadNative();
  const files = fileNames(options.sharedDirectory);
  const memory = await mapBoth(native, layout, files);
  writeHeader(memory.control, layout, { seed: random64(), incarnation: random64() });
  return memory;
}

/**
 * Takes over the files of a process that has ended: what is READY there stays. The new process is another incarnation.
 *
 * @throws KVPEER_MEMORY when they are no pool of this version
 */
export async function adoptMemory(files: {
  readonly control: string;
  readonly pool: string;
}): Promise<NodeMemory> {
  const native = loadNative();
  const options = { huge: false, lock: true, create: false };
  try {
    const control = native.mapFile(files.control, { ...options, bytes: statSync(files.control).size });
    const layout = readLayout(control.buffer);
    const pool = native.mapFile(files.pool, { ...options, bytes: layout.poolBytes });
    await touch(native, control.buffer, pool.buffer);
    // Armed and stop words, ring indexes and counters belong to the threads of the old process.
    const { wordsOffset, scratchOffset, countersOffset, arenaOffset } = layout;
    new Uint8Array(control.buffer, wordsOffset, scratchOffset - wordsOffset).fill(0);
    new Uint8Array(control.buffer, countersOffset, arenaOffset - countersOffset).fill(0);
    writeIncarnation(control.buffer, random64());
    return {
      layout,
      control: control.buffer,
      pool: pool.buffer,
      isAdopted: true,
      notes: [control.reason, pool.reason].filter((reason) => reason !== ''),
      files,
      removeFiles: () => {
        remove(files);
      },
    };
  } catch (cause) {
    throw new KvpeerError(
      'KVPEER_MEMORY',
      `the pool in ${files.pool} and ${files.control} cannot be taken over: ${textOf(cause)}; remove the files and start with a new pool`,
      { cause },
    );
  }
}

async function mapBoth(native: Native, layout: Layout, files: NodeMemory['files']): Promise<NodeMemory> {
  try {
    const map = (bytes: number, path: string | undefined): ReturnType<Native['mapAnonymous']> =>
      path === undefined
        ? native.mapAnonymous({ bytes, huge: true, lock: true })
        : native.mapFile(path, { bytes, huge: true, lock: true, create: true });
    const control = map(layout.controlBytes, files?.control);
    const pool = map(layout.poolBytes, files?.pool);
    await touch(native, control.buffer, pool.buffer);
    return {
      layout,
      control: control.buffer,
      pool: pool.buffer,
      isAdopted: false,
      notes: [pool.reason].filter((reason) => reason !== ''),
      files,
      removeFiles: () => {
        remove(files);
      },
    };
  } catch (cause) {
    remove(files);
    throw new KvpeerError(
      'KVPEER_MEMORY',
      `${layout.poolBytes} bytes for the pool and ${layout.controlBytes} for its index cannot be mapped` +
        `${files === undefined ? '' : ` at ${files.pool}`}: ${textOf(cause)}; lower --pool-bytes or make room`,
      { cause },
    );
  }
}

async function touch(native: Native, control: SharedArrayBuffer, pool: SharedArrayBuffer): Promise<void> {
  await Promise.all([native.touch(control), native.touch(pool)]);
}

function fileNames(directory: string | undefined): NodeMemory['files'] {
  if (directory === undefined) return undefined;
  const name = `${directory}/kvpeer-${process.pid}-${randomBytes(6).toString('hex')}`;
  return { control: `${name}-control`, pool: `${name}-pool` };
}

function remove(files: NodeMemory['files']): void {
  for (const path of files === undefined ? [] : [files.control, files.pool]) {
    try {
      unlinkSync(path);
    } catch (error) {
      // Already removed, or never made.
      if (!(error instanceof Error && 'code' in error && error.code === 'ENOENT')) throw error;
    }
  }
}

function random64(): bigint {
  return randomBytes(8).readBigUInt64LE();
}

function textOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
