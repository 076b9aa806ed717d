// Puts the parts below the control plane together: memory, data plane, workers, client; and takes them apart again.

import { type ControlHandle, type PoolHandle, loadNative } from '../../../native/index.js';
import { type Counter, CounterReader, Counter as Count } from '../../shared/counters.js';
import {
  RING_HEAD_OFFSET,
  RING_TAIL_OFFSET,
  completionRing,
  submissionRing,
  workerArmedWord,
  workerStopWord,
} from '../../shared/layout.js';
import { Opcode, Outcome, REBUILD_BATCH_KEYS, RebuildMode } from '../../shared/operations.js';
import { makeResidencyMarks } from '../../shared/residency-marks.js';
import { wakeWorker } from '../../shared/ring.js';
import { KvpeerError } from '../errors.js';
import type { RingDepth } from '../observe/metrics.js';
import { ShardsClient } from './client.js';
import { noDataPlane, prepareNixl, startDataPlane } from './data-plane.js';
import { LandingGate } from './landing.js';
import { type MemoryOptions, type NodeMemory, mapMemory } from './memory.js';
import { WorkerPool } from './pool.js';
import type { RunningShards } from './running-shards.js';
import type { ExtentSet } from './slot-set.js';

/** Operations that may wait for room at a time. */
const MAX_WAITING = 4096;

export interface StartShardsOptions extends Omit<MemoryOptions, 'shardCount'> {
  /** Shards and workers. */
  readonly shards: number;
  readonly dataPlane: 'nixl' | 'none';
  /** Address the node is reached at: decides the network device NIXL uses. */
  readonly host: string;
  readonly queueMs: number;
  /** Workers mark what comes and goes, for KV events. */
  readonly marksResidency?: boolean | undefined;
  /** See MoverOptions. */
  readonly retireMs?: number | undefined;
  /** Memory that was made or adopted before; it is the caller's choice then what it holds. */
  readonly memory?: NodeMemory | undefined;
  /** See PoolOptions; for tests. */
  readonly workerFile?: string | undefined;
  readonly fault?: SharedArrayBuffer | undefined;
  readonly resourceLimits?: { readonly maxOldGenerationSizeMb: number } | undefined;
}

/** The part of pino that the shards use. */
export interface ShardsLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
  fatal(fields: object, message: string): void;
}

export interface StartedShards extends RunningShards {
  readonly client: ShardsClient;
  readonly workers: WorkerPool;
  readonly memory: NodeMemory;
  /** With `marksResidency`. */
  readonly residencyMarks: SharedArrayBuffer | undefined;
}

/**
 * Movers are the last max(1, floor(N / 2)) workers: the others are always free for lookups.
 */
export function moversOf(shardCount: number): number[] {
  const count = Math.max(1, Math.floor(shardCount / 2));
  return Array.from({ length: count }, (_, i) => shardCount - count + i);
}

/**
 * Starts everything below the control plane.
 *
 * @throws KVPEER_MEMORY, KVPEER_INVALID_OPTION, KVPEER_NIXL_UNAVAILABLE, KVPEER_NATIVE_UNAVAILABLE; nothing is left
 *   behind then
 */
