// The replay's parent: starts the peer processes, dispatches requests to them, and gathers what they report.
import { setTimeout as delay } from 'node:timers/promises';
import type { BlockIds } from './load-trace.js';
import type { RequestOutcome, RequestSource, StartArguments, StartedPeer } from './messages.js';
import { PeerProcess } from './peer-process.js';
import { chooseSource, makePlacement, type Placement } from './placement.js';
import type { ReplayReport } from './report.js';
import { codeOf } from './failure.js';
import { ReplayTally } from './tally.js';

export interface ReplayPlan {
  /** The reusable blocks of each request, in order of dispatch. */
  readonly requests: readonly BlockIds[];
  readonly peers: number;
  readonly peer: StartArguments;
  readonly placement: Placement;
  readonly concurrency: number;
  readonly seed: number;
}

/** What the command shows while the replay runs. */
export interface ReplayObserver {
  onStarted(peers: readonly StartedPeer[]): void;
  onRequest(tally: ReplayTally): void;
  /** A sentence for the person who watches: a lost peer, a request that failed. */
  onTrouble(text: string): void;
}

/** After a stop, requests in flight get this long before their peers are closed under them. */
const DRAIN_MS = 10_000;
const FIGURES_MS = 10_000;
/** Signals that one keystroke sent to all processes arrive within this time of each other. */
const SIGNAL_MS = 100;
/** More than the peer's own drain, so that force is the exception. */
const CLOSE_MS = 15_000;

const CHILD_ENTRY = new URL('./child.js', import.meta.url);

/**
 * Replays the plan and fills the tally. Every peer process is gone when the promise settles.
 *
 * @param stop  aborted to end early: nothing more is dispatched, and the report covers what ran
 * @throws the error of the first peer that did not start, when `stop` was not aborted
 */
export async function runReplay(
  plan: ReplayPlan,
  tally: ReplayTally,
  observer: ReplayObserver,
  stop: AbortSignal,
): Promise<ReplayReport> {
  if (stop.aborted) return tally.report([], 0);
  const processes = Array.from({ length: plan.peers }, (_, id) => new PeerProcess(id, CHILD_ENTRY));
  try {
    return await new Replay(plan, tally, observer, stop, processes).run();
  } finally {
    for (const process of processes) process.kill();
    await Promise.all(processes.map((process) => process.gone));
  }
}

class Replay {
  readonly #plan: ReplayPlan;
  readonly #tally: ReplayTally;
  readonly #observer: ReplayObserver;
  readonly #processes: readonly PeerProcess[];
  readonly #placePeer: (request: number) => number;
  /** Aborted by the caller's stop, and by the loss of a peer: without it the counts mean nothing. */
  readonly #stop: AbortSignal;
  readonly #lost = new AbortController();
  #next = 0;
  #startedAt = 0;

  constructor(
    plan: ReplayPlan,
    tally: ReplayTally,
    observer: ReplayObserver,
    stop: AbortSignal,
    processes: readonly PeerProcess[],
  ) {
    this.#plan = plan;
    this.#tally = tally;
    this.#observer = observer;
    this.#processes = processes;
    this.#placePeer = makePlacement(plan.placement, plan.peers, plan.seed);
    this.#stop = AbortSignal.any([stop, this.#lost.signal]);
  }

  async run(): Promise<ReplayReport> {
    const starting = Promise.all(this.#processes.map((process) => process.call('start', this.#plan.peer)));
    const started = starting.catch(async (error: unknown) => {
      // A terminal's Ctrl-C ends peers that have only just begun, too. Their ends may be seen here before the signal is.
      await Promise.race([whenAborted(this.#stop), delay(SIGNAL_MS)]);
      if (this.#stop.aborted) return 'aborted' as const;
      throw error;
    });
    const peers = await Promise.race([started, whenAborted(this.#stop)]);
    if (peers === 'aborted') {
      started.catch(() => undefined);
      for (const process of this.#processes) process.kill();
      return this.#tally.report([], 0);
    }
    const watches = this.#processes.map((process) => this.#watch(process));
    this.#observer.onStarted(peers);

    this.#startedAt = performance.now();
    const lanes = Array.from({ length: this.#plan.concurrency }, () => this.#runLane(peers));
    await Promise.race([Promise.all(lanes), whenAborted(this.#stop, DRAIN_MS)]);
    const wallS = this.#elapsedS();
    await Promise.all(this.#processes.map((process) => this.#takeFigures(process)));
    // The report waits for the peers' ends: a peer that cannot close cleanly is a failure too.
    await Promise.all(this.#processes.map((process) => process.close(CLOSE_MS)));
    await Promise.all(watches);
    return this.#tally.report(peers, wallS);
  }

  /** Takes the next request until there is none; `concurrency` lanes run side by side. */
  async #runLane(peers: readonly StartedPeer[]): Promise<void> {
    const { requests } = this.#plan;
    while (this.#next < requests.length && !this.#stop.aborted) {
      const request = this.#next++;
      await this.#runRequest(requests[request], this.#placePeer(request), peers);
    }
  }

  async #runRequest(ids: BlockIds, place: number, peers: readonly StartedPeer[]): Promise<void> {
    let outcome: RequestOutcome;
    try {
      const source = await this.#findSource(ids, place, peers);
      outcome = await this.#processes[place].call('run', { ids, source });
    } catch (error) {
      // A lost process is counted once, by #watch, however many requests it takes with it.
      const code = codeOf(error);
      if (code === 'KVPEER_PEER_LOST') return;
      this.#tally.addFailure(code);
      this.#observer.onTrouble(`a request at peer ${place} failed: ${String(error)}`);
      return;
    }
    this.#tally.addRequest(outcome, this.#elapsedS());
    this.#observer.onRequest(this.#tally);
  }

  async #findSource(
    ids: BlockIds,
    place: number,
    peers: readonly StartedPeer[],
  ): Promise<RequestSource | null> {
    const prefixes = await Promise.all(
      this.#processes.map(async (process) => (process.id === place ? 0 : process.call('prefix', ids))),
    );
    const source = chooseSource(prefixes, place);
    if (source === undefined) return null;
    return { host: peers[source].host, port: peers[source].port, prefixBlocks: prefixes[source] };
  }

  /** A peer that goes before it was told to, or not cleanly, is one failure and the end of the run. */
  async #watch(process: PeerProcess): Promise<void> {
    const lost = await process.gone;
    if (lost === undefined) return;
    this.#tally.addFailure(lost.code);
    this.#observer.onTrouble(lost.message);
    this.#lost.abort();
  }

  async #takeFigures(process: PeerProcess): Promise<void> {
    const figures = process.call('figures', null).catch(() => undefined);
    const late = new AbortController();
    const timer = setTimeout(() => {
      late.abort();
    }, FIGURES_MS);
    const result = await Promise.race([figures, whenAborted(late.signal)]);
    clearTimeout(timer);
    if (result === 'aborted') {
      this.#tally.addFailure('KVPEER_DEADLINE');
      this.#observer.onTrouble(`peer ${process.id} did not report its figures within ${FIGURES_MS / 1000} s`);
    } else if (result !== undefined) {
      this.#tally.addPeer(result);
    }
  }

  #elapsedS(): number {
    return (performance.now() - this.#startedAt) / 1000;
  }
}

/** Resolves `graceMs` after the signal was aborted. */
function whenAborted(signal: AbortSignal, graceMs = 0): Promise<'aborted'> {
  return new Promise((resolve) => {
    const end = (): void => {
      setTimeout(() => {
        resolve('aborted');
      }, graceMs).unref();
    };
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
  });
}
