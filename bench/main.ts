// `npm run bench -- [--only GROUP|ROW-PREFIX] [--json FILE] [--quick]`: runs benchmarks and prints their rows.

import { writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { blockBytesBench } from './block-bytes.js';
import { evictionBench } from './eviction.js';
import { matchBench } from './match.js';
import type { BenchGroup, Row } from './rows.js';

const GROUPS: readonly BenchGroup[] = [matchBench, blockBytesBench, evictionBench];

function isChosen(group: BenchGroup, only: string | undefined): boolean {
  if (only === undefined || only === group.name) return true;
  return group.prefixes.some((prefix) => only.startsWith(prefix) || prefix.startsWith(only));
}

function textOf(row: Row): string {
  const figure = (value: number): string => value.toPrecision(4).replace(/\.?0+$/, '');
  const spread = row.spread === undefined ? '' : `  [${row.spread.map(figure).join(' .. ')}]`;
  const goal =
    row.goal === undefined
      ? ''
      : `  goal ${'atMost' in row.goal ? `<= ${row.goal.atMost}` : `>= ${row.goal.atLeast}`}: ${row.holds === true ? 'holds' : 'MISSED'}`;
  return `${row.name.padEnd(34)} ${figure(row.value).padStart(9)} ${row.unit}${spread}${goal}`;
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      only: { type: 'string' },
      json: { type: 'string' },
      quick: { type: 'boolean', default: false },
    },
  });
  const { only } = values;
  const chosen = GROUPS.filter((group) => isChosen(group, only));
  if (chosen.length === 0) {
    throw new Error(
      `no benchmark is called ${only ?? ''}; there are ${GROUPS.map((group) => group.name).join(', ')}`,
    );
  }
  console.log(`node ${process.version}, ${availableParallelism()} cores`);
  const rows: Row[] = [];
  for (const group of chosen) {
    for (const row of await group.run({ quick: values.quick })) {
      if (only !== undefined && only !== group.name && !row.name.startsWith(only)) continue;
      rows.push(row);
      console.log(textOf(row));
    }
  }
  if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(rows, null, 2)}\n`);
}

await main();
