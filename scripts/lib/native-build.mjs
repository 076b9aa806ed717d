// Builds native/ with node-gyp, offline when Node's headers are on the machine, and not at all when nothing changed.
// @ts-check
import { existsSync, mkdirSync, readFileSync, realpathSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import { performance } from 'node:perf_hooks';
import { Problem, filesBelow, fingerprint, isStamped, lastLines, run, say, seconds } from './steps.mjs';

const STEP = 'native';
const TARGETS = ['kvpeer_region', 'kvpeer_core'];
const SOURCE_ENDINGS = ['.cc', '.h', '.gyp'];

/** Places where distributions and version managers keep npm, as seen from the folder of the node binary. */
const NPM_FOLDERS = ['../lib/node_modules/npm', '../share/nodejs/npm', '../share/npm', '../lib/npm'];

/**
 * What the result depends on: sources, Node's version (V8's headers change with it) and the machine; and the result as it
 * was written, so that a build by hand in between is noticed.
 *
 * @param {string} root the package's folder
 */
function stampOf(root) {
  const sources = filesBelow(root, 'native', SOURCE_ENDINGS, ['build']);
  const results = TARGETS.map((target) => String(statSync(addonFile(root, target)).mtimeMs));
  return fingerprint(sources, root, [process.version, process.arch, ...results]);
}

/** @param {string} root */
const buildFolder = (root) => join(root, 'native/build/Release');

/**
 * @param {string} root
 * @param {string} target
 */
const addonFile = (root, target) => join(buildFolder(root), `${target}.node`);

/** @param {string} root */
const stampFile = (root) => join(buildFolder(root), '.kvpeer-stamp');

/**
 * Whether both addons are there and were built from the sources as they are now, for this Node.
 *
 * @param {string} root the package's folder
 */
export function isNativeBuilt(root) {
  return (
    TARGETS.every((target) => existsSync(addonFile(root, target))) &&
    isStamped(stampFile(root), stampOf(root))
  );
}

/**
 * The node-gyp to use: the one npm names, the package's own, the one inside npm, in this order.
 *
 * @param {string} root the package's folder
 * @param {NodeJS.ProcessEnv} env
 * @returns {string | undefined} path of node-gyp.js
 */
export function findNodeGyp(root, env) {
  const nodeFolder = dirname(process.execPath);
  const inNpm = 'node_modules/node-gyp/bin/node-gyp.js';
  const npmScript = env['npm_execpath'];
  const candidates = [
    env['npm_config_node_gyp'],
    join(root, inNpm),
    npmScript === undefined ? undefined : join(dirname(npmScript), '..', inNpm),
    ...NPM_FOLDERS.map((folder) => join(nodeFolder, folder, inNpm)),
    npmOnPath(env),
  ];
  return candidates.find((candidate) => candidate !== undefined && candidate !== '' && existsSync(candidate));
}

/**
 * node-gyp beside the npm that PATH finds (npm's own link leads into npm/bin).
 *
 * @param {NodeJS.ProcessEnv} env
 */
function npmOnPath(env) {
  const folder = (env['PATH'] ?? '').split(':').find((path) => path !== '' && existsSync(join(path, 'npm')));
  if (folder === undefined) return undefined;
  return join(dirname(realpathSync(join(folder, 'npm'))), '../node_modules/node-gyp/bin/node-gyp.js');
}

/**
 * A folder with Node's headers that fit the running Node, so that node-gyp needs no network.
 *
 * @param {NodeJS.ProcessEnv} env
 * @param {string} [execPath] the node binary; its prefix is looked at after npm's own setting
 * @param {string} [modules] the NODE_MODULE_VERSION the headers must have
 * @returns {string | undefined} the value for --nodedir
 */
export function findHeaders(env, execPath = process.execPath, modules = process.versions.modules) {
  const candidates = [env['npm_config_nodedir'], join(dirname(execPath), '..'), '/usr', '/usr/local'];
  return candidates.find((folder) => {
    if (folder === undefined || folder === '') return false;
    const header = join(folder, 'include/node/node_version.h');
    if (!existsSync(header) || !existsSync(join(folder, 'include/node/node.h'))) return false;
    return /^#define NODE_MODULE_VERSION (\d+)/m.exec(readFileSync(header, 'utf8'))?.[1] === modules;
  });
}

/**
 * Builds the two addons unless they are up to date.
 *
 * @param {string} root the package's folder
 * @throws {Problem} when a tool is missing or the compiler reports errors
 */
export async function buildNative(root) {
  const startMs = performance.now();
  if (isNativeBuilt(root)) {
    say(STEP, 'up to date');
    return;
  }
  const nodeGyp = findNodeGyp(root, process.env);
  if (nodeGyp === undefined) {
    throw new Problem(
      'node-gyp was not found, neither in node_modules nor inside npm.',
      'run npm ci, or install npm.',
    );
  }
  const headers = findHeaders(process.env);
  say(STEP, headers === undefined ? 'building (node-gyp downloads the headers of Node)' : 'building');

  // The stamp goes first, so that a build that is cut off does not look finished.
  rmSync(stampFile(root), { force: true });
  removeObjectsOfAnotherNode(root);
  // Jobs of make; configure first, because the list of sources is read there. Neither removes what is up to date.
  const common = ['-C', join(root, 'native'), ...(headers === undefined ? [] : ['--nodedir', headers])];
  for (const args of [['configure'], ['build', '--jobs', String(availableParallelism())]]) {
    const result = await run(process.execPath, [nodeGyp, ...args, ...common]);
    if (result.status !== 0) throw buildProblem(args[0], result.output, headers);
    const warnings = result.output.split('\n').filter((line) => /\bwarning:/.test(line));
    for (const warning of warnings) say(STEP, warning);
  }
  writeFileSync(stampFile(root), stampOf(root));
  say(STEP, `built in ${seconds(startMs)}`);
}

/**
 * Starts afresh after a change of Node: make goes by the time of a header, and that of a new Node can be older than the
 * objects made with the old one.
 *
 * @param {string} root the package's folder
 */
function removeObjectsOfAnotherNode(root) {
  const folder = join(root, 'native/build');
  const note = join(folder, '.kvpeer-node');
  const node = `${process.version} ${process.arch}`;
  if (isStamped(note, node)) return;
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  writeFileSync(note, node);
}

/**
 * Says which of the two usual reasons made node-gyp fail.
 *
 * @param {string} command the command of node-gyp that failed; configure downloads the headers
 * @param {string} output what node-gyp printed
 * @param {string | undefined} headers
 */
function buildProblem(command, output, headers) {
  if (command === 'configure' && headers === undefined) {
    const errors = output
      .split('\n')
      .filter((line) => /^gyp (http|ERR! (configure|stack (?!at )))/.test(line));
    return new Problem(
      `node-gyp could not get the headers of Node ${process.version}:\n${lastLines(errors.join('\n'), 6)}`,
      'connect to the network (HTTPS_PROXY is honoured), or set npm_config_nodedir to a folder with include/node of this version.',
    );
  }
  return new Problem(
    `the native addons in native/ could not be built:\n${lastLines(output, 40)}`,
    'mend what is named above, then run npm run build again.',
  );
}