export async function startShards(options: StartShardsOptions, log: ShardsLog): Promise<StartedShards> {
  // Before any worker: theirs is a copy of the environment that the library does not see.
  const library = options.dataPlane === 'nixl' ? prepareNixl(options.host) : undefined;
  const memory = options.memory ?? (await mapMemory({ ...options, shardCount: options.shards }));
  for (const note of memory.notes) log.warn({ part: 'memory' }, note);
  const { layout, control } = memory;
  const native = loadNative();
  const undo: (() => Promise<void> | void)[] = [];
  try {
    const controlHandle: ControlHandle = native.attachControl(control);
    undo.push(() => {
      native.detach(controlHandle);
    });
    const poolHandle: PoolHandle = native.attachPool(memory.pool, controlHandle);
    undo.push(() => {
      native.detach(poolHandle);
    });
    const dataPlane =
      library === undefined
        ? noDataPlane()
        : await startDataPlane(library, poolHandle, layout.numBlocks, layout.blockBytes);
    undo.push(() => dataPlane.close());
    const landing = new LandingGate({
      waitingArrivals: () => dataPlane.waitingArrivals(),
      haveBeenRead: (arrivals) => dataPlane.haveBeenRead(arrivals),
      after: (ms, callback) => void setTimeout(callback, ms),
    });
    const client = new ShardsClient({
      control,
      layout,
      release: (extent) => {
        native.release(controlHandle, extent);
      },
      matchHere: (extent) => native.match(controlHandle, extent, 0, -1, 0, -1),
      holdBuffer: (source) => native.holdBuffer(source),
      dropBuffer: (token) => {
        native.dropBuffer(token);
      },
      movers: library === undefined ? [] : moversOf(layout.shardCount),
      ...(library === undefined
        ? {}
        : {
            whenLanded: (then: () => void) => {
              landing.whenLanded(then);
            },
          }),
      queueMs: options.queueMs,
      maxWaitingCount: MAX_WAITING,
      onTrouble: (text) => {
        log.warn({ part: 'shards' }, text);
      },
    });
    const waker = native.createWaker(client.inFlight.drain);
    undo.push(() => {
      native.closeWaker(waker);
    });
    let fatal: KvpeerError | undefined;
    const words = client.extents.memory.words;
    const spaces = Array.from({ length: layout.shardCount }, () => makeRebuildSpace(client));
    const rebuild = (worker: number, mode: RebuildMode, done: () => void): void => {
      rebuildShard(client, spaces[worker], worker, mode, (outcome) => {
        if (outcome !== Outcome.Ok) {
          log.error(
            { part: 'shards', worker, outcome },
            'a shard could not be rebuilt from its slot records',
          );
        }
        done();
      });
    };
    const residencyMarks = options.marksResidency === true ? makeResidencyMarks(layout) : undefined;
    const workers = await WorkerPool.start({
      shardCount: layout.shardCount,
      task: {
        control,
        pool: memory.pool,
        waker,
        retireMs: options.retireMs,
        residencyMarks,
        fault: options.fault,
      },
      nixlLibraryOf: (worker) =>
        moversOf(layout.shardCount).includes(worker) ? library?.libraryPath : undefined,
      stop: (worker) => {
        Atomics.store(words, workerStopWord(layout, worker) / 4, 1);
        wakeWorker(words, workerArmedWord(layout, worker));
      },
      workerFile: options.workerFile,
      resourceLimits: options.resourceLimits,
      events: {
        onWorkerLost: (worker, reason) => {
          log.error({ part: 'shards', worker, reason }, 'a shard worker died; it is being replaced');
          client.inFlight.workerLost(worker);
          client.extents.markClaimed(worker);
        },
        onWorkerUp: (worker) => {
          client.inFlight.workerUp(worker, () => {
            rebuild(worker, RebuildMode.Replaced, () => {
              log.info({ part: 'shards', worker }, 'the shard is rebuilt and serves again');
            });
            client.peers.loadAgain(worker);
          });
        },
        onLog: (worker, level, text) => {
          log[level]({ part: 'shards', worker }, text);
        },
        onFatal: (error) => {
          fatal = error;
          log.fatal({ part: 'shards', code: error.code }, error.message);
        },
      },
    });
    undo.push(async () => {
      await workers.close();
      landing.close();
      client.close();
    });
    if (memory.isAdopted) {
      await Promise.all(
        Array.from(
          { length: layout.shardCount },
          (_, worker) =>
            new Promise<void>((resolve) => {
              rebuild(worker, RebuildMode.Adopted, resolve);
            }),
        ),
      );
    }
    const counters = new CounterReader(control, layout);
    let closing: Promise<void> | undefined;
    return {
      client,
      workers,
      memory,
      residencyMarks,
      shardCount: layout.shardCount,
      pool: memory.pool,
      dataPlane,
      dataPlaneStatus: dataPlane.status,
      get restartCount() {
        return workers.restartCount;
      },
      counter: (counter: Counter) => counters.total(counter),
      stats: () => {
        const free = counters.total(Count.FreeSlots);
        const writing = counters.total(Count.WritingSlots);
        const quarantined = counters.total(Count.QuarantinedSlots);
        const ready = layout.numBlocks - free - writing - quarantined;
        return {
          slots: { free, writing, ready, quarantined },
          pins: client.pinCount,
          nixlPeers: client.peers.count,
        };
      },
      ringDepths: () =>
        Array.from({ length: layout.shardCount }, (_, worker): RingDepth => {
          const depth = (ring: number): number =>
            (Atomics.load(words, (ring + RING_TAIL_OFFSET) / 4) -
              Atomics.load(words, (ring + RING_HEAD_OFFSET) / 4)) |
            0;
          return {
            submission: depth(submissionRing(layout, worker)),
            completion: depth(completionRing(layout, worker)),
          };
        }),
      troubles: () => [
        ...(fatal === undefined ? [] : [fatal.message]),
        ...Array.from({ length: layout.shardCount }, (_, worker) => worker)
          .filter((worker) => !workers.isUp(worker))
          .map((worker) => `worker ${worker} died and is being replaced`),
      ],
      close: () => {
        closing ??= runAll(undo);
        return closing;
      },
    };
  } catch (error) {
    await runAll(undo);
    throw error;
  }
}

/** Working space of a rebuild, made at the start: a worker can be replaced however full the arena is. */
function makeRebuildSpace(client: ShardsClient): ExtentSet {
  const space = client.extents.make({
    count: REBUILD_BATCH_KEYS,
    spaceBytes: REBUILD_BATCH_KEYS * client.keyBytes,
    flags: 0,
    pinLimit: 0,
    peerNumBlocks: 0,
  });
  if (space !== undefined) return space;
  throw new KvpeerError(
    'KVPEER_INVALID_OPTION',
    'the request arena has no room to rebuild a shard in; raise --arena-bytes',
  );
}

/** The first operation of a worker that takes over a shard: given to it before anything that waits. */
function rebuildShard(
  client: ShardsClient,
  space: ExtentSet,
  worker: number,
  mode: RebuildMode,
  done: (outcome: number) => void,
): void {
  client.inFlight.submit(
    {
      opcode: Opcode.Rebuild,
      extent: space.extent,
      arg0: mode,
      arg1: 0,
      arg2: 0,
      // Its own replacement is rebuilt anyway.
      onWorkerLost: 'fail',
      done,
    },
    1 << worker,
  );
}

/** In the opposite order of their making; all of them, whatever fails. */
async function runAll(undo: (() => Promise<void> | void)[]): Promise<void> {
  const errors: unknown[] = [];
  for (const step of undo.splice(0).reverse()) {
    try {
      await step();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
}
