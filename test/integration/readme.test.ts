// The README's example, run as it is written, and its configuration table.

import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import ts from 'typescript';
import { expect, test } from 'vitest';

import { packageRoot } from '../../src/shared/nixl-dir.js';

const readme = readFileSync(`${packageRoot}/README.md`, 'utf8');

test('the example of the README runs as written and prints what its last line says', async () => {
  const source = /<!-- example[^>]*-->\s*```ts\n([\s\S]*?)```/.exec(readme)?.[1] ?? '';
  const promised = /\/\/ (\d+ hits, .*)$/m.exec(source)?.[1];
  expect(promised).toBeDefined();
  expect(source.trim().split('\n').length).toBeLessThanOrEqual(26);
  const { outputText } = ts.transpileModule(source, {
    compilerOptions: { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 },
  });
  // Inside the package, so that it can import itself by name as a user would.
  const folder = `${packageRoot}/dist/readme-example`;
  await mkdir(folder, { recursive: true });
  const file = `${folder}/example.mjs`;
  await writeFile(file, outputText);
  try {
    const { stdout } = await promisify(execFile)(process.execPath, [file], { timeout: 60_000 });
    expect(stdout.trim().split('\n').at(-1)).toBe(promised);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}, 90_000);
