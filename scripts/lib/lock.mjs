// Lets one set-up run at a time in a checkout: two `npm start` would otherwise install and build over each other.
// @ts-check
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { say } from './steps.mjs';

const POLL_MS = 200;

/**
 * Runs `body` while holding a lock file; waits for another live holder first. A holder that died is taken over from.
 *
 * @template T
 * @param {string} file
 * @param {() => Promise<T>} body
 * @returns {Promise<T>}
 */
export async function withLock(file, body) {
  await acquire(file);
  const release = () => {
    rmSync(file, { force: true });
  };
  process.once('exit', release);
  try {
    return await body();
  } finally {
    process.removeListener('exit', release);
    release();
  }
}

/** @param {string} file */
async function acquire(file) {
  mkdirSync(dirname(file), { recursive: true });
  const own = `${file}.${process.pid}`;
  // Linked, not created and then written: the file never exists without its holder's number.
  writeFileSync(own, String(process.pid));
  try {
    let isAnnounced = false;
    while (!tryLink(own, file)) {
      const holder = holderOf(file);
      if (holder === undefined) continue;
      if (!isAlive(holder)) {
        rmSync(file, { force: true });
        continue;
      }
      if (!isAnnounced) say('set-up', `waiting for the one that runs already (process ${holder}, ${file})`);
      isAnnounced = true;
      await delay(POLL_MS);
    }
  } finally {
    rmSync(own, { force: true });
  }
}

/**
 * @param {string} own
 * @param {string} file
 */
function tryLink(own, file) {
  try {
    linkSync(own, file);
    return true;
  } catch (error) {
    if (isCode(error, 'EEXIST')) return false;
    throw error;
  }
}

/**
 * @param {string} file
 * @returns {number | undefined} undefined when the lock was given back in between
 */
function holderOf(file) {
  try {
    return Number(readFileSync(file, 'utf8'));
  } catch (error) {
    if (isCode(error, 'ENOENT')) return undefined;
    throw error;
  }
}

/** @param {number} pid */
function isAlive(pid) {
  // Our own number in a lock that we do not hold is left from an earlier process with the same number.
  if (pid === process.pid) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return isCode(error, 'EPERM');
  }
}

/**
 * @param {unknown} error
 * @param {string} code
 */
function isCode(error, code) {
  return error instanceof Error && 'code' in error && error.code === code;
}
