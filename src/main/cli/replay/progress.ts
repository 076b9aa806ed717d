// How far the replay is: a bar on a terminal, a plain line every few seconds elsewhere.
import { Presets, SingleBar } from 'cli-progress';
import { group } from './report.js';
import type { ReplayTally } from './tally.js';

export interface Progress {
  start(total: number): void;
  update(tally: ReplayTally): void;
  /** A line of its own, above the bar where there is one. */
  say(text: string): void;
  stop(): void;
}

const LINE_EVERY_MS = 5000;
const FIRST_LINE_MS = 1000;

/** @param output  where to show it; the report has standard output for itself, so normally standard error */
export function makeProgress(output: NodeJS.WriteStream): Progress {
  return output.isTTY ? new BarProgress(output) : new LineProgress(output);
}

class BarProgress implements Progress {
  readonly #output: NodeJS.WriteStream;
  readonly #bar: SingleBar;

  constructor(output: NodeJS.WriteStream) {
    this.#output = output;
    this.#bar = new SingleBar(
      {
        stream: output,
        format: '{bar} {percentage} % | {value}/{total} requests, {eta_formatted} left | {hits}',
        // Leaves room for the counts on a terminal of 100 columns.
        barsize: 20,
        hideCursor: true,
        // The command ends the bar itself, also after a signal.
        gracefulExit: false,
      },
      Presets.shades_classic,
    );
  }

  start(total: number): void {
    this.#bar.start(total, 0, { hits: describeBlocks({ local: 0, pulled: 0, computed: 0 }) });
  }

  update(tally: ReplayTally): void {
    this.#bar.update(tally.requests, { hits: describeBlocks(tally.blocks) });
  }

  say(text: string): void {
    // The carriage return and the blanks take the place of the bar, which is drawn again below.
    this.#output.write(`\r${text.padEnd(this.#output.columns - 1)}\n`);
  }

  stop(): void {
    this.#bar.stop();
  }
}

class LineProgress implements Progress {
  readonly #output: NodeJS.WritableStream;
  #total = 0;
  #lastMs = 0;

  constructor(output: NodeJS.WritableStream) {
    this.#output = output;
  }

  start(total: number): void {
    this.#total = total;
    this.#lastMs = performance.now() - LINE_EVERY_MS + FIRST_LINE_MS;
  }

  update(tally: ReplayTally): void {
    const nowMs = performance.now();
    if (nowMs - this.#lastMs < LINE_EVERY_MS) return;
    this.#lastMs = nowMs;
    this.say(
      `${group(tally.requests)} of ${group(this.#total)} requests: ${describeBlocks(tally.blocks)} blocks`,
    );
  }

  say(text: string): void {
    this.#output.write(`${text}\n`);
  }

  stop(): void {
    // Nothing to take away: lines stay.
  }
}

function describeBlocks(blocks: ReplayTally['blocks']): string {
  return `${group(blocks.local)} local, ${group(blocks.pulled)} pulled, ${group(blocks.computed)} computed`;
}
