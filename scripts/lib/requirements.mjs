// What the machine must have before set-up can do its work, each missing piece with the command that brings it.
// @ts-check
import { existsSync, readFileSync } from 'node:fs';
import { Problem, run } from './steps.mjs';

const OLDEST_NODE = 20;
/** manylinux_2_28 wheels are built against it. */
const OLDEST_GLIBC = [2, 28];

/** What the NIXL library takes from the system beyond the C and C++ run time (OpenSSL 3 for its etcd client). */
export const NIXL_SYSTEM_LIBRARIES = ['libssl.so.3', 'libcrypto.so.3', 'libz.so.1'];

/** @typedef {{ reason: string, piece: string }} Missing `piece` is a key of PACKAGES */

/**
 * The package of each piece, by family of distributions.
 *
 * @type {Record<string, { ids: RegExp, install: string, packages: Record<string, string> }>}
 */
const DISTRIBUTIONS = {
  debian: {
    ids: /debian|ubuntu/,
    install: 'apt-get install -y',
    packages: {
      compiler: 'g++',
      make: 'make',
      python: 'python3',
      pip: 'python3-pip',
      'libssl.so.3': 'libssl3',
      'libcrypto.so.3': 'libssl3',
      'libz.so.1': 'zlib1g',
    },
  },
  fedora: {
    ids: /fedora|rhel/,
    install: 'dnf install -y',
    packages: {
      compiler: 'gcc-c++',
      make: 'make',
      python: 'python3',
      pip: 'python3-pip',
      'libssl.so.3': 'openssl-libs',
      'libcrypto.so.3': 'openssl-libs',
      'libz.so.1': 'zlib',
    },
  },
};

/** What to ask for on a distribution that is not in the table. */
const PLAIN_NAMES = {
  compiler: 'g++ 10 or newer',
  make: 'make',
  python: 'Python 3',
  pip: 'pip for Python 3',
};

/**
 * One problem for everything that is missing, with one command for all of it.
 *
 * @param {Missing[]} missing at least one
 * @param {string} osRelease the content of /etc/os-release
 */
export function missingProblem(missing, osRelease) {
  const reasons = missing.map(({ reason }) => reason).join('\n        ');
  const ids = [...osRelease.matchAll(/^ID(?:_LIKE)?=(.*)$/gm)].map((match) => match[1]).join(' ');
  const family = Object.keys(DISTRIBUTIONS).find((name) => DISTRIBUTIONS[name].ids.test(ids));
  if (family === undefined) {
    /** @type {Record<string, string>} */
    const names = PLAIN_NAMES;
    const pieces = missing.map(({ piece }) => names[piece] ?? piece).join(', ');
    return new Problem(reasons, `install with your package manager: ${pieces}.`);
  }
  const { install, packages } = DISTRIBUTIONS[family];
  const wanted = [...new Set(missing.map(({ piece }) => packages[piece]))].join(' ');
  return new Problem(reasons, `${install} ${wanted}`);
}

/**
 * Throws one problem when anything is missing.
 *
 * @param {Missing[]} missing
 */
export function refuseMissing(missing) {
  if (missing.length === 0) return;
  const file = '/etc/os-release';
  throw missingProblem(missing, existsSync(file) ? readFileSync(file, 'utf8') : '');
}

/** Throws unless this is Node 20 or newer on Linux. */
export function requireNode() {
  if (process.platform !== 'linux')
    throw new Problem(`kvpeer runs on Linux only, this is ${process.platform}.`, 'use Linux.');
  if (Number(process.versions.node.split('.')[0]) >= OLDEST_NODE) return;
  throw new Problem(
    `kvpeer needs Node ${OLDEST_NODE} or newer, this is ${process.version}.`,
    `install Node ${OLDEST_NODE} LTS or newer and run again.`,
  );
}

/**
 * What the native build lacks: a C++20 compiler, make, Python for node-gyp.
 *
 * @param {NodeJS.ProcessEnv} env
 * @returns {Promise<Missing[]>}
 */
