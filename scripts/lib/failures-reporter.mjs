// A reporter of vitest: what failed, by name, with the beginning of each failure, as it happens, so that also a run which
// is cut off has told its failures. FAILED_TESTS_FILE names the file it adds to; `.ci/run` prints that file last. (A name
// that begins with KVPEER_ would be an unknown option to every program that a test starts.)
// @ts-check
import { appendFileSync } from 'node:fs';
import { relative } from 'node:path';
import { stripVTControlCharacters } from 'node:util';
import { packageRoot } from './nixl-dir.mjs';

const LINES_PER_FAILURE = 20;

export default class FailuresReporter {
  /** @param {import('vitest/node').TestCase} test */
  onTestCaseResult(test) {
    const { state, errors } = test.result();
    if (state !== 'failed') return;
    const seconds = ((test.diagnostic()?.duration ?? 0) / 1000).toFixed(1);
    note(`${pathOf(test.module)} > ${test.fullName} (${seconds} s)`, errors);
  }

  /**
   * Only a hook's errors: those of its tests are theirs.
   *
   * @param {import('vitest/node').TestSuite} suite
   */
  onTestSuiteResult(suite) {
    note(`${pathOf(suite.module)} > ${suite.fullName}`, suite.errors());
  }

  /**
   * A file that could not be loaded, or a hook outside of all groups.
   *
   * @param {import('vitest/node').TestModule} module
   */
  onTestModuleEnd(module) {
    note(pathOf(module), module.errors());
  }

  /**
   * @param {readonly import("vitest/node").TestModule[]} _modules
   * @param {readonly import('vitest/node').SerializedError[]} unhandled outside of any test
   */
  onTestRunEnd(_modules, unhandled) {
    note('outside of a test', unhandled);
  }
}

/** @param {import('vitest/node').TestModule} module */
function pathOf(module) {
  return relative(packageRoot, module.moduleId);
}

/**
 * @param {string} title
 * @param {readonly { message: string, diff?: string, stacks?: readonly { file: string, line: number }[] }[]} errors
 */
function note(title, errors) {
  if (errors.length === 0 || !process.env['FAILED_TESTS_FILE']) return;
  const lines = errors.flatMap(({ message, diff, stacks }) => [
    ...message.split('\n'),
    ...(stacks ?? []).map(({ file, line }) => `  at ${relative(packageRoot, file)}:${line}`),
    ...(diff ?? '').split('\n').filter((line) => line !== ''),
  ]);
  const beginning = lines
    .slice(0, LINES_PER_FAILURE)
    .map((line) => `    ${stripVTControlCharacters(line)}\n`);
  appendFileSync(process.env['FAILED_TESTS_FILE'], `FAILED ${title}\n${beginning.join('')}`);
}
