// kvpeer beside what a user would run instead: the scripts of ../shared/baselines, with kvpeer as one more of them, so
// that all take turns in one run on the same work.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';

import { packageRoot } from '../src/shared/nixl-dir.js';
import type { GoalName } from './goals.js';
import type { Bench, Section } from './rows.js';
import { baselinesFolder } from './support/c-program.js';

const OURS = 'kvpeer';

interface Document {
  readonly baselines: readonly {
    readonly name: string;
    readonly version: string;
    readonly rounds: number;
    readonly lookups: readonly {
      keys: number;
      p50_us: number;
      p99_us: number;
      p50_us_range: [number, number];
    }[];
    readonly fetches: readonly {
      blocks: number;
      block_bytes: number;
      p50_ms: number;
      gb_s: number;
      p50_ms_range: [number, number];
    }[];
  }[];
  readonly skipped: readonly { readonly name: string; readonly reason: string }[];
}

/** Which baseline a row of a lookup of 1,024 keys is about. */
const LOOKUPS = {
  'lookup.1024.vsLmcache': 'lmcache-p2p',
  'lookup.1024.vsMooncake': 'mooncake-store',
  'lookup.1024.vsRedis': 'redis-one-command',
} as const satisfies Partial<Record<GoalName, string>>;

const FETCHES = {
  'fetch.512x64k.vsLmcacheShm': 512,
  'fetch.64x1m.vsLmcacheShm': 64,
  'fetch.4096x4k.vsLmcacheShm': 4096,
} as const satisfies Partial<Record<GoalName, number>>;

const BASELINES = [
  'stream-copy',
  'cma-read',
  'tcp',
  'zmq-two-sockets',
  'python-peer',
  'redis-one-command',
  'mooncake-store',
  'mooncake-store-tuned',
  'lmcache-p2p',
  'lmcache-p2p-shm',
  'lmcache-p2p-shm-4k',
] as const;

async function runBaselines(): Promise<Document> {
  const folder = mkdtempSync(`${tmpdir()}/kvpeer-bench-`);
  try {
    const file = `${folder}/result.json`;
    const program = fileURLToPath(new URL('./baseline.js', import.meta.url));
    const run = spawn(
      'python3',
      [
        `${baselinesFolder()}/run.py`,
        ...['--only', [OURS, ...BASELINES].join(',')],
        ...['--add', `${OURS}=${process.execPath} ${program}`],
        ...['--rounds', '5', '--budget', '50'],
        ...['--limit', '200', '--json', file],
      ],
      {
        stdio: ['ignore', 'ignore', 'pipe'],
        env: {
          ...process.env,
          KVPEER_BASELINES_CACHE:
            process.env.KVPEER_BASELINES_CACHE ?? `${packageRoot}/.cache/kvpeer-baselines`,
        },
      },
    );
    let errors = '';
    run.stderr.on('data', (chunk: Buffer) => (errors += chunk.toString()));
    const [code] = (await once(run, 'exit')) as [number | null];
    if (code !== 0 || !existsSync(file))
      throw new Error(`run.py failed: ${errors.trim().split('\n').at(-1) ?? ''}`);
    return JSON.parse(readFileSync(file, 'utf8')) as Document;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function report({ rows }: Bench, { baselines, skipped }: Document): void {
  const find = (name: string): Document['baselines'][number] | undefined =>
    baselines.find((baseline) => baseline.name === name);
  const whyNot = (name: string): string =>
    `${name}: ${skipped.find((entry) => entry.name === name)?.reason ?? 'not in this run'}`;
  const ours = find(OURS);
  for (const { name, lookups, fetches } of baselines) {
    for (const { keys, p50_us } of lookups) rows.figure(`peers.${name}.lookup${keys}.p50Us`, p50_us, 'us');
    for (const { blocks, gb_s } of fetches) rows.figure(`peers.${name}.fetch${blocks}.gbPerS`, gb_s, 'GB/s');
  }
  for (const [row, name] of Object.entries(LOOKUPS)) {
    const mine = ours?.lookups.find(({ keys }) => keys === 1024);
    const theirs = find(name)?.lookups.find(({ keys }) => keys === 1024);
    if (mine === undefined) rows.skip(row, whyNot(OURS));
    else if (theirs === undefined) rows.skip(row, whyNot(name));
    else
      rows.ratio(row, mine.p50_us / theirs.p50_us, mine.p50_us_range, theirs.p50_us_range, ours?.rounds ?? 0);
  }
  for (const [row, blockCount] of Object.entries(FETCHES)) {
    const name = blockCount === 4096 ? 'lmcache-p2p-shm-4k' : 'lmcache-p2p-shm';
    const mine = ours?.fetches.find(({ blocks }) => blocks === blockCount);
    const theirs = find(name)?.fetches.find(({ blocks }) => blocks === blockCount);
    if (mine === undefined) rows.skip(row, whyNot(OURS));
    else if (theirs === undefined) rows.skip(row, whyNot(name));
    // Rates, so the other way round than times.
    else
      rows.ratio(row, theirs.p50_ms / mine.p50_ms, theirs.p50_ms_range, mine.p50_ms_range, ours?.rounds ?? 0);
  }
}

const GOALS = [...Object.keys(LOOKUPS), ...Object.keys(FETCHES)] as GoalName[];

export const peersBench: Section = {
  group: 'peers',
  title: 'the baselines of ../shared/baselines',
  goals: GOALS,
  prefixes: ['peers.', ...GOALS],
  async run(bench) {
    if (bench.isQuick) {
      bench.rows.skipMissing(GOALS, 'left out of --quick');
      return;
    }
    const script = `${baselinesFolder()}/run.py`;
    if (!existsSync(script)) {
      bench.rows.skipMissing(GOALS, 'run.py is not there; KVPEER_BASELINES_DIR names its folder');
      return;
    }
    report(bench, await runBaselines());
  },
};
