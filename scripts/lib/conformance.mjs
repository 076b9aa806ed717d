// The conformance harness: vLLM's released P2P tier as a program, and the Python that it runs in.
// @ts-check
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { performance } from 'node:perf_hooks';
import { Problem, run, say, seconds } from './steps.mjs';

/** Files of the harness that the tests and benches use. */
const NEEDED = ['setup.sh', 'vllm_peer.py', 'vllm_shim.py', 'vllm_lookup_bench.py'];

/**
 * The folder of the harness: KVPEER_CONFORMANCE_DIR, else ../shared/conformance beside the checkout.
 *
 * @param {string} root the package's folder
 * @param {NodeJS.ProcessEnv} env
 * @throws {Problem} naming what is needed and how to point to it
 */
export function conformanceFolder(root, env) {
  const named = env['KVPEER_CONFORMANCE_DIR'];
  const folder = resolve(root, named || '../shared/conformance');
  const missing = NEEDED.filter((file) => !existsSync(join(folder, file)));
  if (missing.length === 0) return folder;
  throw new Problem(
    `the conformance harness (vLLM's P2P tier as a peer) is not in ${folder}: ${missing.join(', ')} missing`,
    `point KVPEER_CONFORMANCE_DIR to a copy of the folder that has ${NEEDED.join(', ')}; it also needs Linux x86-64, ` +
      'Python 3.12 (PYTHON names one) and, the first time, the package registry of pip',
  );
}

/**
 * The Python of the harness, with the released vLLM tier and NIXL in it; made at the first call (0.4 GB, a minute).
 * VLLM_CONFORMANCE_HOME says where it is kept; default: the project's own cache.
 *
 * @param {string} root
 * @param {string} folder of the harness
 * @param {NodeJS.ProcessEnv} env
 * @returns {Promise<string>}
 * @throws {Problem}
 */
export async function conformancePython(root, folder, env) {
  const home = env['VLLM_CONFORMANCE_HOME'] || join(root, '.cache/vllm-conformance');
  const startMs = performance.now();
  const { status, output } = await run('bash', [join(folder, 'setup.sh'), home], { env });
  const python = output.trimEnd().split('\n').at(-1) ?? '';
  if (status !== 0 || !existsSync(python)) {
    throw new Problem(
      `the environment of the conformance harness could not be made:\n${output.trimEnd()}`,
      'install Python 3.12 with venv, or name one in PYTHON; the first run needs the package registry of pip',
    );
  }
  say('conformance', `ready in ${seconds(startMs)}`);
  return python;
}
