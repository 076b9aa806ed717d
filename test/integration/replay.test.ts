// The replay command as a user runs it: real peers in processes of their own, checked against the model of the rules.
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { generateTrace } from '../../src/main/cli/replay/generator.js';
import { loadTrace, type LoadedTrace } from '../../src/main/cli/replay/load-trace.js';
import type { ReplayReport } from '../../src/main/cli/replay/report.js';
import { formatTraceLine } from '../../src/main/cli/replay/trace.js';
import { modelReplay } from '../fixtures/replay-model.js';

const COMMAND = fileURLToPath(new URL('../../dist/src/main/cli/kvpeer.js', import.meta.url));
const BLOCK_BYTES = 4096;
/** Four peer processes start in each test; on a busy machine of two cores that alone takes many seconds. */
const RUN_MS = 120_000;

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvpeer-replay-'));
});

afterAll(async () => {
  await rm(folder, { recursive: true });
});

interface Run {
  readonly child: ChildProcess;
  /** Everything printed so far. */
  readonly printed: () => string;
  /** Settles when the command has ended. */
  readonly ended: Promise<{ readonly status: number | null; readonly report: ReplayReport | undefined }>;
}

let runs = 0;

function startReplay(...args: string[]): Run {
  runs += 1;
  const json = join(folder, `report-${runs}.json`);
  const fixed = ['replay', '--block-bytes', String(BLOCK_BYTES), '--json', json];
  const child = spawn(process.execPath, [COMMAND, ...fixed, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (part: string) => {
      text += part;
    });
  }
  const ended = once(child, 'close').then(async ([status]: unknown[]) => ({
    status: status as number | null,
    report: await readFile(json, 'utf8').then(
      (content) => JSON.parse(content) as ReplayReport,
      () => undefined,
    ),
  }));
  return { child, printed: () => text, ended };
}

/** Runs to a report; a run without one fails with what it printed. */
async function replay(
  ...args: string[]
): Promise<{ status: number | null; report: ReplayReport; text: string }> {
  const run = startReplay(...args);
  const { status, report } = await run.ended;
  if (report === undefined) throw new Error(`no report, status ${String(status)}:\n${run.printed()}`);
  return { status, report, text: run.printed() };
}

function generated(count: number): Promise<LoadedTrace> {
  const selection = { file: undefined, skip: 0, count, seed: 1, strict: true };
  return loadTrace(selection, () => undefined, new AbortController().signal);
}

/** The pids of a command's peer processes, from the kernel's list of its children. */
async function childPids(child: ChildProcess): Promise<number[]> {
  const pid = String(child.pid);
  const list = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
  return list.split(' ').filter(Boolean).map(Number);
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Gone, or a zombie that its parent has not looked at yet. */
function isEnded(pid: number): boolean {
  try {
    return /^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return true;
  }
}

/** Waits for a condition that no event tells of, such as another process's end; the test's own limit bounds it. */
async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 20));
}

