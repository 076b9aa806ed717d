// `npm run bench:vllm`: kvpeer and vLLM as producers of the same Python client, in turns, in one run.
//
// The client is the conformance harness's vllm_lookup_bench.py; each producer is alone on the machine with it, since
// every vLLM with NIXL keeps a core busy. A round is every producer once, first on an idle machine, then with one
// core kept busy by a loop. The table goes into docs/benchmarks.md.

import { spawn, type ChildProcessByStdio } from 'node:child_process';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { parseArgs } from 'node:util';

import { packageRoot } from '../src/shared/nixl-dir.js';
import { freePort } from '../test/helpers/free-port.js';
import { machineFacts } from './machine.js';
import { clientLines, endProducer, readyLine, type HarnessLine } from './support/harness.js';
import { vllmSection, writeVllmSection, type Measured, type ProducerName } from './vllm-report.js';

const BLOCK_BYTES = 65_536;
const SIZES = [1, 16, 128, 1024, 8192] as const;
const HELD = 8192;
const FETCH_BLOCKS = 512;

/** Step and poll interval in ms: vLLM 0.33's own cadence, and the lowest latency that its code can give. */
const CADENCES = { 'vllm-default': ['5', '1'], 'vllm-tight': ['0', '0'] } as const;
const PRODUCERS: readonly ProducerName[] = ['vllm-default', 'vllm-tight', 'kvpeer'];

type Producer = ChildProcessByStdio<null, Readable, null>;

function fromEnvironment(name: string): string {
  const value = process.env[name];
  if (value === undefined || value === '') throw new Error(`${name} is not set: run npm run bench:vllm`);
  return value;
}

/** Starts a producer and waits for its `ready`. Both get the same UCX_TLS. */
async function startProducer(name: ProducerName, port: number, ucxTls: string): Promise<Producer> {
  const common = ['--port', String(port), '--count', String(HELD), '--block-bytes', String(BLOCK_BYTES)];
  const env = { ...process.env, UCX_TLS: ucxTls, PYTHONDONTWRITEBYTECODE: '1' };
  const [command, ...args] =
    name === 'kvpeer'
      ? [process.execPath, `${packageRoot}/dist/src/main/cli/conformance-peer.js`, ...common]
      : [
          fromEnvironment('KVPEER_CONFORMANCE_PYTHON'),
          join(fromEnvironment('KVPEER_CONFORMANCE_DIR'), 'vllm_peer.py'),
          'produce',
          ...common,
          ...['--blocks', String(HELD), '--step-ms', CADENCES[name][0], '--tier-poll-ms', CADENCES[name][1]],
          ...['--max-seconds', '600'],
        ];
  const child = spawn(command, args, { env, stdio: ['ignore', 'pipe', 'ignore'] });
  await readyLine(name, child);
  return child;
}

/** Runs the client against a producer; its lines. */
async function runClient(target: string, iterations: number, ucxTls: string): Promise<HarnessLine[]> {
  const args = [
    join(fromEnvironment('KVPEER_CONFORMANCE_DIR'), 'vllm_lookup_bench.py'),
    ...['--target', target, '--port', String(await freePort())],
    ...['--sizes', SIZES.join(','), '--iters', String(iterations), '--fetch-blocks', String(FETCH_BLOCKS)],
  ];
  return clientLines(fromEnvironment('KVPEER_CONFORMANCE_PYTHON'), args, {
    ...process.env,
    UCX_TLS: ucxTls,
    PYTHONDONTWRITEBYTECODE: '1',
  });
}

function measuredOf(producer: ProducerName, isBusy: boolean, lines: readonly HarnessLine[]): Measured {
  const fetched = lines.find(({ event }) => event === 'fetch');
  if (fetched?.bad !== 0) throw new Error(`${producer}: blocks arrived with wrong bytes`);
  return {
    producer,
    isBusy,
    idlePercent: lines.find(({ event }) => event === 'machine')?.idle_percent ?? 0,
    lookups: lines
      .filter(({ event }) => event === 'lookup')
      .map(({ keys = 0, p50 = NaN, p99 = NaN }) => ({ keys, p50Us: p50, p99Us: p99 })),
    fetchMs: fetched.p50 ?? NaN,
    fetchMibPerS: fetched.mib_per_s ?? NaN,
  };
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: { rounds: { type: 'string', default: '3' }, iters: { type: 'string', default: '100' } },
  });
  const ucxTls = process.env.UCX_TLS ?? '^posix,sysv';
  const facts = machineFacts();
  const measured: Measured[] = [];
  for (let round = 0; round < Number(values.rounds); round++) {
    for (const producer of PRODUCERS) {
      for (const isBusy of [false, true]) {
        // One client each: see peers-vllm.ts.
        const port = await freePort();
        const child = await startProducer(producer, port, ucxTls);
        const load = isBusy ? spawn(process.execPath, ['-e', 'for (;;);']) : undefined;
        try {
          const lines = await runClient(`127.0.0.1:${port}`, Number(values.iters), ucxTls);
          measured.push(measuredOf(producer, isBusy, lines));
        } finally {
          load?.kill('SIGKILL');
          await endProducer(child);
        }
        process.stderr.write(`round ${round + 1}: ${producer}${isBusy ? ', other core busy' : ''}\n`);
      }
    }
  }
  const section = vllmSection(measured, facts, { ucxTls, rounds: Number(values.rounds), sizes: SIZES });
  writeVllmSection(section);
  process.stdout.write(`${section}\n`);
}

await main();
