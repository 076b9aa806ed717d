// What all set-up scripts share: one short line per step, a problem with its remedy, and running other programs.
// @ts-check
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';

/** Something the user has to mend: what is wrong, and the remedy. Printed without a stack. */
export class Problem extends Error {
  /**
   * @param {string} reason what is missing or went wrong, in one sentence
   * @param {string} remedy what to do about it
   */
  constructor(reason, remedy) {
    super(`${reason}\n  remedy: ${remedy}`);
    this.name = 'Problem';
    this.reason = reason;
    this.remedy = remedy;
  }
}

/**
 * Prints one line about a step.
 *
 * @param {string} step
 * @param {string} text
 */
export function say(step, text) {
  process.stderr.write(`${step.padEnd(12)} ${text}\n`);
}

/**
 * Seconds since `startMs` (performance.now()), for the end of a step's line.
 *
 * @param {number} startMs
 */
export function seconds(startMs) {
  return `${((performance.now() - startMs) / 1000).toFixed(1)} s`;
}

/**
 * Runs the body of a script: a Problem is printed plainly and ends the process with status 1, anything else is a fault
 * of the script itself and keeps its stack.
 *
 * @param {() => Promise<void>} body
 */
export async function runScript(body) {
  try {
    await body();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    process.stderr.write(`\nkvpeer: ${error.message}\n`);
    process.exit(1);
  }
}

/**
 * Runs a program to its end and hands back its status and output. A signal that ends this process ends the program too.
 *
 * @param {string} command
 * @param {string[]} args
 * @param {{ cwd?: string, env?: NodeJS.ProcessEnv }} [options]
 * @returns {Promise<{ status: number, output: string }>} status 127 when the program does not exist; output is stdout
 *   and stderr in the order they came
 */
export function run(command, args, options = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    /** @param {Buffer} chunk */
    const collect = (chunk) => {
      output += chunk.toString();
    };
    /** @param {NodeJS.Signals} signal */
    const stop = (signal) => {
      child.kill(signal);
      process.exit(signal === 'SIGINT' ? 130 : 143);
    };
    process.once('SIGINT', stop);
    process.once('SIGTERM', stop);
    const settle = () => {
      process.removeListener('SIGINT', stop);
      process.removeListener('SIGTERM', stop);
    };
    child.stdout.on('data', collect);
    child.stderr.on('data', collect);
    child.once('error', (error) => {
      settle();
      if ('code' in error && error.code === 'ENOENT')
        resolve({ status: 127, output: `${command}: not found` });
      else reject(error);
    });
    child.once('close', (code) => {
      settle();
      resolve({ status: code ?? 1, output });
    });
  });
}

/**
 * The last lines of a program's output, indented, for an error message.
 *
 * @param {string} output
 * @param {number} count
 */
export function lastLines(output, count) {
  return output
    .trimEnd()
    .split('\n')
    .slice(-count)
    .map((line) => `    ${line}`)
    .join('\n');
}

/**
 * One hash over the names and the content of files, and over what else a result depends on.
 *
 * @param {string[]} files paths below `root`
 * @param {string} root
 * @param {string[]} others
 */
export function fingerprint(files, root, others) {
  const hash = createHash('sha256');
  for (const other of others) hash.update(`${other}\0`);
  for (const file of [...files].sort()) {
    hash.update(`${file}\0`);
    hash.update(readFileSync(join(root, file)));
  }
  return hash.digest('hex');
}

/**
 * All files below `folder` whose names end in one of `endings`, as paths relative to `root`.
 *
 * @param {string} root
 * @param {string} folder
 * @param {string[]} endings
 * @param {string[]} [skipped] names of folders that are left out
 * @returns {string[]}
 */
export function filesBelow(root, folder, endings, skipped = []) {
  const start = join(root, folder);
  if (!existsSync(start)) return [];
  return readdirSync(start, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory())
      return skipped.includes(entry.name) ? [] : filesBelow(root, path, endings, skipped);
    return endings.some((ending) => entry.name.endsWith(ending)) ? [path] : [];
  });
}

/**
 * Whether `stampFile` holds exactly `stamp`.
 *
 * @param {string} stampFile
 * @param {string} stamp
 */
export function isStamped(stampFile, stamp) {
  return existsSync(stampFile) && readFileSync(stampFile, 'utf8') === stamp;
}