describe('kvpeer replay', () => {
  it(
    'moves exactly the blocks of the placement rules and verifies each of them',
    async () => {
      const { requests } = await generated(300);
      const model = modelReplay(requests, 4);
      const { status, report, text } = await replay('--requests', '300');
      expect(text).toContain('Every pulled byte was verified');
      expect(report).toMatchObject({
        requests: 300,
        blocks: {
          referenced: model.referenced,
          local: model.local,
          pulled: model.pulled,
          computed: model.computed,
          notStored: 0,
        },
        bytesPulled: model.pulled * BLOCK_BYTES,
        bytesServed: model.pulled * BLOCK_BYTES,
        served: { cut: 0, failed: 0 },
        verify: { blocks: model.pulled, mismatches: 0 },
        lookup: { count: model.lookups, keys: model.lookupKeys },
        load: { count: model.lookups, blocks: model.pulled },
        pins: { atEnd: 0 },
        quarantined: { atEnd: 0 },
        evictions: 0,
        failures: {},
        dataPlane: { name: 'nixl' },
      });
      expect(report.served.posts).toBeGreaterThanOrEqual(model.lookups);
      expect(new Set(report.peers.map(({ pid }) => pid)).size).toBe(4);
      expect(status).toBe(0);
    },
    RUN_MS,
  );

  it(
    'evicts with small pools and many requests in flight, and still verifies every block and leaves no pin',
    async () => {
      const { distinctBlocks } = await generated(300);
      const poolBytes = Math.floor(distinctBlocks / 4) * BLOCK_BYTES;
      const args = ['--requests', '300', '--pool-bytes', String(poolBytes), '--concurrency', '16'];
      const { status, report } = await replay(...args, '--placement', 'random', '--seed', '1');
      const { blocks } = report;
      expect(report.evictions).toBeGreaterThan(0);
      expect(blocks.pulled).toBeGreaterThan(0);
      expect(blocks.referenced).toBe(blocks.local + blocks.pulled + blocks.computed);
      expect(report.verify.blocks).toBeGreaterThanOrEqual(blocks.pulled);
      expect(report).toMatchObject({
        requests: 300,
        verify: { mismatches: 0 },
        pins: { atEnd: 0 },
        failures: {},
      });
      expect(status).toBe(0);
    },
    RUN_MS,
  );

  it(
    'computes everything that is not local without a data plane',
    async () => {
      const { status, report } = await replay('--requests', '60', '--data-plane', 'none');
      const { referenced, local, pulled, computed } = report.blocks;
      expect({ pulled, computed, bytesServed: report.bytesServed }).toEqual({
        pulled: 0,
        computed: referenced - local,
        bytesServed: 0,
      });
      expect(report.dataPlane.name).toBe('none');
      expect(status).toBe(0);
    },
    RUN_MS,
  );

  it(
    'reads a trace file, reports its bad lines by number, and writes the page',
    async () => {
      const trace = join(folder, 'trace.jsonl');
      const page = join(folder, 'report.html');
      const source = generateTrace(9);
      const lines = Array.from({ length: 40 }, () => formatTraceLine(source.next().value));
      await writeFile(trace, ['no json', ...lines.slice(0, 20), '{}', ...lines.slice(20)].join('\n'));
      const { status, report, text } = await replay(
        '--trace',
        trace,
        '--skip',
        '10',
        '--peers',
        '2',
        '--html',
        page,
      );
      expect(text).toContain('trace line 1 passed over: not JSON');
      expect(text).toContain('trace line 22 passed over');
      expect(report).toMatchObject({ requests: 30, badLines: 2 });
      expect(await readFile(page, 'utf8')).toContain('30 requests, 2 peers');
      expect(status).toBe(0);

      const strict = startReplay('--trace', trace, '--strict');
      expect(await strict.ended).toEqual({ status: 1, report: undefined });
      expect(strict.printed()).toContain('trace line 1 cannot be used');
    },
    RUN_MS,
  );

  it(
    'ends on Ctrl-C with the report so far and leaves no process behind',
    async () => {
      const run = startReplay('--requests', '100000', '--pool-bytes', String(2048 * BLOCK_BYTES));
      await until(() => /\d+ of 100,000 requests/.test(run.printed()));
      const pids = await childPids(run.child);
      run.child.kill('SIGINT');
      const { status, report } = await run.ended;
      expect(status).toBe(130);
      expect(report?.requests).toBeGreaterThan(0);
      expect(report?.requests).toBeLessThan(100_000);
      expect(report).toMatchObject({ verify: { mismatches: 0 }, pins: { atEnd: 0 }, failures: {} });
      expect(pids).toHaveLength(4);
      expect(pids.filter(isAlive)).toEqual([]);
    },
    RUN_MS,
  );

  it(
    'takes a Ctrl-C that ends peers which have only just begun for what it is',
    async () => {
      const run = startReplay('--requests', '100');
      let pids: number[] = [];
      while (pids.length < 4) pids = await childPids(run.child);
      // The parent, held meanwhile, then learns of the signal and of its peers' ends in one go.
      run.child.kill('SIGSTOP');
      run.child.kill('SIGINT');
      for (const pid of pids) process.kill(pid, 'SIGINT');
      for (const pid of pids) await until(() => isEnded(pid));
      run.child.kill('SIGCONT');
      const { status, report } = await run.ended;
      expect(run.printed()).not.toContain('KVPEER_PEER_LOST');
      expect(status).toBe(130);
      expect(report).toMatchObject({ requests: 0, failures: {} });
    },
    RUN_MS,
  );

  it(
    'counts a peer process that dies as a failure, says so and ends with status 1',
    async () => {
      const run = startReplay('--requests', '100000', '--pool-bytes', String(2048 * BLOCK_BYTES));
      await until(() => /\d+ of 100,000 requests/.test(run.printed()));
      const pids = await childPids(run.child);
      process.kill(pids[1], 'SIGKILL');
      const { status, report } = await run.ended;
      expect(status).toBe(1);
      expect(report?.failures).toMatchObject({ KVPEER_PEER_LOST: 1 });
      expect(run.printed()).toMatch(new RegExp(`peer \\d \\(pid ${pids[1]}\\) ended with signal SIGKILL`));
      expect(pids.filter(isAlive)).toEqual([]);
    },
    RUN_MS,
  );

  it(
    'has no peer process that outlives a killed parent',
    async () => {
      const run = startReplay('--requests', '100000', '--pool-bytes', String(2048 * BLOCK_BYTES));
      await until(() => /\d+ of 100,000 requests/.test(run.printed()));
      const pids = await childPids(run.child);
      run.child.kill('SIGKILL');
      await run.ended;
      expect(pids).toHaveLength(4);
      await until(() => !pids.some(isAlive));
    },
    RUN_MS,
  );
});
