// `kvpeer replay`: replays a request trace through real peers on this host and reports what happened.
import { basename } from 'node:path';
import { Command, InvalidArgumentError, Option } from 'commander';
import { KvpeerError } from '../errors.js';
import { shardCountFor, usableCores } from '../options/cores.js';
import { parseBytes } from '../options/kinds.js';
import { hostMemory, memoryBound } from '../shards/memory-limits.js';
import { EXIT_FAILED, EXIT_OK } from './exit-codes.js';
import { renderPage } from './replay/html.js';
import { loadTrace } from './replay/load-trace.js';
import { runReplay } from './replay/orchestrator.js';
import { PLACEMENTS, type Placement } from './replay/placement.js';
import { makeProgress, type Progress } from './replay/progress.js';
import { checkReportFiles, writeReportFiles } from './replay/report-files.js';
import { findProblems, formatBytes, formatReport, group, type ReplayReport } from './replay/report.js';
import { choosePoolBytes } from './replay/sizing.js';
import { ReplayTally } from './replay/tally.js';

interface ReplayFlags {
  readonly trace?: string;
  readonly requests?: number;
  readonly skip: number;
  readonly peers: number;
  readonly blockBytes: number;
  readonly poolBytes?: number;
  readonly placement: Placement;
  readonly concurrency: number;
  readonly seed: number;
  readonly dataPlane: 'nixl' | 'none';
  readonly json?: string;
  readonly html?: string;
  readonly strict: boolean;
}

const MAX_PEERS = 64;
const MAX_CONCURRENCY = 4096;
const BLOCK_BYTES_UNIT = 4096;
const MAX_BLOCK_BYTES = 2 ** 30;
const MAX_POOL_BYTES = 2 ** 46;

/** Bad lines that are shown one by one; the others are only counted. */
const SHOWN_BAD_LINES = 100;

/** Exit statuses of a run that a signal ended, as shells have them: 128 and the signal's number. */
const SIGNAL_STATUS = { SIGHUP: 129, SIGINT: 130, SIGTERM: 143 } as const;

/** A signal so soon after the first is the same one on another way. */
const SAME_SIGNAL_MS = 500;

type EndSignal = keyof typeof SIGNAL_STATUS;

/** The command, to be added to the `kvpeer` program. */
export function replayCommand(): Command {
  return new Command('replay')
    .description(
      'Replay a request trace through real peers on this host: each peer is a process of its own, blocks move over ' +
        'ZeroMQ and NIXL, and every byte that was pulled is verified.',
    )
    .option(
      '--trace <file>',
      'trace with one JSON object per line (default: a built-in conversation-like trace)',
    )
    .option('--requests <n>', 'replay this many requests (default: all of a trace)', integer(1))
    .option('--skip <n>', 'pass over this many requests first', integer(0), 0)
    .option('--peers <n>', 'peer processes', integer(1, MAX_PEERS), 4)
    .option('--block-bytes <bytes>', 'bytes per block, a multiple of 4096', blockSize, 65_536)
    .option(
      '--pool-bytes <bytes>',
      'pool of each peer (default: room for every distinct block)',
      size(BLOCK_BYTES_UNIT, MAX_POOL_BYTES),
    )
    .addOption(
      new Option('--placement <how>', 'which peer computes a request')
        .choices(PLACEMENTS)
        .default('round-robin'),
    )
    .option(
      '--concurrency <n>',
      'requests in flight; with 1 the counts are exact',
      integer(1, MAX_CONCURRENCY),
      1,
    )
    .option('--seed <n>', 'for the built-in trace and random placement', integer(0), 1)
    .addOption(
      new Option('--data-plane <name>', 'how blocks move; with none nothing is pulled')
        .choices(['nixl', 'none'])
        .env('KVPEER_DATA_PLANE')
        .default('nixl'),
    )
    .option('--json <file>', 'write the report as JSON')
    .option('--html <file>', 'write the report as one HTML page with charts')
    .option('--strict', 'stop at the first bad trace line', false)
    .addHelpText(
      'after',
      '\nExit status: 0 when nothing mismatched and nothing failed, 1 otherwise, 130 after Ctrl-C (with the report so far).',
    )
    .action(async (flags: ReplayFlags) => {
      process.exitCode = await replay(flags);
    });
}

