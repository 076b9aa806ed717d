// `npm run bench -- [options]`: runs benchmarks, prints their rows, writes them as JSON and as docs/benchmarks.md.

import { writeFileSync } from 'node:fs';

import { readArguments, UsageError } from './arguments.js';
import { compareText } from './compare.js';
import type { GroupName } from './goals.js';
import { GROUPS, goalOf } from './goals.js';
import { machineFacts } from './machine.js';
import type { BenchResult } from './report.js';
import { writeDocument } from './report.js';
import type { Bench, Row, Section } from './rows.js';
import { RowBook, figureText, goalText } from './rows.js';
import { SECTIONS } from './sections.js';

const USAGE = `npm run bench -- [options]
  --quick            under two minutes: fewer rounds, smaller sizes, without ext (--quick --only ext)
  --only NAME        a group (${GROUPS.join(', ')}) or the beginning of row names
  --json FILE        write the rows there
  --compare FILE     print each row's ratio to an earlier --json FILE
  --docs             write docs/benchmarks.md also when --quick or --only was given
  --cpuprofile DIR   write CPU profiles of the measured node's main thread and workers there
  --help

Exit status: 0; 1 when a goal is missed, or a benchmark broke the run; 2 when the options cannot be used.`;

function isGroup(name: string): name is GroupName {
  return (GROUPS as readonly string[]).includes(name);
}

function isChosen(section: Section, only: string | undefined): boolean {
  if (only === undefined || only === section.group) return true;
  if (isGroup(only)) return false;
  return section.prefixes.some((prefix) => only.startsWith(prefix) || prefix.startsWith(only));
}

/** Of a quick run of everything: decisions that were made, to be looked at again by name. */
function isLeftOut(section: Section, only: string | undefined): boolean {
  return only === undefined && section.group === 'ext';
}

function isRowChosen(row: Row, only: string | undefined): boolean {
  return only === undefined || isGroup(only) || row.name.startsWith(only);
}

function textOf(row: Row): string {
  const name = row.name.padEnd(36);
  if (row.value === null) return `${name} skipped: ${row.skipped ?? ''}`;
  const spread = row.spread === null ? '' : `  [${row.spread.map(figureText).join(' .. ')}]`;
  const goal =
    row.goal === null ? '' : `  goal ${goalText(row.goal)}: ${row.holds === true ? 'holds' : 'MISSED'}`;
  return `${name} ${figureText(row.value).padStart(9)} ${row.unit}${spread}${goal}`;
}

async function runSection(section: Section, bench: Bench): Promise<void> {
  let reason = 'not measured in this run';
  try {
    await section.run(bench);
  } catch (error) {
    reason = `failed: ${error instanceof Error ? error.message.split('\n', 1)[0] : String(error)}`;
    bench.note(error instanceof Error ? (error.stack ?? error.message) : String(error));
  }
  bench.rows.skipMissing(section.goals, reason);
}

async function main(): Promise<void> {
  const { isHelp, isQuick, hasDocs, only, json, profileDir, earlier } = readArguments(process.argv.slice(2));
  if (isHelp) {
    console.log(USAGE);
    return;
  }
  const chosen = SECTIONS.filter(
    (section) => isChosen(section, only) && !(isQuick && isLeftOut(section, only)),
  );
  if (chosen.length === 0) throw noRow(only);
  const startMs = performance.now();
  const { machine, versions, date } = machineFacts();
  console.log(`${machine.processor}, ${machine.cores} cores, node ${versions.node}`);
  const rows = new RowBook((row) => {
    if (isRowChosen(row, only)) console.log(textOf(row));
  });
  const note = (text: string): void => {
    console.error(text);
  };
  const durations: { title: string; seconds: number }[] = [];
  for (const section of chosen) {
    note(`-- ${section.title}`);
    const sectionStartMs = performance.now();
    await runSection(section, { isQuick, profileDir, rows, note });
    const seconds = (performance.now() - sectionStartMs) / 1000;
    durations.push({ title: section.title, seconds });
    note(`   ${seconds.toFixed(1)} s`);
  }
  const result: BenchResult = {
    rows: rows.all.filter((row) => isRowChosen(row, only)),
    machine,
    versions,
    date,
    isQuick,
    seconds: Math.round((performance.now() - startMs) / 1000),
    sections: durations.map(({ title, seconds }) => ({ title, seconds: Math.round(seconds * 10) / 10 })),
  };
  // A name that only looks like one of a section's.
  if (result.rows.length === 0) throw noRow(only);
  if (json !== undefined) writeFileSync(json, `${JSON.stringify(result, null, 2)}\n`);
  if (hasDocs || (!isQuick && only === undefined)) writeDocument(result);
  if (earlier !== undefined) console.log(compareText(earlier, result));
  const missed = result.rows.filter((row) => row.holds === false);
  const held = result.rows.filter((row) => row.holds === true);
  const skipped = result.rows.filter((row) => row.value === null && goalOf(row.name) !== undefined);
  console.log(
    `${held.length} goals hold, ${missed.length} are missed, ${skipped.length} skipped; ${result.seconds} s`,
  );
  if (missed.length > 0) process.exitCode = 1;
}

function noRow(only = ''): UsageError {
  return new UsageError(`no row begins with ${JSON.stringify(only)}; groups are ${GROUPS.join(', ')}`);
}

try {
  await main();
} catch (error) {
  if (!(error instanceof UsageError)) throw error;
  console.error(`bench: ${error.message}; see npm run bench -- --help`);
  process.exitCode = 2;
}
