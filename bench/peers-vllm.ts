// kvpeer beside vLLM's own P2P tier, the released one, run by ../shared/conformance: the same bare client in Python asks
// both producers, in turns. For fetches the time from `fetch` to `transfer_done` at a bare client.

import { spawn, type ChildProcessByStdio } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';

import { packageRoot } from '../src/shared/nixl-dir.js';
import { freePort } from '../test/helpers/free-port.js';
import type { GoalName } from './goals.js';
import type { Section } from './rows.js';
import { ratios } from './stats.js';
import { clientLines, readyLine } from './support/harness.js';

const ROUNDS = 5;
const KEYS = 1024;
const BLOCKS = 512;
/** The choice of UCX_TLS that vLLM's own users get, for both. */
const ENV = { UCX_TLS: 'tcp,posix,cma,self' };

/** Engine step and tier poll of vLLM, ms. */
const VLLMS = { default: [5, 1], tight: [0, 0] } as const;

const GOALS: readonly GoalName[] = [
  'lookup.1024.vsVllmDefault',
  'lookup.1024.vsVllmTight',
  'fetch.512x64k.vsVllm',
];

interface Answer {
  readonly lookupUs: number;
  readonly fetchMs: number;
}

/** A producer that is stopped while it is not its turn: some of them burn a core. */
class Producer {
  readonly address: Promise<string>;
  readonly #process: ChildProcessByStdio<null, Readable, null>;

  constructor(program: string, args: readonly string[]) {
    this.#process = spawn(program, args, {
      stdio: ['ignore', 'pipe', 'ignore'],
      env: { ...process.env, ...ENV },
    });
    this.address = readyLine('a producer', this.#process).then(({ peer_id }) => {
      if (peer_id === undefined) throw new Error('a producer did not say its address');
      return peer_id;
    });
  }

  pause(): void {
    this.#process.kill('SIGSTOP');
  }

  resume(): void {
    this.#process.kill('SIGCONT');
  }

  async end(): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const exited = once(this.#process, 'exit');
    this.#process.kill('SIGKILL');
    await exited;
  }
}

/** The harness and its Python, or why they cannot be used. */
function harness(): { readonly folder: string; readonly python: string } | string {
  const folder = process.env.KVPEER_CONFORMANCE_DIR ?? `${packageRoot}/../shared/conformance`;
  if (!existsSync(`${folder}/vllm_lookup_bench.py`)) {
    return 'the conformance harness is not there; KVPEER_CONFORMANCE_DIR names its folder';
  }
  const python =
    process.env.KVPEER_CONFORMANCE_PYTHON ?? `${packageRoot}/.cache/vllm-conformance/venv/bin/python`;
  if (!existsSync(python)) {
    return "vLLM's tier is not installed; npm run test:vllm installs it, KVPEER_CONFORMANCE_PYTHON names its Python";
  }
  return { folder, python };
}

export const vllmBench: Section = {
  group: 'peers',
  title: "vLLM's own P2P tier",
  goals: GOALS,
  prefixes: ['vllm.', ...GOALS],
  async run({ isQuick, rows }) {
    const found = isQuick ? 'left out of --quick' : harness();
    if (typeof found === 'string') {
      rows.skipMissing(GOALS, found);
      return;
    }
    const { folder, python } = found;
    const vllm = async (kind: keyof typeof VLLMS): Promise<Producer> => {
      const [stepMs, pollMs] = VLLMS[kind];
      return new Producer(python, [
        `${folder}/vllm_peer.py`,
        ...['produce', '--host', '127.0.0.1', '--port', String(await freePort())],
        ...['--blocks', '2048', '--count', String(KEYS), '--max-seconds', '600'],
        ...['--step-ms', String(stepMs), '--tier-poll-ms', String(pollMs)],
      ]);
    };
    const kvpeer = fileURLToPath(new URL('../src/main/cli/conformance-peer.js', import.meta.url));
    const producers = {
      kvpeer: new Producer(process.execPath, [kvpeer, '--port', '0', '--count', String(KEYS)]),
      default: await vllm('default'),
      tight: await vllm('tight'),
    };
    const names = ['kvpeer', 'default', 'tight'] as const;
    const ask = async (name: (typeof names)[number]): Promise<Answer> => {
      const producer = producers[name];
      producer.resume();
      const lines = await clientLines(
        python,
        [
          `${folder}/vllm_lookup_bench.py`,
          ...['--target', await producer.address, '--port', String(await freePort())],
          ...['--sizes', String(KEYS), '--iters', '60', '--warmup', '20'],
          ...['--fetch-blocks', String(BLOCKS), '--fetch-iters', '8'],
        ],
        { ...process.env, ...ENV },
      );
      producer.pause();
      const p50 = (event: string): number => lines.find((line) => line.event === event)?.p50 ?? NaN;
      return { lookupUs: p50('lookup'), fetchMs: p50('fetch') };
    };
    try {
      await Promise.all(
        names.map(async (name) => {
          await producers[name].address;
          producers[name].pause();
        }),
      );
      const lookups: Record<(typeof names)[number], number[]> = { kvpeer: [], default: [], tight: [] };
      const fetches: typeof lookups = { kvpeer: [], default: [], tight: [] };
      for (let round = -1; round < ROUNDS; round++) {
        for (const name of names) {
          const { lookupUs, fetchMs } = await ask(name);
          if (round < 0) continue;
          lookups[name].push(lookupUs);
          fetches[name].push(fetchMs);
        }
      }
      rows.measured('lookup.1024.vsVllmDefault', ratios(lookups.kvpeer, lookups.default));
      rows.measured('lookup.1024.vsVllmTight', ratios(lookups.kvpeer, lookups.tight));
      rows.measured('fetch.512x64k.vsVllm', ratios(fetches.tight, fetches.kvpeer));
      const gigabytes = (BLOCKS * 65_536) / 1e9;
      for (const name of names) {
        rows.measured(`vllm.${name}.lookup1024.p50Us`, lookups[name], 'us');
        rows.measured(
          `vllm.${name}.fetch512x64k.gbPerS`,
          fetches[name].map((ms) => (gigabytes * 1000) / ms),
          'GB/s',
        );
      }
    } finally {
      await Promise.all(Object.values(producers).map((producer) => producer.end()));
    }
  },
};
