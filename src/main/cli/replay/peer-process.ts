// The parent's handle on one peer process: starts it, calls it, and knows when it is gone.
import { fork, type ChildProcess } from 'node:child_process';
import { KvpeerError } from '../../errors.js';
import { errorOf } from './failure.js';
import type { AnswerMessage, CallMessage, PeerCallName, PeerCalls } from './messages.js';

interface OpenCall {
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: Error) => void;
  readonly timer: NodeJS.Timeout | undefined;
}

/**
 * How long a peer may take to say which prefix it holds. That is a matter of microseconds: one that lets this time pass
 * is stopped or hangs, and the replay, which asks all peers before each request, would wait with it for good. What may
 * rightly take longer (a start, a request) is accompanied by such a question once in this time.
 */
const PREFIX_MS = 60_000;

/** A forked peer. Every call ends: with an answer, with the error it met there, or with KVPEER_PEER_LOST. */
export class PeerProcess {
  readonly id: number;
  /** Settles when the process is gone; undefined when it left after `close`, else what happened to it. */
  readonly gone: Promise<KvpeerError | undefined>;
  readonly #child: ChildProcess;
  readonly #prefixMs: number;
  readonly #calls = new Map<number, OpenCall>();
  #lastCall = 0;
  #isClosing = false;
  #lost: KvpeerError | undefined;

  /** @param entry  the program of the process, dist/src/main/cli/replay/child.js */
  constructor(id: number, entry: URL, prefixMs = PREFIX_MS) {
    this.id = id;
    this.#prefixMs = prefixMs;
    // What a peer prints goes to our error output: standard output is the report's alone.
    this.#child = fork(entry, { stdio: ['ignore', 2, 2, 'ipc'] });
    this.#child.on('message', (message) => {
      this.#settle(message as AnswerMessage);
    });
    this.gone = new Promise((resolve) => {
      this.#child.once('error', (error) => {
        resolve(this.#lose(`could not be started or reached: ${error.message}`));
      });
      this.#child.once('exit', (status, signal) => {
        const how = signal === null ? `status ${String(status)}` : `signal ${signal}`;
        if (this.#isClosing && status === 0) resolve(undefined);
        else
          resolve(
            this.#lose(
              `ended with ${how} ${this.#isClosing ? 'when it was closed' : 'before the replay did'}`,
            ),
          );
      });
    });
  }

  /** Undefined when no process could be made. */
  get pid(): number | undefined {
    return this.#child.pid;
  }

  /**
   * @throws the error that the call ended with in the peer process, with its code
   * @throws KVPEER_PEER_LOST when the process is gone or goes before it answers
   */
  call<Name extends PeerCallName>(
    name: Name,
    argument: PeerCalls[Name]['argument'],
  ): Promise<PeerCalls[Name]['answer']> {
    if (this.#lost !== undefined) return Promise.reject(this.#lost);
    const call = ++this.#lastCall;
    return new Promise((resolve, reject) => {
      const timer = this.#watch(name);
      this.#calls.set(call, { resolve: resolve as OpenCall['resolve'], reject, timer });
      const message = { call, name, argument } as CallMessage;
      // A failed send is followed by 'exit' or 'error', which settle the call.
      this.#child.send(message, () => undefined);
    });
  }

  /** Lets the peer say good-bye and unmap; ends the process by force after `timeoutMs`. Returns when it is gone. */
  async close(timeoutMs: number): Promise<void> {
    this.#isClosing = true;
    this.call('close', null).catch(() => undefined);
    const timer = setTimeout(() => {
      this.kill();
    }, timeoutMs);
    await this.gone;
    clearTimeout(timer);
  }

  kill(): void {
    this.#child.kill('SIGKILL');
  }

  #settle(message: AnswerMessage): void {
    const open = this.#calls.get(message.call);
    if (open === undefined) return;
    this.#calls.delete(message.call);
    clearTimeout(open.timer);
    if ('error' in message) open.reject(errorOf(message.error));
    else open.resolve(message.answer);
  }

  /** Whoever closes a peer, or takes its figures, waits for a time of its own. */
  #watch(name: PeerCallName): NodeJS.Timeout | undefined {
    if (name === 'prefix') {
      return setTimeout(() => {
        this.#lose(`did not answer for ${this.#prefixMs / 1000} s and was ended`);
        this.kill();
      }, this.#prefixMs);
    }
    if (name !== 'start' && name !== 'run') return undefined;
    return setInterval(() => {
      // Any answer will do, also that it has not started yet.
      this.call('prefix', []).catch(() => undefined);
    }, this.#prefixMs);
  }

  #lose(how: string): KvpeerError {
    this.#lost ??= new KvpeerError(
      'KVPEER_PEER_LOST',
      `peer ${this.id} (pid ${this.pid ?? 'none'}) ${how}; its output above says more`,
    );
    for (const { timer, reject } of this.#calls.values()) {
      clearTimeout(timer);
      reject(this.#lost);
    }
    this.#calls.clear();
    return this.#lost;
  }
}
