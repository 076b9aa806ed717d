// A process that runs vLLM's own P2P tier (the conformance harness), with its events and commands.

import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

import { freePort } from '../../helpers/free-port.js';
import { conformanceFolder, conformancePython } from './environment.js';

/** One line of the process's standard output; the harness's README lists events and fields. */
export type VllmEvent = Readonly<Record<string, unknown>> & { readonly event: string; readonly t: number };

export interface VllmOptions {
  /** Options of `vllm_peer.py produce` beside host, port and `--stdin`. */
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Default: a free one. A fixed one is for restarts at the same address. */
  readonly port?: number;
}

export interface Pull {
  readonly loaded: number;
  readonly promised: number;
  readonly missing: readonly number[];
  readonly bad: readonly number[];
  readonly totalMs: number;
}

export interface ConsumeCommand {
  /** `host:port` of the producer. */
  readonly remote: string;
  readonly mode?: 'remote_kv_source' | 'remote_prefiller';
  readonly kvRequestId?: string;
  /** `0-63,70`. */
  readonly keys: string;
  readonly decoderId?: string;
}

export interface VllmStats {
  readonly sessions: Readonly<
    Record<string, { readonly ready: boolean; readonly server_ids: number; readonly store_jobs: number }>
  >;
  readonly jobs: number;
  readonly max_rss_kib: number;
}

interface Waiter {
  readonly holds: (event: VllmEvent) => boolean;
  readonly resolve: (event: VllmEvent) => void;
  readonly reject: (error: Error) => void;
}

const START_MS = 60_000;
const ANSWER_MS = 60_000;
/** Processes end by themselves should a test run die. */
const MAX_SECONDS = '240';

let nextId = 1;

export class VllmPeer {
  readonly process: ChildProcessWithoutNullStreams;
  readonly port: number;
  readonly events: VllmEvent[] = [];
  /** What vLLM logged. */
  log = '';
  #ready: VllmEvent | undefined;
  readonly #waiters = new Set<Waiter>();
  readonly #exited: Promise<unknown>;

  /** Starts a peer that can serve and pull, and waits until its blocks are in place. */
  static async start(options: VllmOptions = {}): Promise<VllmPeer> {
    const peer = new VllmPeer(options, options.port ?? (await freePort()));
    try {
      peer.#ready = await peer.event((event) => event.event === 'ready', START_MS);
    } catch (error) {
      await peer.destroy();
      throw error;
    }
    return peer;
  }

  private constructor(options: VllmOptions, port: number) {
    this.port = port;
    this.process = spawn(
      conformancePython(),
      [
        join(conformanceFolder(), 'vllm_peer.py'),
        'produce',
        ...['--port', String(port), '--stdin', '--max-seconds', MAX_SECONDS, ...(options.args ?? [])],
      ],
      // Python's cache of compiled modules would go into the harness's folder.
      { env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1', ...options.env } },
    );
    this.#exited = once(this.process, 'exit');
    this.process.stdin.on('error', () => undefined);
    this.process.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.log += text;
    });
    createInterface({ input: this.process.stdout }).on('line', (line) => {
      this.#onEvent(JSON.parse(line) as VllmEvent);
    });
    void this.#exited.then(() => {
      const error = new Error(`vLLM peer ${port} ended; its log ends with: ${this.log.slice(-2000)}`);
      for (const waiter of this.#waiters) waiter.reject(error);
      this.#waiters.clear();
    });
  }

  get address(): string {
    return `127.0.0.1:${this.port}`;
  }

  get pid(): number {
    const { pid } = this.process;
    if (pid === undefined) throw new Error('the process did not start');
    return pid;
  }

  /** A field of the `ready` event. */
  ready(name: string): unknown {
    return this.#ready?.[name];
  }

  /** `{ kv_request_id, remote_host, remote_port }` that names this peer. */
  named(kvRequestId: string): { kv_request_id: string; remote_host: string; remote_port: number } {
    return { kv_request_id: kvRequestId, remote_host: '127.0.0.1', remote_port: this.port };
  }

  /** The first event from now on, or among those that were, for which the check holds. */
  async event(holds: (event: VllmEvent) => boolean, timeoutMs = ANSWER_MS, from = 0): Promise<VllmEvent> {
    const known = this.events.slice(from).find(holds);
    if (known) return known;
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        holds,
        resolve: (event) => {
          clearTimeout(timer);
          resolve(event);
        },
        reject: (error) => {
          clearTimeout(timer);
          reject(error);
        },
      };
      const timer = setTimeout(() => {
        this.#waiters.delete(waiter);
        const last = JSON.stringify(this.events.slice(-3));
        reject(
          new Error(`vLLM said nothing of it within ${timeoutMs} ms; last: ${last}; ${this.log.slice(-800)}`),
        );
      }, timeoutMs);
      this.#waiters.add(waiter);
    });
  }

  /** Starts a pull; its end is `pulled(id)`. */
  beginPull({
    remote,
    mode = 'remote_kv_source',
    kvRequestId = `r${nextId++}`,
    keys,
    decoderId,
  }: ConsumeCommand): string {
    this.#command({
      cmd: 'consume',
      remote,
      mode,
      kv_request_id: kvRequestId,
      keys,
      ...(decoderId === undefined ? {} : { decoder_id: decoderId }),
    });
    return kvRequestId;
  }

  /** The end of a pull: what vLLM loaded and compared with what it should be. */
  async pulled(kvRequestId: string, timeoutMs = ANSWER_MS): Promise<Pull> {
    const ends = ['verified', 'bad_bytes'];
    const found = await this.event(
      (event) => ends.includes(event.event) && event.kv_request_id === kvRequestId,
      timeoutMs,
    );
    return {
      loaded: Number(found.loaded),
      promised: Number(found.promised),
      missing: found.missing as number[],
      bad: found.bad as number[],
      totalMs: Number(found.total_ms),
    };
  }

  pull(command: ConsumeCommand): Promise<Pull> {
    return this.pulled(this.beginPull(command));
  }

  /** A prefill by plan: `id=U;blocks=0-31;when=fetch;delay=500;batch=8;gap=50`. */
  store(plan: string): void {
    this.#command({ cmd: 'store', plan });
  }

  async stats(): Promise<VllmStats> {
    const from = this.events.length;
    this.#command({ cmd: 'stats' });
    const found: unknown = await this.event((event) => event.event === 'stats', ANSWER_MS, from);
    return found as VllmStats;
  }

  kill(signal: NodeJS.Signals): void {
    this.process.kill(signal);
  }

  /** Ends the process at once, stopped or not, and removes its CPU tier: a killed vLLM leaves the file behind. */
  async destroy(): Promise<void> {
    this.process.kill('SIGKILL');
    await this.#exited;
    await rm(`/dev/shm/vllm_offload_conformance-${this.pid}-${this.port}.mmap`, { force: true });
  }

  #command(command: object): void {
    this.process.stdin.write(`${JSON.stringify(command)}\n`);
  }

  #onEvent(event: VllmEvent): void {
    this.events.push(event);
    for (const waiter of this.#waiters) {
      if (!waiter.holds(event)) continue;
      this.#waiters.delete(waiter);
      waiter.resolve(event);
    }
  }
}
