// Fetches the pinned NIXL wheel through pip and keeps of it what a transfer from host memory to host memory needs.
// @ts-check
import { createHash } from 'node:crypto';
import {
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { closureOf } from './elf.mjs';
import { NIXL_VERSION, nixlCacheFolder, resolveNixl } from './nixl-dir.mjs';
import {
  glibcVersion,
  loadFailures,
  missingForNixl,
  missingLibraries,
  pythonOf,
  refuseMissing,
  unsupportedReason,
} from './requirements.mjs';
import { Problem, lastLines, run, say, seconds } from './steps.mjs';
import { openZip } from './zip.mjs';

const STEP = 'nixl';
const TEMPORARY = 'fetching-';
const WITHOUT_NIXL = 'Without NIXL a node starts only with --data-plane none.';

/**
 * The wheels, by process.arch. cp312 whatever the user's Python is: the native libraries in them are the same.
 *
 * @type {Record<string, { platform: string, sha256: string }>}
 */
export const WHEELS = {
  x64: {
    platform: 'manylinux_2_28_x86_64',
    sha256: 'a02005f84e498641b8fe02d058fdc6762c99edf7ae6430176d2d16fa57f4fb93',
  },
  arm64: {
    platform: 'manylinux_2_28_aarch64',
    sha256: '98d4b169813a5110842aefc383ba3bf259a886cd09cc9d54c7a6db69bb36de4d',
  },
};

/**
 * What is loaded by path at run time, so that no NEEDED entry names it: the C API (ours), NIXL's UCX plug-in, and
 * UCX's modules for copies within a host and for RDMA. UCX's CUDA modules and the RDMA ones started by a GPU (gda, gdp)
 * are left out, and with them the GPU extension, the Python modules and the storage plug-ins with their cloud SDKs.
 */
const ROOTS = [
  /^\.nixl_cu12\.mesonpy\.libs\/libnixl_capi\.so$/,
  /^\.nixl_cu12\.mesonpy\.libs\/plugins\/libplugin_UCX\.so$/,
  /^nixl_cu12\.libs\/ucx\/libuct_(cma|ib|ib_mlx5|ib_mlx5_ext|ib_efa)\.so[.\d]*$/,
];

/** Version and licences stay beside the libraries. */
const PAPERS = /\.dist-info\/(METADATA|WHEEL|licenses\/.*|LICENSE.*)$/;

/**
 * The files of a wheel that are kept.
 *
 * @param {{ names: string[], has: (path: string) => boolean, read: (path: string) => Buffer }} wheel
 * @returns {string[]}
 */
export function filesToKeep(wheel) {
  const roots = ROOTS.flatMap((pattern) => {
    const matches = wheel.names.filter((name) => pattern.test(name));
    if (matches.length === 0) throw new Error(`the wheel has no file like ${pattern.source}`);
    return matches;
  });
  const papers = wheel.names.filter((name) => PAPERS.test(name));
  return [...closureOf(roots, wheel).inside, ...papers];
}

/**
 * Refuses a wheel that is not the pinned one.
 *
 * @param {Buffer} wheel
 * @param {string} sha256
 */
export function requireHash(wheel, sha256) {
  const actual = createHash('sha256').update(wheel).digest('hex');
  if (actual === sha256) return;
  throw new Problem(
    `the nixl-cu12 ${NIXL_VERSION} wheel that pip downloaded is not the pinned one: its SHA-256 is ${actual}, expected ${sha256}.`,
    'try again; if it stays so, the package index or a proxy in between serves another file: do not use it.',
  );
}

/**
 * Makes sure that a NIXL library is there and can be loaded; fetches it when neither KVPEER_NIXL_DIR nor the cache has it.
 *
 * @param {string} root the package's folder
 * @throws {Problem} naming what is missing
 */
export async function provideNixl(root) {
  const startMs = performance.now();
  const present = resolveNixl(process.env, root);
  if (present.kind === 'found') {
    await requireLoadable(present.libraryPath);
    say(STEP, `${present.version} at ${dirname(dirname(present.libraryPath))}`);
    return;
  }
  if ((process.env['KVPEER_NIXL_DIR'] ?? '') !== '') throw new Problem(present.reason, present.remedy);

  const unsupported = unsupportedReason(process.arch, glibcVersion());
  if (unsupported !== undefined) throw new Problem(unsupported, `use --data-plane none. ${WITHOUT_NIXL}`);
  refuseMissing(await missingForNixl(process.env));

  const target = nixlCacheFolder(root);
  const parent = dirname(target);
  mkdirSync(parent, { recursive: true });
  for (const name of readdirSync(parent)) {
    if (name.startsWith(TEMPORARY)) rmSync(join(parent, name), { recursive: true });
  }
  const temporary = mkdtempSync(join(parent, TEMPORARY));
  try {
    say(STEP, `fetching nixl-cu12 ${NIXL_VERSION} (70 MB) with pip`);
    const wheel = await download(temporary);
    const unpacked = join(temporary, NIXL_VERSION);
    const fileCount = unpackWheel(wheel, unpacked);
    const resolved = resolveNixl({ KVPEER_NIXL_DIR: unpacked });
    if (resolved.kind === 'missing') throw new Error(resolved.reason);
    await requireLoadable(resolved.libraryPath);
    // Renamed as a whole: another process sees either no library or all of it.
    rmSync(target, { recursive: true, force: true });
    renameSync(unpacked, target);
    say(STEP, `${NIXL_VERSION}, ${fileCount} files, fetched in ${seconds(startMs)}`);
  } finally {
    rmSync(temporary, { recursive: true, force: true });
  }
}

/**
 * Has pip download the wheel and checks it.
 *
 * @param {string} folder where pip may write
 * @returns {Promise<Buffer>}
 */
async function download(folder) {
  const { platform, sha256 } = WHEELS[process.arch];
  const result = await run(pythonOf(process.env), [
    ...['-m', 'pip', 'download', '--no-deps', '--only-binary=:all:', '--disable-pip-version-check'],
    ...['--progress-bar', 'off', '--no-input', '--retries', '2', '--timeout', '20'],
    ...['--platform', platform, '--python-version', '312', '--implementation', 'cp', '--abi', 'cp312'],
    ...['--dest', folder, `nixl-cu12==${NIXL_VERSION}`],
  ]);
  if (result.status !== 0) {
    throw new Problem(
      `pip could not download nixl-cu12 ${NIXL_VERSION}:\n${lastLines(result.output, 6)}`,
      'connect to the network (pip honours HTTPS_PROXY and PIP_INDEX_URL) and try again, or set KVPEER_NIXL_DIR to an ' +
        `unpacked nixl wheel from another machine. ${WITHOUT_NIXL}`,
    );
  }
  const name = readdirSync(folder).find((file) => file.endsWith('.whl'));
  if (name === undefined) throw new Error(`pip reported success and left no wheel:\n${result.output}`);
  const wheel = readFileSync(join(folder, name));
  requireHash(wheel, sha256);
  return wheel;
}

/**
 * @param {Buffer} archive
 * @param {string} folder
 * @returns {number} how many files were written
 */
function unpackWheel(archive, folder) {
  const wheel = openZip(archive);
  const kept = filesToKeep(wheel);
  for (const name of kept) {
    const path = join(folder, name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, wheel.read(name));
  }
  return kept.length;
}

/**
 * Loads the library once in another process, because only the loader knows whether all it needs is there.
 *
 * @param {string} libraryPath
 */
async function requireLoadable(libraryPath) {
  const failures = await loadFailures([libraryPath]);
  if (failures.length === 0) return;
  refuseMissing(missingLibraries(failures));
  throw new Problem(
    `the NIXL library at ${libraryPath} cannot be loaded: ${failures.join('; ')}`,
    'install what the loader names above, or point KVPEER_NIXL_DIR to a wheel that fits this system. ' +
      WITHOUT_NIXL,
  );
}
