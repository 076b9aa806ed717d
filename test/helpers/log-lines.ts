// A logger whose lines a test can read.

import type { Logger } from 'pino';

import { createLogger } from '../../src/main/observe/log.js';

type Line = Readonly<Record<string, unknown>> & { readonly level: string; readonly msg: string };

export class LogLines {
  readonly logger: Logger;
  readonly #lines: Line[] = [];

  constructor() {
    this.logger = createLogger('trace', {
      write: (line) => {
        this.#lines.push(JSON.parse(line) as Line);
      },
    });
  }

  lines(level?: string): readonly Line[] {
    return this.#lines.filter((line) => level === undefined || line.level === level);
  }

  messages(level?: string): readonly string[] {
    return this.lines(level).map((line) => line.msg);
  }
}
