// Processes of the conformance harness as the benchmarks use them: producers that go on being read, a client's lines.

import { execFile, type ChildProcess, type ChildProcessByStdio } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { promisify } from 'node:util';

const END_MS = 10_000;

/** One line of a producer's or the client's standard output. */
export interface HarnessLine {
  readonly event: string;
  readonly peer_id?: string;
  readonly keys?: number;
  readonly p50?: number;
  readonly p99?: number;
  readonly mib_per_s?: number;
  readonly idle_percent?: number;
  readonly bad?: number;
  readonly error?: string;
}

/**
 * The `ready` line of a producer. Its output is read to the end, whoever waits: a producer prints a line for every
 * fetch, and stands still once nobody has read 64 KiB of them.
 */
export function readyLine(
  name: string,
  child: ChildProcessByStdio<null, Readable, null>,
): Promise<HarnessLine> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout })
      .on('line', (text) => {
        const line = JSON.parse(text) as HarnessLine;
        if (line.event === 'ready') resolve(line);
      })
      .on('close', () => {
        reject(new Error(`${name} ended before it was ready`));
      });
  });
}

/** Asks a producer to end, which takes its shared memory away, and ends it when it does not. */
export async function endProducer(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), END_MS);
  await exited;
  clearTimeout(timer);
}

/** Runs the client to its end; its lines. @throws when it failed, with what it said last */
export async function clientLines(
  python: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv,
): Promise<HarnessLine[]> {
  const { stdout, isFailed } = await promisify(execFile)(python, args, { env }).then(
    (done) => ({ stdout: done.stdout, isFailed: false }),
    (error: unknown) => ({ stdout: outputOf(error), isFailed: true }),
  );
  const lines = stdout
    .split('\n')
    .filter((text) => text !== '')
    .map((text) => JSON.parse(text) as HarnessLine);
  if (isFailed) throw new Error(`vLLM's client failed: ${lines.at(-1)?.error ?? 'it said nothing'}`);
  return lines;
}

/** The command line is no part of the message: it has paths of this machine in it. */
function outputOf(error: unknown): string {
  const isWithOutput = error instanceof Error && 'stdout' in error && typeof error.stdout === 'string';
  return isWithOutput ? String(error.stdout) : '';
}
