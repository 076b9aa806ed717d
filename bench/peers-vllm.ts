// kvpeer beside vLLM's own P2P tier, the released one, run by ../shared/conformance: the same bare client in Python asks
// both producers, in turns. For fetches the time from `fetch` to `transfer_done` at a bare client.

import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { packageRoot } from '../src/shared/nixl-dir.js';
import { freePort } from '../test/helpers/free-port.js';
import type { GoalName } from './goals.js';
import type { Section } from './rows.js';
import { ratios } from './stats.js';
import { clientLines, endProducer, readyLine } from './support/harness.js';

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

const NAMES = ['kvpeer', 'default', 'tight'] as const;
type Name = (typeof NAMES)[number];

interface Answer {
  readonly lookupUs: number;
  readonly fetchMs: number;
}

/**
 * A producer for one client, alone on the machine with it. vLLM 0.33 may not see a second one: of a peer that is gone it
 * closes the socket's monitor before the socket, and an event in between stops libzmq's I/O thread for good.
 */
async function withProducer<T>(
  program: string,
  args: readonly string[],
  use: (address: string) => Promise<T>,
): Promise<T> {
  const producer = spawn(program, args, {
    stdio: ['ignore', 'pipe', 'ignore'],
    env: { ...process.env, ...ENV },
  });
  try {
    const { peer_id } = await readyLine('a producer', producer);
    if (peer_id === undefined) throw new Error('a producer did not say its address');
    return await use(peer_id);
  } finally {
    await endProducer(producer);
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
    const kvpeer = fileURLToPath(new URL('../src/main/cli/conformance-peer.js', import.meta.url));
    const commandOf = (name: Name, port: number): [program: string, args: string[]] => {
      const common = ['--port', String(port), '--count', String(KEYS)];
      if (name === 'kvpeer') return [process.execPath, [kvpeer, ...common]];
      const [stepMs, pollMs] = VLLMS[name];
      const args = [
        ...[`${folder}/vllm_peer.py`, 'produce', '--host', '127.0.0.1', ...common],
        ...['--blocks', '2048', '--max-seconds', '120'],
        ...['--step-ms', String(stepMs), '--tier-poll-ms', String(pollMs)],
      ];
      return [python, args];
    };
    const ask = async (address: string): Promise<Answer> => {
      const lines = await clientLines(
        python,
        [
          `${folder}/vllm_lookup_bench.py`,
          ...['--target', address, '--port', String(await freePort())],
          ...['--sizes', String(KEYS), '--iters', '60', '--warmup', '200'],
          ...['--fetch-blocks', String(BLOCKS), '--fetch-iters', '8'],
        ],
        { ...process.env, ...ENV },
      );
      const p50 = (event: string): number => lines.find((line) => line.event === event)?.p50 ?? NaN;
      return { lookupUs: p50('lookup'), fetchMs: p50('fetch') };
    };
    const lookups: Record<Name, number[]> = { kvpeer: [], default: [], tight: [] };
    const fetches: typeof lookups = { kvpeer: [], default: [], tight: [] };
    for (let round = 0; round < ROUNDS; round++) {
      for (const name of NAMES) {
        const [program, args] = commandOf(name, await freePort());
        const { lookupUs, fetchMs } = await withProducer(program, args, ask);
        lookups[name].push(lookupUs);
        fetches[name].push(fetchMs);
      }
    }
    rows.measured('lookup.1024.vsVllmDefault', ratios(lookups.kvpeer, lookups.default));
    rows.measured('lookup.1024.vsVllmTight', ratios(lookups.kvpeer, lookups.tight));
    rows.measured('fetch.512x64k.vsVllm', ratios(fetches.tight, fetches.kvpeer));
    const gigabytes = (BLOCKS * 65_536) / 1e9;
    for (const name of NAMES) {
      rows.measured(`vllm.${name}.lookup1024.p50Us`, lookups[name], 'us');
      rows.measured(
        `vllm.${name}.fetch512x64k.gbPerS`,
        fetches[name].map((ms) => (gigabytes * 1000) / ms),
        'GB/s',
      );
    }
  },
};
