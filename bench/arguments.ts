// What the command line of the benchmarks asks for, and everything about it that can be wrong before minutes are measured.

import { closeSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

import type { BenchResult } from './report.js';

export interface BenchArguments {
  readonly isHelp: boolean;
  readonly isQuick: boolean;
  readonly hasDocs: boolean;
  readonly only: string | undefined;
  readonly json: string | undefined;
  readonly profileDir: string | undefined;
  /** The run that this one is compared with. */
  readonly earlier: BenchResult | undefined;
}

/** The command line, or a file that it names, cannot be used: exit status 2, since 1 says that a goal is missed. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** @throws UsageError */
export function readArguments(args: readonly string[]): BenchArguments {
  const { values } = parsed(args);
  const { json, cpuprofile, compare } = values;
  if (!values.help) {
    // Opened for more to be added: what is in it stays until there is something to write.
    if (json !== undefined)
      ensure('--json', json, () => {
        closeSync(openSync(json, 'a'));
      });
    if (cpuprofile !== undefined)
      ensure('--cpuprofile', cpuprofile, () => {
        mkdirSync(cpuprofile, { recursive: true });
      });
  }
  return {
    isHelp: values.help,
    isQuick: values.quick,
    hasDocs: values.docs,
    only: values.only,
    json,
    profileDir: cpuprofile,
    earlier: compare === undefined || values.help ? undefined : earlierRun(compare),
  };
}

function parsed(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      options: {
        only: { type: 'string' },
        json: { type: 'string' },
        compare: { type: 'string' },
        docs: { type: 'boolean', default: false },
        quick: { type: 'boolean', default: false },
        cpuprofile: { type: 'string' },
        help: { type: 'boolean', default: false },
      },
    });
  } catch (error) {
    throw new UsageError(reasonOf(error), { cause: error });
  }
}

function ensure(flag: string, path: string, use: () => void): void {
  try {
    use();
  } catch (error) {
    throw new UsageError(`${flag} ${path} cannot be written: ${reasonOf(error)}`, { cause: error });
  }
}

function earlierRun(file: string): BenchResult {
  let result: unknown;
  try {
    result = JSON.parse(readFileSync(file, 'utf8'));
  } catch (error) {
    throw new UsageError(`--compare ${file} cannot be read: ${reasonOf(error)}`, { cause: error });
  }
  if (!isResult(result)) throw new UsageError(`--compare ${file} was not written by --json`);
  return result;
}

/** What a comparison reads of it. */
function isResult(value: unknown): value is BenchResult {
  if (typeof value !== 'object' || value === null) return false;
  if (!('date' in value) || typeof value.date !== 'string') return false;
  return 'rows' in value && Array.isArray(value.rows) && value.rows.every(isRow);
}

function isRow(row: unknown): boolean {
  if (typeof row !== 'object' || row === null) return false;
  const hasName = 'name' in row && typeof row.name === 'string';
  return hasName && 'value' in row && (row.value === null || typeof row.value === 'number');
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
