// Compiles the TypeScript sources to dist/ unless they are as they were at the last build.
// @ts-check
import { existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { Problem, filesBelow, fingerprint, isStamped, run, say, seconds } from './steps.mjs';

const STEP = 'typescript';
const STAMP = 'dist/.kvpeer-stamp';
const BUILD_INFO = 'dist/.tsbuildinfo';
const SOURCE_FOLDERS = ['src', 'native', 'bench', 'test', 'scripts'];
const SOURCE_ENDINGS = ['.ts', '.mjs'];
const OTHER_INPUTS = ['tsconfig.json', 'vitest.config.ts', 'package.json', 'package-lock.json'];

/** Of an output file, the endings that are replaced to get the names its source can have. */
const OUTPUT_ENDING = /\.(d\.ts|d\.mts|js\.map|mjs\.map|js|mjs)$/;

/**
 * Builds dist/ unless it is up to date. tsc alone takes two seconds to find that nothing changed; a hash takes none.
 *
 * @param {string} root the package's folder
 * @throws {Problem} with the compiler's words
 */
export async function buildTypeScript(root) {
  const sources = SOURCE_FOLDERS.flatMap((folder) => filesBelow(root, folder, SOURCE_ENDINGS, ['build']));
  const inputsOf = () => fingerprint([...sources, ...OTHER_INPUTS], root, []);
  const stampOf = (/** @type {string} */ inputs) => fingerprint(outputNotes(root), root, [inputs]);
  const stampFile = join(root, STAMP);
  const inputs = inputsOf();
  if (isStamped(stampFile, stampOf(inputs))) {
    say(STEP, 'up to date');
    return;
  }
  const startMs = performance.now();
  say(STEP, 'building');
  rmSync(stampFile, { force: true });
  removeOrphans(root);
  const compiler = join(root, 'node_modules/typescript/bin/tsc');
  const { status, output } = await run(process.execPath, [compiler, '-p', 'tsconfig.json'], { cwd: root });
  if (status !== 0) {
    throw new Problem(
      `the TypeScript sources do not compile:\n${output.trimEnd()}`,
      'mend what the compiler names above.',
    );
  }
  mkdirSync(join(root, 'dist'), { recursive: true });
  // A source that was saved while the compiler ran may or may not be in what it wrote: built again the next time.
  if (inputsOf() === inputs) writeFileSync(stampFile, stampOf(inputs));
  say(STEP, `built in ${seconds(startMs)}`);
}

/**
 * The compiler's own notes on its output, part of the stamp: they change when somebody runs tsc by hand.
 *
 * @param {string} root
 */
function outputNotes(root) {
  return existsSync(join(root, BUILD_INFO)) ? [BUILD_INFO] : [];
}

/**
 * Removes outputs whose source is gone, so that nothing goes on importing a file that was renamed.
 *
 * @param {string} root
 */
function removeOrphans(root) {
  for (const path of filesBelow(root, 'dist', ['.ts', '.mts', '.js', '.mjs', '.map'])) {
    const name = path.slice('dist/'.length).replace(OUTPUT_ENDING, '');
    if (!SOURCE_ENDINGS.some((ending) => existsSync(join(root, `${name}${ending}`))))
      rmSync(join(root, path));
  }
}
