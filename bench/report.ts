// docs/benchmarks.md: everything in it comes from one run, nothing is written by hand.

import { mkdirSync, writeFileSync } from 'node:fs';

import { packageRoot } from '../src/shared/nixl-dir.js';
import { goalChart, lookupChart } from './charts.js';
import { GROUPS, goalOf } from './goals.js';
import { HINDRANCES } from './hindrances.js';
import type { MachineFacts } from './machine.js';
import type { Row } from './rows.js';
import { figureText, goalText } from './rows.js';
import { SECTIONS } from './sections.js';
import { currentVllmPart } from './vllm-report.js';

/** The JSON document of a run. */
export interface BenchResult extends MachineFacts {
  readonly rows: readonly Row[];
  readonly isQuick: boolean;
  readonly seconds: number;
  /** What each part of the run took. */
  readonly sections: readonly { readonly title: string; readonly seconds: number }[];
}

/** Writes docs/benchmarks.md and its charts. */
export function writeDocument(result: BenchResult): void {
  const folder = `${packageRoot}/docs`;
  mkdirSync(folder, { recursive: true });
  writeFileSync(`${folder}/benchmarks-goals.svg`, goalChart(result.rows));
  writeFileSync(`${folder}/benchmarks-lookup.svg`, lookupChart(result.rows));
  const beside = currentVllmPart();
  writeFileSync(
    `${folder}/benchmarks.md`,
    beside === '' ? documentOf(result) : `${documentOf(result).trimEnd()}\n\n${beside}\n`,
  );
}

function documentOf(result: BenchResult): string {
  const { machine, versions, date, rows, seconds, isQuick } = result;
  const withGoal = rows.filter((row) => row.goal !== null);
  const count = (holds: boolean | null): number => withGoal.filter((row) => row.holds === holds).length;
  return `# Benchmarks

Written by \`npm run bench${isQuick ? ' -- --quick --docs' : ''}\`; do not edit.

${machine.processor}, ${machine.cores} cores, ${machine.memoryGib} GiB, Linux ${machine.kernel}, load ${machine.loadBefore} before the run. ${date.slice(0, 10)}, ${seconds} s.
${Object.entries(versions)
  .map(([name, version]) => `${name} ${version}`)
  .join(', ')}.

Every comparison was made in this one run, in turns, and is the median of its rounds; the spread is the least and the
greatest round. Figures of different runs say little about each other, their ratios more.

## Goals

${count(true)} hold, ${count(false)} are missed, ${count(null)} could not be measured here.

![each goal's value relative to its goal](benchmarks-goals.svg)

| row | value | spread | goal | | what |
| --- | ---: | ---: | ---: | --- | --- |
${withGoal.map(goalLine).join('\n')}
${hindrances(withGoal)}
## Lookup by number of keys

![p50 of a lookup by number of keys](benchmarks-lookup.svg)

${GROUPS.map((group) => groupTable(group, rows)).join('\n')}`;
}

/** What is known to be in the way of the missed goals. */
function hindrances(withGoal: readonly Row[]): string {
  const reasons: Readonly<Record<string, string | undefined>> = HINDRANCES;
  const lines = withGoal
    .filter(({ holds }) => holds === false)
    .map(({ name }) => `* \`${name}\`: ${reasons[name] ?? 'not known yet.'}`);
  return lines.length === 0 ? '' : `\n### What stands in the way of the missed ones\n\n${lines.join('\n')}\n`;
}

function goalLine(row: Row): string {
  const what = goalOf(row.name)?.what ?? '';
  const goal = row.goal === null ? '' : goalText(row.goal);
  if (row.value === null)
    return `| \`${row.name}\` | | | ${goal} | skipped: ${cell(row.skipped ?? '')} | ${what} |`;
  const verdict = row.holds === true ? 'holds' : '**missed**';
  return `| \`${row.name}\` | ${figureText(row.value)} ${row.unit} | ${spreadText(row)} | ${goal} | ${verdict} | ${what} |`;
}

function groupTable(group: (typeof GROUPS)[number], rows: readonly Row[]): string {
  const prefixes = SECTIONS.filter((section) => section.group === group).flatMap(
    (section) => section.prefixes,
  );
  const own = rows.filter(
    (row) => row.goal === null && prefixes.some((prefix) => row.name.startsWith(prefix)),
  );
  if (own.length === 0) return '';
  return `## ${group}

| row | value | spread | n |
| --- | ---: | ---: | ---: |
${own
  .map((row) =>
    row.value === null
      ? `| \`${row.name}\` | skipped: ${cell(row.skipped ?? '')} | | |`
      : `| \`${row.name}\` | ${figureText(row.value)} ${row.unit} | ${spreadText(row)} | ${row.n} |`,
  )
  .join('\n')}
`;
}

function spreadText({ spread }: Row): string {
  return spread === null ? '' : `${figureText(spread[0])} .. ${figureText(spread[1])}`;
}

function cell(text: string): string {
  return text.replaceAll('|', '\\|').replaceAll('\n', ' ');
}
