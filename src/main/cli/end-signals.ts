// How signals end a command: the first one asks for a drain, the second ends the process at once.

import type { Logger } from 'pino';
import { EXIT_FAILED, EXIT_FORCED } from './exit-codes.js';

const END_SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const;

export class EndSignals {
  /** Settles with the first signal. */
  readonly first: Promise<void>;
  #isEnding = false;
  readonly #onSignal: (signal: string) => void;

  constructor(logger: Logger) {
    let settle: () => void;
    this.first = new Promise((resolve) => {
      settle = resolve;
    });
    this.#onSignal = (signal) => {
      if (this.#isEnding) {
        logger.fatal({ signal }, 'a second signal: ending at once');
        process.exit(EXIT_FORCED);
      }
      this.#isEnding = true;
      logger.info({ signal }, 'draining');
      settle();
    };
    for (const signal of END_SIGNALS) process.on(signal, this.#onSignal);
    process.once('uncaughtException', (err) => {
      logger.fatal({ err }, 'an error that nobody handled');
      process.exit(EXIT_FAILED);
    });
  }

  get isEnding(): boolean {
    return this.#isEnding;
  }

  close(): void {
    for (const signal of END_SIGNALS) process.off(signal, this.#onSignal);
  }
}
