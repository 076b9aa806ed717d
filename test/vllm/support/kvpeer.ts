// The test's side of a kvpeer process: calls, log lines, and the figures of its /metrics.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

import type { PeerOptions } from '../../../src/main/options.js';
import type { Connection, StoreResult } from '../../../src/main/peer-api.js';
import { packageRoot } from '../../../src/shared/nixl-dir.js';
import type { Answer, KvpeerChild, LoadReport, LookupReport, Started } from './kvpeer-child.js';

export interface KvpeerOptions extends PeerOptions {
  readonly seed?: string;
  readonly env?: Readonly<Record<string, string>>;
}

export type LogLine = Readonly<Record<string, unknown>>;

/** Figures that a request may change only for its time. */
export interface Levels {
  readonly free: number;
  readonly ready: number;
  readonly writing: number;
  readonly quarantined: number;
  readonly pins: number;
  readonly leases: number;
  readonly sessions: number;
  readonly nixlPeers: number;
  readonly sockets: number;
}

const DEFAULTS = {
  host: '127.0.0.1',
  port: 0,
  blockBytes: 4096,
  poolBytes: 16384 * 4096,
  shards: 2,
  logLevel: 'info',
} as const satisfies PeerOptions;

/** Numbers first .. last, as the harness writes `first-last`. */
export function range(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
}

export class Kvpeer {
  readonly process: ChildProcess;
  readonly log: LogLine[] = [];
  #started: Started | undefined;
  /** What is not JSON on standard error: the libraries' words, and the last ones of a crash. */
  stderr = '';
  readonly #open = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>();
  #nextId = 1;

  static async start({ seed = '0', env = {}, ...options }: KvpeerOptions = {}): Promise<Kvpeer> {
    const peer = new Kvpeer(env);
    peer.#started = await peer.#call('start', { ...DEFAULTS, ...options }, seed);
    return peer;
  }

