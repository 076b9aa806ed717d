// Runs one leg and measures it: the ways it can end, in one place.

import { outcomeOf, type LegName, type Outcome, type SidecarMetrics } from './metrics.js';
import { isRefused, type LegEvents, type LegRequest, type RunningLeg, type Upstreams } from './upstream.js';
import type { RawHeaders } from './headers.js';

export interface LegSink {
  head(status: number, headers: RawHeaders, resume: () => void): void;
  data(chunk: Buffer): boolean;
  end(trailers: RawHeaders): void;
  /** The leg failed: before its answer began, or inside it (`status` is then set). */
  failed(error: Error, status: number | undefined): void;
  upgraded?: LegEvents['onUpgrade'];
}

export interface LegContext {
  readonly name: LegName;
  readonly metrics: SidecarMetrics;
  readonly signal: AbortSignal;
}

/** Sends the leg; it is aborted with the signal. Settles when the leg has ended, never rejects. */
export function runLeg(
  upstreams: Upstreams,
  request: LegRequest,
  sink: LegSink,
  context: LegContext,
): Promise<Outcome> {
  const { name, metrics, signal } = context;
  const startedAt = performance.now();
  const secondsSince = (): number => (performance.now() - startedAt) / 1000;
  return new Promise((resolve) => {
    let status: number | undefined;
    let leg: RunningLeg | undefined = undefined;
    const abort = (): void => {
      leg?.abort();
    };
    const over = (outcome: Outcome): void => {
      signal.removeEventListener('abort', abort);
      metrics.leg(name, outcome, secondsSince());
      resolve(outcome);
    };
    const failed = (error: Error): void => {
      sink.failed(error, status);
      over(outcomeOfFailure(error, status, signal.aborted));
    };
    leg = upstreams.send(request, {
      onHead: (received, headers, resume) => {
        status = received;
        metrics.firstByte(name, secondsSince());
        sink.head(received, headers, resume);
      },
      onData: (chunk) => sink.data(chunk),
      onEnd: (trailers) => {
        // A head that is only sent now may have what no client may be sent, and there is no event after this one.
        try {
          sink.end(trailers);
        } catch (error) {
          failed(error instanceof Error ? error : new Error(String(error)));
          return;
        }
        over(outcomeOf(status ?? 502));
      },
      onError: failed,
      onUpgrade: (received, headers, socket) => {
        sink.upgraded?.(received, headers, socket);
        over('ok');
      },
    });
    if (signal.aborted) abort();
    else signal.addEventListener('abort', abort, { once: true });
  });
}

function outcomeOfFailure(error: Error, status: number | undefined, hasLeft: boolean): Outcome {
  if (hasLeft) return 'left';
  if (status !== undefined) return 'cut';
  return isRefused(error) ? 'refused' : 'unreachable';
}
