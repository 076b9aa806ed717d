// The whole set-up of a checkout, in the order in which the steps need each other. Uses nothing but Node itself.
// @ts-check
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { withLock } from './lock.mjs';
import { buildNative, isNativeBuilt } from './native-build.mjs';
import { resolveNixl } from './nixl-dir.mjs';
import { provideNixl } from './nixl-fetch.mjs';
import { installPackages } from './packages.mjs';
import { missingForNative, missingForNixl, refuseMissing, requireNode } from './requirements.mjs';
import { Problem, say } from './steps.mjs';
import { buildTypeScript } from './typescript-build.mjs';

/**
 * How much NIXL is wanted: without it set-up fails ('required'), only says so ('optional'), or does not look ('none').
 *
 * @typedef {'required' | 'optional' | 'none'} NixlNeed
 */

/**
 * Brings a checkout to the state in which everything runs; does nothing that is done already.
 *
 * @param {string} root the package's folder
 * @param {NixlNeed} nixl
 * @throws {Problem} naming what is missing and the remedy
 */
export async function setUp(root, nixl) {
  requireNode();
  await withLock(join(root, '.cache/set-up.lock'), async () => {
    await requireMachine(root, nixl);
    await installPackages(root);
    await buildNative(root);
    await buildTypeScript(root);
    if (nixl === 'required') await provideNixl(root);
    if (nixl === 'optional') await provideNixlIfPossible(root);
  });
}

/**
 * Names everything that the machine lacks at once, before anything is downloaded.
 *
 * @param {string} root
 * @param {NixlNeed} nixl
 */
async function requireMachine(root, nixl) {
  const missing = isNativeBuilt(root) ? [] : await missingForNative(process.env);
  const library = nixl === 'required' ? resolveNixl(process.env, root) : undefined;
  if (library?.kind === 'missing') {
    // A wrong KVPEER_NIXL_DIR is not mended by a fetch.
    if (process.env['KVPEER_NIXL_DIR']) throw new Problem(library.reason, library.remedy);
    missing.push(...(await missingForNixl(process.env)));
  }
  refuseMissing(missing);
}

/** @param {string} root */
async function provideNixlIfPossible(root) {
  try {
    await provideNixl(root);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    say('nixl', `missing; what moves data with it will fail.\n${error.message}`);
  }
}

/**
 * Goes on in a compiled program of this package, in the same process, so that its exit status and signals are its own.
 *
 * @param {string} root
 * @param {string} program path below `root`
 * @param {string[]} args
 */
export async function continueIn(root, program, args) {
  const file = join(root, program);
  if (!existsSync(file))
    throw new Problem(`${program} was not built.`, 'run npm run build and read what it says.');
  process.argv.splice(1, process.argv.length, file, ...args);
  await import(pathToFileURL(file).href);
}
