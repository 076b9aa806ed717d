// Processes of a benchmark: a parent that calls methods of an object in a child, over Node's IPC.

import type { ChildProcess } from 'node:child_process';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

interface Call {
  readonly id: number;
  readonly method: string;
  readonly args: readonly unknown[];
}

interface Answer {
  readonly id: number;
  readonly result?: unknown;
  readonly error?: string;
}

type Callable = (...args: never[]) => unknown;
type MethodsOf<T> = { [K in keyof T]: T[K] extends Callable ? K : never }[keyof T] & string;
type ArgumentsOf<T, K extends keyof T> = T[K] extends (...args: infer A) => unknown ? A : never;
type ResultOf<T, K extends keyof T> = T[K] extends (...args: never[]) => infer R ? Awaited<R> : never;

export interface ChildOptions {
  readonly env?: Readonly<Record<string, string>>;
  /** Folder for the CPU profiles of all its threads, written when it ends. */
  readonly profileDir?: string | undefined;
}

/** A process that runs one of bench/processes. `T` is the class whose methods it offers. */
export class Child<T> {
  readonly process: ChildProcess;
  readonly #open = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  #nextId = 1;
  #ended: Error | undefined;

  /** @param program name of the file in bench/processes, without its extension */
  constructor(program: string, options: ChildOptions = {}) {
    const file = fileURLToPath(new URL(`../processes/${program}.js`, import.meta.url));
    const { profileDir } = options;
    this.process = fork(file, [], {
      env: { ...process.env, ...options.env },
      serialization: 'advanced',
      execArgv:
        profileDir === undefined
          ? []
          : // Node names the files, a thread each: one name for all would keep the last one only.
            ['--cpu-prof', `--cpu-prof-dir=${join(profileDir, program)}`],
    });
    this.process.on('message', (answer: Answer) => {
      const waiting = this.#open.get(answer.id);
      this.#open.delete(answer.id);
      if (answer.error === undefined) waiting?.resolve(answer.result as never);
      else waiting?.reject(new Error(`${program}: ${answer.error}`));
    });
    this.process.on('exit', (code, signal) => {
      this.#ended = new Error(`the process ${program} ended (${signal ?? code ?? ''})`);
      for (const { reject } of this.#open.values()) reject(this.#ended);
      this.#open.clear();
    });
  }

  call<K extends MethodsOf<T>>(method: K, ...args: ArgumentsOf<T, K>): Promise<ResultOf<T, K>> {
    return new Promise((resolve, reject) => {
      if (this.#ended) {
        reject(this.#ended);
        return;
      }
      const id = this.#nextId++;
      this.#open.set(id, { resolve, reject });
      const call: Call = { id, method, args };
      this.process.send(call, (error) => {
        if (error) reject(error);
      });
    });
  }

  /** Ends the process: politely, then by force (also one that is stopped). */
  async end(): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const exited = once(this.process, 'exit');
    const timer = setTimeout(() => this.process.kill('SIGKILL'), 5_000);
    if (this.process.connected) this.process.disconnect();
    await exited;
    clearTimeout(timer);
  }
}

/** Runs `work` with the children, and ends them whatever happens. */
export async function withChildren<R>(
  children: readonly { end(): Promise<void> }[],
  work: () => Promise<R>,
): Promise<R> {
  try {
    return await work();
  } finally {
    await Promise.all(children.map((child) => child.end()));
  }
}

/** The child's side: offers the methods of `target` to the parent until the parent lets go. */
export function serveCalls(target: object, onEnd: () => Promise<void> | void = () => undefined): void {
  const methods = target as Readonly<Record<string, ((...args: readonly unknown[]) => unknown) | undefined>>;
  process.on('message', (call: Call) => {
    Promise.resolve()
      .then(() => {
        const method = methods[call.method];
        if (method === undefined) throw new Error(`no method ${call.method}`);
        return method.apply(target, [...call.args]);
      })
      .then(
        (result) => process.send?.({ id: call.id, result } satisfies Answer),
        (error: unknown) =>
          process.send?.({
            id: call.id,
            error: error instanceof Error ? (error.stack ?? error.message) : String(error),
          } satisfies Answer),
      );
  });
  process.on('disconnect', () => {
    void Promise.resolve()
      .then(onEnd)
      .finally(() => process.exit(0));
  });
}
