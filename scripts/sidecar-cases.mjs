// `npm run test:sidecar [-- ARGUMENTS OF replay_cases.py]`: the cases recorded from the real sidecar, against ours, for both
// profiles. The last line is "N passed, N failed".
// @ts-check
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { packageRoot } from './lib/nixl-dir.mjs';
import { Problem, runScript } from './lib/steps.mjs';

/**
 * Cases whose outcome is another one here, by intent; each has a test in test/integration/sidecar.test.ts. Connectors and
 * chunked decode that are not ours, Go's own metrics, redirects, the doubled 100 Continue, the answer that is cut before
 * anything was sent, and source headers whose port or host is none.
 */
const OTHERWISE = [
  'nixl-',
  'chunked-',
  'metrics-port',
  'route-double-slash',
  'route-dot-dot',
  'headers-pd-expect-continue',
  'decoder-cut-body',
  'source-ok-(empty-port|text-port|port-|path|space-inside|userinfo)',
  // Two spellings of one IPv6 address are one endpoint.
  'source-self-ipv6-other-spelling',
];
/**
 * Recorded from profile A, and not marked as different, where the contract says otherwise for profile B: Responses lose
 * their stateful fields on every path, chat's max_completion_tokens is always capped (seen where the prefill leg comes to
 * the model server behind this very sidecar), the allow-list has ports.
 */
const OTHERWISE_B = [
  'route-pd-responses',
  'body-caps-responses',
  'prefiller-self',
  'dp2-prefiller-rank1',
  'ssrf-prefiller-second-denied',
];
/** The tool parses bodies of 9,990 levels with Python's own recursion. */
const DEEP =
  'import runpy, sys; sys.setrecursionlimit(100000); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")';

await runScript(async () => {
  const folder = resolve(packageRoot, process.env['KVPEER_CONFORMANCE_DIR'] || '../shared/conformance');
  const tool = join(folder, 'sidecar/replay_cases.py');
  if (!existsSync(tool)) {
    throw new Problem(
      `${tool} is not there`,
      'point KVPEER_CONFORMANCE_DIR to the folder that has sidecar/replay_cases.py',
    );
  }
  const sums = { passed: 0, failed: 0 };
  for (const profile of ['A', 'B']) {
    process.stdout.write(`profile ${profile}\n`);
    const { passed, failed } = await replay(tool, profile);
    sums.passed += passed;
    sums.failed += failed;
  }
  process.stdout.write(`${sums.passed} passed, ${sums.failed} failed\n`);
  process.exitCode = sums.failed === 0 && sums.passed > 0 ? 0 : 1;
});

/**
 * @param {string} tool
 * @param {string} profile
 * @returns {Promise<{ passed: number, failed: number }>} a run that breaks off counts as one failure
 */
async function replay(tool, profile) {
  const skipped = profile === 'A' ? OTHERWISE : [...OTHERWISE, ...OTHERWISE_B];
  const program = join(packageRoot, 'dist/src/main/cli/kvpeer.js');
  const child = spawn(
    'python3',
    [
      ...[
        '-c',
        DEEP,
        tool,
        '--profile',
        profile,
        '--skip',
        `^(${skipped.join('|')})`,
        ...process.argv.slice(2),
      ],
      ...['--', process.execPath, program, 'sidecar', '--profile', profile],
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  let counts = { passed: 0, failed: 1 };
  for await (const line of createInterface(child.stdout)) {
    if (!line.startsWith('ok ')) process.stdout.write(`${line}\n`);
    const match = /^(\d+) passed, (\d+) failed$/.exec(line);
    if (match !== null) counts = { passed: Number(match[1]), failed: Number(match[2]) };
  }
  return counts;
}
