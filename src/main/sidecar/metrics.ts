// The sidecar's own figures: how long requests and their legs take, by outcome, and what was ignored.

import type { IgnoredHint } from '../params/hints.js';
import { Counter, Gauge, Histogram, Registry } from 'prom-client';

/**
 * How a request goes: straight on, with a pull, over a prefiller, to another protocol (until that begins), or nowhere:
 * answered by the sidecar itself.
 */
export type RequestKind = 'plain' | 'pull' | 'prefill-decode' | 'upgrade' | 'local';
export type LegName = 'prefill' | 'decode';
/** `cut`: the server broke off inside its answer. `left`: the client went. */
export type Outcome = 'ok' | 'client-error' | 'server-error' | 'refused' | 'unreachable' | 'cut' | 'left';

/** From a proxied health check to a long generation. */
const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];

export class SidecarMetrics {
  readonly registry = new Registry();
  readonly #requests = new Histogram({
    name: 'kvpeer_sidecar_request_duration_seconds',
    help: 'Time from the head of a request to the end of its answer',
    labelNames: ['kind', 'outcome'],
    buckets: SECONDS,
    registers: [this.registry],
  });
  readonly #legs = new Histogram({
    name: 'kvpeer_sidecar_leg_duration_seconds',
    help: 'Time from sending a leg to the end of its answer',
    labelNames: ['leg', 'outcome'],
    buckets: SECONDS,
    registers: [this.registry],
  });
  readonly #firstBytes = new Histogram({
    name: 'kvpeer_sidecar_leg_first_byte_seconds',
    help: 'Time from sending a leg to the head of its answer',
    labelNames: ['leg'],
    buckets: SECONDS,
    registers: [this.registry],
  });
  readonly #ignored = new Counter({
    name: 'kvpeer_sidecar_ignored_total',
    help: 'What a request asked for and did not get, by reason',
    labelNames: ['reason'],
    registers: [this.registry],
  });
  readonly #hints = new Counter({
    name: 'kvpeer_sidecar_hints_ignored_total',
    help: 'Hints of KV routers that had no effect, or parts of them, by reason',
    labelNames: ['reason'],
    registers: [this.registry],
  });
  readonly #running = new Gauge({
    name: 'kvpeer_sidecar_running_requests',
    help: 'Requests that are being answered',
    registers: [this.registry],
  });

  request(kind: RequestKind, outcome: Outcome, seconds: number): void {
    this.#requests.observe({ kind, outcome }, seconds);
  }

  leg(leg: LegName, outcome: Outcome, seconds: number): void {
    this.#legs.observe({ leg, outcome }, seconds);
  }

  firstByte(leg: LegName, seconds: number): void {
    this.#firstBytes.observe({ leg }, seconds);
  }

  ignored(reason: IgnoredReason): void {
    this.#ignored.inc({ reason });
  }

  hintIgnored(reason: IgnoredHint): void {
    this.#hints.inc({ reason });
  }

  set running(count: number) {
    this.#running.set(count);
  }
}

export type IgnoredReason =
  'source-malformed' | 'source-denied' | 'source-self' | 'client-params' | 'encoders';

export function outcomeOf(status: number): Outcome {
  if (status >= 500) return 'server-error';
  return status >= 400 ? 'client-error' : 'ok';
}
