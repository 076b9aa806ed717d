// Finds the NIXL library: KVPEER_NIXL_DIR, else the package's own cache. Shared by the scripts and, through
// src/shared/nixl-dir.ts, by the product, so that both always mean the same library.
// @ts-check
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The one version that set-up fetches and that the addon's declarations were checked against. */
export const NIXL_VERSION = '1.5.1';

/** The C API; its folder and the `nixl_cuNN.libs` beside it find each other by relative run paths. */
const LIBRARY = 'libnixl_capi.so';

/** The wheel's folder of NIXL's own libraries (hidden, because the wheel was made with mesonpy). */
const LIBRARY_FOLDER = /^\.nixl(_cu\d+)?\.mesonpy\.libs$/;

/** Builds before 1.3 need CUDA's driver library to load. */
const OLDEST = [1, 3];

/**
 * @typedef {{ kind: 'found', libraryPath: string, version: string }
 *   | { kind: 'missing', reason: string, remedy: string }} NixlLocation
 *   `libraryPath` is absolute; `version` is the wheel's, or 'unknown' when nothing beside the library tells it.
 */

/**
 * The package's folder: the nearest one above this file whose package.json is kvpeer's. (This file runs from scripts/
 * and, compiled, from dist/scripts/.)
 *
 * @param {string} file
 * @returns {string}
 */
function findPackageRoot(file) {
  const folder = dirname(file);
  const manifest = join(folder, 'package.json');
  if (existsSync(manifest)) {
    /** @type {unknown} */
    const parsed = JSON.parse(readFileSync(manifest, 'utf8'));
    if (typeof parsed === 'object' && parsed !== null && 'name' in parsed && parsed.name === 'kvpeer')
      return folder;
  }
  if (folder === file) throw new Error(`no package.json of kvpeer above ${fileURLToPath(import.meta.url)}`);
  return findPackageRoot(folder);
}

export const packageRoot = findPackageRoot(fileURLToPath(import.meta.url));

/**
 * Where set-up keeps the library that it fetched.
 *
 * @param {string} root the package's folder
 */
export function nixlCacheFolder(root) {
  return join(root, '.cache/nixl', NIXL_VERSION);
}

/**
 * Finds the NIXL library.
 *
 * @param {NodeJS.ProcessEnv} [env] `KVPEER_NIXL_DIR` names the folder that holds `.nixl_cu12.mesonpy.libs`, that folder
 *   itself, or the library file
 * @param {string} [root] the package's folder, whose cache is used when the variable is not set
 * @returns {NixlLocation}
 */
export function resolveNixl(env = process.env, root = packageRoot) {
  const named = env['KVPEER_NIXL_DIR'];
  if (named !== undefined && named !== '') {
    const path = resolve(named);
    const libraryPath = existsSync(path) ? libraryAt(path) : undefined;
    if (libraryPath === undefined) {
      return {
        kind: 'missing',
        reason: `KVPEER_NIXL_DIR is ${named}, but ${existsSync(path) ? `there is no ${LIBRARY} in it` : 'nothing is there'}.`,
        remedy: `point it to the unpacked wheel (the folder that holds .nixl_cu12.mesonpy.libs) or to ${LIBRARY} itself, or unset it and run the set-up.`,
      };
    }
    return judged(libraryPath);
  }
  const cached = libraryAt(nixlCacheFolder(root));
  if (cached !== undefined) return judged(cached);
  return {
    kind: 'missing',
    reason: `NIXL ${NIXL_VERSION} has not been fetched: there is no ${LIBRARY} below ${nixlCacheFolder(root)}.`,
    remedy: `run node ${join(root, 'scripts/nixl.mjs')}, or set KVPEER_NIXL_DIR to an unpacked nixl wheel.`,
  };
}

/**
 * The library file that `path` leads to.
 *
 * @param {string} path
 * @returns {string | undefined}
 */
function libraryAt(path) {
  if (!existsSync(path)) return undefined;
  if (!statSync(path).isDirectory()) return basename(path) === LIBRARY ? path : undefined;
  const direct = join(path, LIBRARY);
  if (existsSync(direct)) return direct;
  const folder = readdirSync(path).find(
    (name) => LIBRARY_FOLDER.test(name) && existsSync(join(path, name, LIBRARY)),
  );
  return folder === undefined ? undefined : join(path, folder, LIBRARY);
}

/**
 * Refuses a library that is known to be too old.
 *
 * @param {string} libraryPath
 * @returns {NixlLocation}
 */
function judged(libraryPath) {
  const version = versionBeside(libraryPath);
  const [major, minor] = version.split('.').map(Number);
  const isTooOld = version !== 'unknown' && (major < OLDEST[0] || (major === OLDEST[0] && minor < OLDEST[1]));
  if (!isTooOld) return { kind: 'found', libraryPath, version };
  return {
    kind: 'missing',
    reason: `the NIXL library at ${libraryPath} is version ${version}; kvpeer needs ${OLDEST.join('.')} or newer (made for ${NIXL_VERSION}).`,
    remedy: 'unset KVPEER_NIXL_DIR and run the set-up, or point it to a newer wheel.',
  };
}

/**
 * The wheel's version, which only its dist-info folder tells: the C API has no call for it.
 *
 * @param {string} libraryPath
 */
function versionBeside(libraryPath) {
  const wheel = dirname(dirname(libraryPath));
  const matches = readdirSync(wheel).map((name) => /^nixl(?:_cu\d+)?-(\d+\.\d+[^-]*)\.dist-info$/.exec(name));
  return matches.find((match) => match !== null)?.[1] ?? 'unknown';
}
