// The part of docs/benchmarks.md that compares kvpeer with vLLM; `npm run bench` leaves it as it is.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';

import { packageRoot } from '../src/shared/nixl-dir.js';
import type { MachineFacts } from './machine.js';
import { median } from './stats.js';

export type ProducerName = 'vllm-default' | 'vllm-tight' | 'kvpeer';

/** One turn of one producer. */
export interface Measured {
  readonly producer: ProducerName;
  /** A loop kept one core busy. */
  readonly isBusy: boolean;
  /** Of all cores, in the second before the client's handshake; the producer idles meanwhile. */
  readonly idlePercent: number;
  readonly lookups: readonly { readonly keys: number; readonly p50Us: number; readonly p99Us: number }[];
  readonly fetchMs: number;
  readonly fetchMibPerS: number;
}

const FILE = `${packageRoot}/docs/benchmarks.md`;
const OPEN = '<!-- vllm: npm run bench:vllm -->';
const CLOSE = '<!-- /vllm -->';
const NAMES: readonly (readonly [ProducerName, string])[] = [
  ['vllm-default', 'vLLM, 5 ms steps + 1 ms poll'],
  ['vllm-tight', 'vLLM, tight loop'],
  ['kvpeer', 'kvpeer'],
];
/** Keys of the lookup that the goal is about, kvpeer's part of vLLM's time there, and times vLLM's throughput. */
const GOAL_KEYS = 1024;
const GOAL_LOOKUP_SHARE = 0.1;
const GOAL_FETCH_TIMES = 2;
const MISSED = '**missed**';
/** What the figures allow to be said, and no more. */
const WHY_MISSED =
  'Why a goal is missed: a lookup has the time in which the client writes and reads its lists in it, the same for both, ' +
  'and the smaller the rest, the more it weighs. In a fetch both producers hand the same writes to the same UCX, whose ' +
  'copy is the same for both; the rows of `npm run bench` beside bare NIXL say what kvpeer adds to it. On a machine that ' +
  'was not idle the producer that keeps fewer cores busy is favoured or hurt by chance: repeat it on an idle one.';

/** The marked part of a document, or nothing. */
export function vllmPart(document: string): string {
  const [from, to] = [document.indexOf(OPEN), document.indexOf(CLOSE)];
  return from < 0 || to < from ? '' : document.slice(from, to + CLOSE.length);
}

/** The marked part of docs/benchmarks.md as it is now, or nothing. */
export function currentVllmPart(): string {
  return existsSync(FILE) ? vllmPart(readFileSync(FILE, 'utf8')) : '';
}

/** Puts the section in place of the one that is there, or at the end. */
export function writeVllmSection(section: string): void {
  mkdirSync(`${packageRoot}/docs`, { recursive: true });
  const before = existsSync(FILE) ? readFileSync(FILE, 'utf8') : '# Benchmarks\n';
  const old = vllmPart(before);
  const after = old === '' ? `${before.trimEnd()}\n\n${section}\n` : before.replace(old, () => section);
  writeFileSync(FILE, after);
}

export function vllmSection(
  measured: readonly Measured[],
  { machine, date }: MachineFacts,
  run: { readonly ucxTls: string; readonly rounds: number; readonly sizes: readonly number[] },
): string {
  const of = (producer: ProducerName, isBusy: boolean, figure: (turn: Measured) => number): number =>
    median(measured.filter((turn) => turn.producer === producer && turn.isBusy === isBusy).map(figure));
  const lookup =
    (keys: number, part: 'p50Us' | 'p99Us') =>
    (turn: Measured): number =>
      turn.lookups.find((entry) => entry.keys === keys)?.[part] ?? NaN;
  const row = (label: string, cell: (producer: ProducerName, isBusy: boolean) => string): string =>
    `| ${[label, ...[false, true].flatMap((isBusy) => NAMES.map(([name]) => cell(name, isBusy)))].join(' | ')} |`;
  const lookupRows = run.sizes.map((keys) =>
    row(
      `lookup of ${keys}, us`,
      (name, isBusy) =>
        `${of(name, isBusy, lookup(keys, 'p50Us')).toFixed(0)} / ${of(name, isBusy, lookup(keys, 'p99Us')).toFixed(0)}`,
    ),
  );
  const fetchRow = row(
    'fetch of 512 x 64 KiB, ms (MiB/s)',
    (name, isBusy) =>
      `${of(name, isBusy, (turn) => turn.fetchMs).toFixed(1)} (${of(name, isBusy, (turn) => turn.fetchMibPerS).toFixed(0)})`,
  );
  const ours = of('kvpeer', false, lookup(GOAL_KEYS, 'p50Us'));
  const throughput = (name: ProducerName): number => of(name, false, (turn) => turn.fetchMibPerS);
  const goals = (['vllm-default', 'vllm-tight'] as const).flatMap((name) => {
    const share = ours / of(name, false, lookup(GOAL_KEYS, 'p50Us'));
    const times = throughput('kvpeer') / throughput(name);
    return [
      goalLine(
        `lookup of ${GOAL_KEYS} keys, part of ${name}'s p50`,
        share,
        `at most ${GOAL_LOOKUP_SHARE}`,
        share <= GOAL_LOOKUP_SHARE,
      ),
      goalLine(
        `fetch throughput, times ${name}'s`,
        times,
        `at least ${GOAL_FETCH_TIMES}`,
        times >= GOAL_FETCH_TIMES,
      ),
    ];
  });
  const isMissed = goals.some((line) => line.includes(MISSED));
  const reasons = isMissed ? WHY_MISSED : 'No goal is missed.';
  const idle = measured.filter(({ isBusy, producer }) => !isBusy && producer === 'kvpeer');
  return `${OPEN}

## Beside vLLM

Written by \`npm run bench:vllm\`; do not edit. ${machine.processor}, ${machine.cores} cores, load ${machine.loadBefore} before the run, ${date.slice(0, 10)}; rounds in turns: ${run.rounds}, medians; \`UCX_TLS=${run.ucxTls}\` everywhere.
With kvpeer waiting as the only producer ${median(idle.map(({ idlePercent }) => idlePercent))} % of the machine were idle: below 90 others were at work, and ratios count more than times.

Round trips as a Python client sees them, its own time included (p50 / p99): it writes and reads a list of keys for every lookup, which is a part of each figure that no producer can change.

| | ${[...NAMES.map(([, text]) => text), ...NAMES.map(([, text]) => `${text}, other core busy`)].join(' | ')} |
| --- |${' ---: |'.repeat(2 * NAMES.length)}
${lookupRows.join('\n')}
${fetchRow}

| goal | value | | |
| --- | ---: | --- | --- |
${goals.join('\n')}

${reasons}

${CLOSE}`;
}

function goalLine(what: string, value: number, goal: string, holds: boolean): string {
  return `| ${what} | ${value.toFixed(2)} | ${goal} | ${holds ? 'holds' : MISSED} |`;
}