/** Runs the replay and returns the exit status. */
async function replay(flags: ReplayFlags): Promise<number> {
  await checkReportFiles(flags);
  const progress = makeProgress(process.stderr);
  const end = listenForSignals(progress);
  try {
    const tally = new ReplayTally();
    const trace = await loadTrace(
      { file: flags.trace, skip: flags.skip, count: flags.requests, seed: flags.seed, strict: flags.strict },
      ({ line, reason }) => {
        tally.badLines += 1;
        if (tally.badLines <= SHOWN_BAD_LINES) progress.say(`trace line ${line} passed over: ${reason}`);
        if (tally.badLines === SHOWN_BAD_LINES) progress.say('further bad lines are only counted');
      },
      end.stop,
    );
    const shards = shardCountFor(usableCores());
    const poolBytes = choosePoolBytes({
      peers: flags.peers,
      blockBytes: flags.blockBytes,
      shards,
      distinctBlocks: trace.distinctBlocks,
      poolBytes: flags.poolBytes,
      freeBytes: memoryBound(hostMemory)?.bytes,
    });
    progress.say(
      `${group(trace.requests.length)} requests with ${group(trace.distinctBlocks)} distinct blocks through ` +
        `${flags.peers} peers, each with a pool of ${formatBytes(poolBytes)} in blocks of ${formatBytes(flags.blockBytes)}`,
    );
    const report = await runReplay(
      {
        requests: trace.requests,
        peers: flags.peers,
        peer: { blockBytes: flags.blockBytes, poolBytes, shards, dataPlane: flags.dataPlane },
        placement: flags.placement,
        concurrency: flags.concurrency,
        seed: flags.seed,
      },
      tally,
      {
        onStarted: () => {
          progress.start(trace.requests.length);
        },
        onRequest: () => {
          progress.update(tally);
        },
        onTrouble: (text) => {
          progress.say(text);
        },
      },
      end.stop,
    );
    progress.stop();
    const faults = await writeReports(flags, report, tally, end.signal !== undefined);
    process.stdout.write(formatReport(report));
    if (faults.length > 0) throw new KvpeerError('KVPEER_REPORT', faults.join('\n'));
    if (end.signal !== undefined) return SIGNAL_STATUS[end.signal];
    return findProblems(report).length === 0 ? EXIT_OK : EXIT_FAILED;
  } finally {
    progress.stop();
    end.release();
  }
}

/** @returns a sentence for each report that could not be written */
async function writeReports(
  flags: ReplayFlags,
  report: ReplayReport,
  tally: ReplayTally,
  isInterrupted: boolean,
): Promise<readonly string[]> {
  return writeReportFiles(flags, {
    json: () => `${JSON.stringify(report, null, 2)}\n`,
    html: () =>
      renderPage(report, tally.samples, {
        traceName: flags.trace === undefined ? `built-in trace, seed ${flags.seed}` : basename(flags.trace),
        blockBytes: flags.blockBytes,
        concurrency: flags.concurrency,
        placement: flags.placement,
        endedAt: new Date(),
        isInterrupted,
      }),
  });
}

interface SignalWatch {
  readonly stop: AbortSignal;
  /** The signal that ended the run, if one did. */
  readonly signal: EndSignal | undefined;
  release(): void;
}

/**
 * The first signal ends the run with the report so far, a later one ends it at once. A terminal's Ctrl-C arrives twice
 * when npm is in between, since npm passes on what the terminal has sent to all: what follows at once is the same one.
 */
function listenForSignals(progress: Progress): SignalWatch {
  const controller = new AbortController();
  let received: EndSignal | undefined;
  let receivedMs = 0;
  const names = Object.keys(SIGNAL_STATUS) as EndSignal[];
  const release = (): void => {
    for (const name of names) process.off(name, onSignal);
  };
  const onSignal = (name: EndSignal): void => {
    if (received === undefined) {
      received = name;
      receivedMs = performance.now();
      progress.say('ending: requests in flight may finish, then comes the report (again to end at once)');
      controller.abort();
    } else if (performance.now() - receivedMs > SAME_SIGNAL_MS) {
      // Without our listener the system's own answer applies; the peers end with their parent.
      release();
      process.kill(process.pid, name);
    }
  };
  for (const name of names) process.on(name, onSignal);
  return {
    stop: controller.signal,
    get signal() {
      return received;
    },
    release,
  };
}

function integer(least: number, most = Number.MAX_SAFE_INTEGER): (text: string) => number {
  return (text) => {
    const value = /^\d+$/.test(text) ? Number(text) : NaN;
    if (value >= least && value <= most) return value;
    const range = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`;
    throw new InvalidArgumentError(`It must be an integer ${range}.`);
  };
}

function size(least: number, most: number): (text: string) => number {
  return (text) => {
    const value = parseBytes(text);
    if (value !== undefined && value >= least && value <= most) return value;
    throw new InvalidArgumentError(
      `It must be a size from ${formatBytes(least)} to ${formatBytes(most)}, as a number of bytes or like 64KiB.`,
    );
  };
}

function blockSize(text: string): number {
  const value = size(BLOCK_BYTES_UNIT, MAX_BLOCK_BYTES)(text);
  if (value % BLOCK_BYTES_UNIT === 0) return value;
  throw new InvalidArgumentError(`It must be a multiple of ${BLOCK_BYTES_UNIT}.`);
}