export async function missingForNative(env) {
  const compiler = env['CXX'] ?? 'g++';
  const [compile, make, python] = await Promise.all([
    run('sh', ['-c', `${compiler} -std=gnu++20 -fsyntax-only -x c++ /dev/null`]),
    run(env['MAKE'] ?? 'make', ['--version']),
    run(pythonOf(env), ['--version']),
  ]);
  /** @type {Missing[]} */
  const missing = [];
  if (compile.status === 127)
    missing.push({ reason: `the C++ compiler ${compiler} was not found.`, piece: 'compiler' });
  else if (compile.status !== 0)
    missing.push({
      reason: `the C++ compiler ${compiler} does not understand C++20: ${compile.output.trim()}`,
      piece: 'compiler',
    });
  if (make.status !== 0)
    missing.push({ reason: 'make was not found; it runs the native build.', piece: 'make' });
  if (python.status !== 0)
    missing.push({ reason: `${pythonOf(env)} was not found; node-gyp needs Python 3.`, piece: 'python' });
  return missing;
}

/**
 * The Python that node-gyp would use, so that both steps ask for the same one.
 *
 * @param {NodeJS.ProcessEnv} env
 */
export function pythonOf(env) {
  return env['NODE_GYP_FORCE_PYTHON'] ?? env['PYTHON'] ?? 'python3';
}

/**
 * What the NIXL fetch lacks: Python with pip, and the system libraries that NIXL loads.
 *
 * @param {NodeJS.ProcessEnv} env
 * @returns {Promise<Missing[]>}
 */
export async function missingForNixl(env) {
  const python = pythonOf(env);
  const [pip, unloadable] = await Promise.all([
    run(python, ['-m', 'pip', '--version']),
    loadFailures(NIXL_SYSTEM_LIBRARIES),
  ]);
  /** @type {Missing[]} */
  const missing = [];
  if (pip.status === 127)
    missing.push({ reason: `${python} was not found; NIXL is fetched with its pip.`, piece: 'python' });
  if (pip.status !== 0)
    missing.push({ reason: `${python} has no pip; NIXL is fetched with it.`, piece: 'pip' });
  return [...missing, ...missingLibraries(unloadable)];
}

/**
 * The system libraries among the failures of `loadFailures`.
 *
 * @param {string[]} failures
 * @returns {Missing[]}
 */
export function missingLibraries(failures) {
  return NIXL_SYSTEM_LIBRARIES.filter((name) => failures.some((failure) => failure.includes(name))).map(
    (name) => ({
      reason: `the NIXL library needs ${name}, which is not installed.`,
      piece: name,
    }),
  );
}

/**
 * Lets the loader judge, in another process, whether libraries can be loaded. Node refuses them afterwards as "not
 * self-registered" because they are no addons: that counts as loaded.
 *
 * @param {string[]} libraries paths, or names that the loader searches
 * @returns {Promise<string[]>} the loader's words on each that cannot
 */
export async function loadFailures(libraries) {
  const probe = `const { dlopen } = require('node:os').constants;
    const failures = process.argv.slice(1).flatMap((library) => {
      try { process.dlopen({ exports: {} }, library, dlopen.RTLD_NOW); } catch (error) {
        return /did not self-register/.test(error.message) ? [] : [error.message];
      }
      return [];
    });
    process.stdout.write(JSON.stringify(failures));`;
  const result = await run(process.execPath, ['-e', probe, '--', ...libraries]);
  if (result.status !== 0)
    return [`loading ${libraries.join(', ')} ended the process: ${result.output.trim()}`];
  return JSON.parse(result.output);
}

/**
 * Why the fetched build of NIXL cannot run here at all, if so.
 *
 * @param {string} arch as in process.arch
 * @param {string | undefined} glibc version of the C library, undefined with musl
 * @returns {string | undefined}
 */
export function unsupportedReason(arch, glibc) {
  if (arch !== 'x64' && arch !== 'arm64')
    return `NIXL is built for x86_64 and aarch64, this machine is ${arch}.`;
  if (glibc === undefined) return 'NIXL needs glibc, and this system has another C library.';
  const [major, minor] = glibc.split('.').map(Number);
  if (major > OLDEST_GLIBC[0] || (major === OLDEST_GLIBC[0] && minor >= OLDEST_GLIBC[1])) return undefined;
  return `NIXL needs glibc ${OLDEST_GLIBC.join('.')} or newer, this system has ${glibc}.`;
}

/** The version of glibc this process runs on, undefined with another C library. */
export function glibcVersion() {
  const report = process.report.getReport();
  const header = /** @type {{ header?: { glibcVersionRuntime?: string } }} */ (report).header;
  return header?.glibcVersionRuntime;
}
