// Where the answer of a leg goes: to the client, to the client only if it is none to go on from, or nowhere.

import type { ServerResponse } from 'node:http';
import { answerError } from './answers.js';
import type { LegSink } from './leg-run.js';
import { UnreadableBody } from './params-filter.js';
import { Relay } from './relay.js';
import { isRefused } from './upstream.js';

/** Nobody waits for the answer. */
export const DISCARD: LegSink = {
  head: () => undefined,
  data: () => true,
  end: () => undefined,
  failed: () => undefined,
};

/** The model server's answer to the client, and what the client gets when there is none. */
export class DecodeRelay implements LegSink {
  readonly #response: ServerResponse;
  readonly #relay: Relay;
  readonly #isDraining: () => boolean;
  readonly #signal: AbortSignal;
  readonly upgraded: LegSink['upgraded'];

  constructor(
    response: ServerResponse,
    isDraining: () => boolean,
    signal: AbortSignal,
    upgraded?: LegSink['upgraded'],
  ) {
    this.upgraded = upgraded;
    this.#response = response;
    this.#relay = new Relay(response);
    this.#isDraining = isDraining;
    this.#signal = signal;
  }

  head(status: number, headers: readonly string[], resume: () => void): void {
    this.#relay.head(status, headers, resume, this.#isDraining());
  }

  data(chunk: Buffer): boolean {
    return this.#relay.data(chunk);
  }

  end(trailers: readonly string[]): void {
    this.#relay.end(trailers);
  }

  failed(error: Error, status: number | undefined): void {
    if (this.#signal.aborted) return;
    if (this.#relay.hasBegun) this.#relay.cut();
    else if (error instanceof UnreadableBody) answerError(this.#response, 400, error.message);
    else if (isRefused(error))
      answerError(this.#response, 503, 'decode node is not ready: connection refused');
    else if (status !== undefined) answerError(this.#response, 502, 'the model server broke off its answer');
    else answerError(this.#response, 502, 'the model server could not be reached');
  }
}

/** Profile B: a prefill that went well is thrown away, any other answer is the client's. */
export class PrefillRelay implements LegSink {
  readonly #response: ServerResponse;
  readonly #relay: Relay;
  readonly #isDraining: () => boolean;
  #isDiscarded = false;
  /** True when the prefill was computed to its end. */
  isPassed = false;

  constructor(response: ServerResponse, isDraining: () => boolean) {
    this.#response = response;
    this.#relay = new Relay(response);
    this.#isDraining = isDraining;
  }

  head(status: number, headers: readonly string[], resume: () => void): void {
    this.#isDiscarded = status >= 200 && status < 300;
    if (!this.#isDiscarded) this.#relay.head(status, headers, resume, this.#isDraining());
  }

  data(chunk: Buffer): boolean {
    return this.#isDiscarded || this.#relay.data(chunk);
  }

  end(trailers: readonly string[]): void {
    if (this.#isDiscarded) this.isPassed = true;
    else this.#relay.end(trailers);
  }

  failed(error: Error, status: number | undefined): void {
    if (this.#response.destroyed) return;
    if (this.#relay.hasBegun) this.#relay.cut();
    else if (status !== undefined) answerError(this.#response, 502, 'the prefill node broke off its answer');
    else if (isRefused(error))
      answerError(this.#response, 502, 'prefill node is not ready: connection refused');
    else answerError(this.#response, 502, 'the prefill node could not be reached');
  }
}
