// A run of the program as an operator sees it: its log, its exit, what it wrote to stderr.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { packageRoot } from '../../../src/shared/nixl-dir.js';

const PROGRAM = join(packageRoot, 'dist/src/main/cli/kvpeer.js');

export type LogLine = Readonly<Record<string, unknown>> & { readonly msg: string; readonly level: string };

/** One run of the program; its log is read line by line. */
export class Run {
  readonly lines: LogLine[] = [];
  readonly child: ChildProcess;
  readonly exitCode: Promise<number | null>;
  readonly stderr: Promise<string>;
  #onLine: () => void = () => undefined;

  constructor(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
    const child = spawn(process.execPath, [PROGRAM, ...args], {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.child = child;
    this.stderr = text(child.stderr);
    this.exitCode = once(child, 'close').then(() => child.exitCode);
    createInterface(child.stdout).on('line', (line) => {
      this.lines.push(JSON.parse(line) as LogLine);
      this.#onLine();
    });
    void this.exitCode.then(() => {
      this.#onLine();
    });
  }

  /** Waits for the log line with this message; fails when the process ends without it. */
  async line(msg: string): Promise<LogLine> {
    for (;;) {
      const found = this.lines.find((line) => line.msg === msg);
      if (found !== undefined) return found;
      if (this.child.exitCode !== null) {
        throw new Error(`ended without "${msg}": ${JSON.stringify(this.lines)} ${await this.stderr}`);
      }
      await new Promise<void>((resolve) => {
        this.#onLine = resolve;
      });
    }
  }
}
