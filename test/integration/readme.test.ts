// The README's examples, run as they are written.

import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import ts from 'typescript';
import { expect, test } from 'vitest';

import { packageRoot } from '../../src/shared/nixl-dir.js';

const readme = readFileSync(`${packageRoot}/README.md`, 'utf8');

const examples = [...readme.matchAll(/<!-- example[^>]*-->\s*```ts\n([\s\S]*?)```/g)].map(([, source]) => ({
  source,
  /** What the last thing that it prints is, by the comment beside it. */
  promised: /^ *console\.log\(.*\); \/\/ (.+)$/m.exec(source)?.[1] ?? '',
}));

test('the README has an example of two peers, of hints, of the peer inside the sidecar, and of KV events', () => {
  const imported = examples.map(({ source }) => /import \{ (.*) \} from 'kvpeer'/.exec(source)?.[1]);
  expect(imported).toEqual(['Peer', 'Peer', 'BlockHasher, createSidecar, Peer', 'BlockHasher, Peer']);
  expect(examples[0].source.trim().split('\n').length).toBeLessThanOrEqual(26);
});

test.each(examples)(
  'the example that ends with "$promised" runs as written',
  async ({ source, promised }) => {
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
      expect(promised).not.toBe('');
      expect(stdout.trim().split('\n').at(-1)).toBe(promised);
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  },
  90_000,
);
