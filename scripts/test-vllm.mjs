// `npm run test:vllm [-- VITEST ARGUMENTS]`: the set-up, vLLM's tier as the other end, and the tests against it.
// Prints the time of each file; the last line is "N passed, N failed".
// @ts-check
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { conformanceFolder, conformancePython } from './lib/conformance.mjs';
import { packageRoot } from './lib/nixl-dir.mjs';
import { setUp } from './lib/setup.mjs';
import { runScript } from './lib/steps.mjs';

await runScript(async () => {
  const folder = conformanceFolder(packageRoot, process.env);
  await setUp(packageRoot, 'required');
  const python = await conformancePython(packageRoot, folder, process.env);
  const results = mkdtempSync(join(tmpdir(), 'kvpeer-vllm-'));
  try {
    const status = await runVitest(folder, python, join(results, 'report.json'));
    process.exitCode = summarize(join(results, 'report.json'), status);
  } finally {
    rmSync(results, { recursive: true, force: true });
  }
});

/**
 * @param {string} folder of the harness
 * @param {string} python
 * @param {string} report file for vitest's figures
 * @returns {Promise<number>} its exit status
 */
async function runVitest(folder, python, report) {
  const vitest = spawn(
    process.execPath,
    [
      join(packageRoot, 'node_modules/vitest/vitest.mjs'),
      ...['run', '--config', 'vitest.vllm.config.ts'],
      ...['--reporter=verbose', '--reporter=json', `--outputFile.json=${report}`],
      ...process.argv.slice(2),
    ],
    {
      cwd: packageRoot,
      stdio: 'inherit',
      env: { ...process.env, KVPEER_CONFORMANCE_DIR: folder, KVPEER_CONFORMANCE_PYTHON: python },
    },
  );
  const [status] = await once(vitest, 'exit');
  return status ?? 1;
}

/**
 * Prints time per file and the sum. A file that could not be loaded, and a run that broke without a failed test, count
 * as one failure each.
 *
 * @param {string} reportFile
 * @param {number} status vitest's
 * @returns {number} the exit status of the whole
 */
function summarize(reportFile, status) {
  /** @type {{ numPassedTests: number, numFailedTests: number, testResults: { name: string, status: string, startTime: number, endTime: number, assertionResults: unknown[] }[] }} */
  let report;
  try {
    report = JSON.parse(readFileSync(reportFile, 'utf8'));
  } catch {
    console.log('0 passed, 1 failed');
    return status || 1;
  }
  const broken = report.testResults.filter(
    (file) => file.status === 'failed' && file.assertionResults.length === 0,
  );
  for (const file of report.testResults) {
    const time = ((file.endTime - file.startTime) / 1000).toFixed(1);
    console.log(`${time.padStart(6)} s  ${relative(packageRoot, file.name)}`);
  }
  const failed = report.numFailedTests + broken.length;
  const extra = status !== 0 && failed === 0 ? 1 : 0;
  console.log(`${report.numPassedTests} passed, ${failed + extra} failed`);
  return status;
}
