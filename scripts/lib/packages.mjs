// Installs the locked npm packages unless node_modules already holds them.
// @ts-check
import { existsSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { Problem, lastLines, run, say, seconds } from './steps.mjs';

const STEP = 'packages';

/** npm's own pauses make it take over a minute to find that there is no network. */
const SHORT_RETRIES = ['--fetch-retry-mintimeout=1000', '--fetch-retry-maxtimeout=5000'];

/**
 * Whether node_modules holds what the lock file asks for. npm notes what it installed in a second lock file there.
 *
 * @param {string} root the package's folder
 */
export function arePackagesInstalled(root) {
  const installedFile = join(root, 'node_modules/.package-lock.json');
  if (!existsSync(installedFile)) return false;
  const locked = packagesOf(join(root, 'package-lock.json'));
  const installed = packagesOf(installedFile);
  return Object.entries(locked).every(([path, wanted]) => {
    if (path === '') return true;
    const present = installed[path];
    // Optional packages are those of other machines when they are not here.
    if (present === undefined) return wanted.optional === true;
    return present.version === wanted.version && present.integrity === wanted.integrity;
  });
}

/**
 * @param {string} file
 * @returns {Record<string, { version?: string, integrity?: string, optional?: boolean }>}
 */
function packagesOf(file) {
  return JSON.parse(readFileSync(file, 'utf8')).packages ?? {};
}

/**
 * How to start npm: the one that started us, else the one on PATH.
 *
 * @param {NodeJS.ProcessEnv} env
 * @returns {{ command: string, args: string[] }}
 */
function npmCommand(env) {
  const script = env['npm_execpath'];
  const isNpm = script !== undefined && basename(script).startsWith('npm') && existsSync(script);
  return isNpm ? { command: process.execPath, args: [script] } : { command: 'npm', args: [] };
}

/**
 * Runs `npm ci` when needed. No package's install script runs: our own native build is a step of its own, and zeromq
 * brings its addon built; where it has none for this machine, it alone is built.
 *
 * @param {string} root the package's folder
 * @throws {Problem} when npm is missing or fails
 */
export async function installPackages(root) {
  if (arePackagesInstalled(root)) {
    say(STEP, 'up to date');
    return;
  }
  const startMs = performance.now();
  say(STEP, 'installing with npm ci');
  await npm(root, ['ci', '--ignore-scripts', '--include=dev', '--no-audit', '--no-fund', ...SHORT_RETRIES]);
  const loads = () => run(process.execPath, ['-e', "require('zeromq')"], { cwd: root });
  if ((await loads()).status !== 0) {
    say(STEP, 'zeromq has no addon for this machine, building it');
    await npm(root, ['rebuild', 'zeromq', '--ignore-scripts=false']);
    const { status, output } = await loads();
    if (status !== 0) {
      throw new Problem(
        `the zeromq package cannot be loaded:\n${lastLines(output, 10)}`,
        'use Node 20 or 22 on x86_64 or aarch64 with glibc, for which it is built, or install cmake and build it.',
      );
    }
  }
  say(STEP, `installed in ${seconds(startMs)}`);
}

/**
 * @param {string} root
 * @param {string[]} args
 */
async function npm(root, args) {
  const { command, args: first } = npmCommand(process.env);
  const { status, output } = await run(command, [...first, ...args], { cwd: root });
  if (status === 0) return;
  // The errors without their stack; the first ones tell the reason.
  const errors = output.split('\n').filter((line) => /^npm error (?! *at )/.test(line));
  const reason = `npm ${args[0]} failed:\n${lastLines(errors.slice(0, 6).join('\n'), 6)}`;
  if (status === 127) throw new Problem('npm was not found.', 'install npm, which comes with Node.');
  if (/ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|network/i.test(output)) {
    throw new Problem(
      reason,
      'connect to the network (npm honours HTTPS_PROXY and its registry setting) and try again.',
    );
  }
  if (/in sync|EUSAGE/.test(output)) {
    throw new Problem(reason, 'package.json and package-lock.json differ: run npm install --ignore-scripts.');
  }
  throw new Problem(reason, 'mend what npm names above and try again.');
}