  private constructor(env: Readonly<Record<string, string>>) {
    this.process = fork(`${packageRoot}/dist/test/vllm/support/kvpeer-child.js`, [], {
      env: { ...process.env, ...env },
      execArgv: [],
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    });
    if (!this.process.stderr) throw new Error('no standard error');
    createInterface({ input: this.process.stderr }).on('line', (line) => {
      if (line.startsWith('{')) this.log.push(JSON.parse(line) as LogLine);
      else this.stderr += `${line}\n`;
    });
    this.process.on('message', (answer: Answer) => {
      const call = this.#open.get(answer.id);
      this.#open.delete(answer.id);
      if (answer.error === undefined) call?.resolve(answer.result);
      else call?.reject(new Error(answer.error));
    });
    this.process.on('exit', (code, signal) => {
      const error = new Error(`kvpeer ended: ${code ?? signal ?? ''} ${this.stderr.slice(-2000)}`);
      for (const { reject } of this.#open.values()) reject(error);
      this.#open.clear();
    });
  }

  get address(): string {
    return this.#started?.address ?? '';
  }

  get port(): number {
    return Number(this.address.slice(this.address.lastIndexOf(':') + 1));
  }

  get isAlive(): boolean {
    return this.process.exitCode === null && this.process.signalCode === null;
  }

  store(indexes: readonly number[]): Promise<StoreResult> {
    return this.#call('store', indexes);
  }

  connect(address: string): Promise<Connection> {
    return this.#call('connect', address);
  }

  open(params: unknown): Promise<number> {
    return this.#call('open', params);
  }

  lookup(request: number, indexes: readonly number[]): Promise<LookupReport> {
    return this.#call('lookup', request, indexes);
  }

  load(request: number, indexes: readonly number[]): Promise<LoadReport> {
    return this.#call('load', request, indexes);
  }

  storeFor(request: number, indexes: readonly number[]): Promise<StoreResult> {
    return this.#call('storeFor', request, indexes);
  }

  finish(request: number): Promise<void> {
    return this.#call('finish', request);
  }

  release(loadId: number): Promise<void> {
    return this.#call('release', loadId);
  }

  evict(indexes: readonly number[]): Promise<number> {
    return this.#call('evict', indexes);
  }

  probe(indexes: readonly number[]): Promise<number> {
    return this.#call('probe', indexes);
  }

  overwrite(indexes: readonly number[], byte: number): Promise<number> {
    return this.#call('overwrite', indexes, byte);
  }

  stopWhenServing(pid: number): Promise<void> {
    return this.#call('stopWhenServing', pid);
  }

  /** Looks up, loads what was found, gives the blocks back and ends the request. */
  async pull(
    params: unknown,
    indexes: readonly number[],
  ): Promise<{ hits: readonly number[]; load: LoadReport }> {
    const request = await this.open(params);
    const { hits } = await this.lookup(request, indexes);
    const load = await this.load(request, [...new Set(hits)]);
    await this.release(load.loadId);
    await this.finish(request);
    return { hits, load };
  }

  /** Every sample of /metrics by name and labels, as written there. */
  async metrics(): Promise<ReadonlyMap<string, number>> {
    const response = await fetch(this.#started?.metricsUrl ?? '');
    const samples = (await response.text())
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'));
    return new Map(
      samples.map((line) => {
        const at = line.lastIndexOf(' ');
        return [line.slice(0, at), Number(line.slice(at + 1))];
      }),
    );
  }

  async levels(): Promise<Levels> {
    const metrics = await this.metrics();
    const get = (name: string): number => metrics.get(name) ?? 0;
    const slots = (phase: string): number => get(`kvpeer_slots{phase="${phase}"}`);
    let sessions = 0;
    for (const [name, value] of metrics) if (name.startsWith('kvpeer_sessions{')) sessions += value;
    return {
      free: slots('free'),
      ready: slots('ready'),
      writing: slots('writing'),
      quarantined: slots('quarantined'),
      pins: get('kvpeer_pins'),
      leases: get('kvpeer_leases'),
      sessions,
      nixlPeers: get('kvpeer_nixl_peers'),
      sockets: get('kvpeer_sockets'),
    };
  }

  /** Counted rejections by reason. */
  async rejections(): Promise<ReadonlyMap<string, number>> {
    const found = new Map<string, number>();
    for (const [name, value] of await this.metrics()) {
      const match = /^kvpeer_rejections_total\{reason="(.*)"\}$/.exec(name);
      if (match) found.set(match[1], value);
    }
    return found;
  }

  kill(signal: NodeJS.Signals): void {
    this.process.kill(signal);
  }

  async destroy(): Promise<void> {
    if (!this.isAlive) return;
    const exited = once(this.process, 'exit');
    this.process.kill('SIGKILL');
    await exited;
  }

  async #call<M extends keyof KvpeerChild>(
    method: M,
    ...args: Parameters<KvpeerChild[M]>
  ): Promise<Awaited<ReturnType<KvpeerChild[M]>>> {
    const result = await new Promise((resolve, reject) => {
      const id = this.#nextId++;
      this.#open.set(id, { resolve, reject });
      this.process.send({ id, method, args }, (error) => {
        if (error) reject(error);
      });
    });
    return result as Awaited<ReturnType<KvpeerChild[M]>>;
  }
}

/** Waits until the check holds, looking every few milliseconds; fails with the last value after `timeoutMs`. */
export async function eventually<T>(
  read: () => Promise<T>,
  holds: (value: T) => boolean,
  timeoutMs = 10_000,
): Promise<T> {
  const end = performance.now() + timeoutMs;
  for (;;) {
    const value = await read();
    if (holds(value)) return value;
    if (performance.now() > end) {
      throw new Error(`did not happen within ${timeoutMs} ms; last: ${JSON.stringify(value)}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

/** Nothing of any request is left: no pin, no lease, no slot that is neither free nor complete. */
export function isQuiet({ pins, leases, writing, quarantined }: Levels): boolean {
  return pins === 0 && leases === 0 && writing === 0 && quarantined === 0;
}
