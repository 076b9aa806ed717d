// The files that a replay's report goes to: looked at before the run, written after it.
import { access, constants, open, writeFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { KvpeerError } from '../../errors.js';

export interface ReportFiles {
  readonly json?: string | undefined;
  readonly html?: string | undefined;
}

/**
 * A run of minutes must not end with a report that cannot be written. Nothing is created here: a run that fails leaves
 * no empty report behind.
 *
 * @throws KVPEER_INVALID_OPTION naming the file and the reason
 */
export async function checkReportFiles({ json, html }: ReportFiles): Promise<void> {
  for (const [flag, file] of [
    ['--json', json],
    ['--html', html],
  ] as const) {
    if (file !== undefined) await checkWritable(flag, file);
  }
  if (json !== undefined && html !== undefined && resolve(json) === resolve(html)) {
    throw new KvpeerError(
      'KVPEER_INVALID_OPTION',
      `--json and --html both name ${json}, and one report would overwrite the other; name two files`,
    );
  }
}

async function checkWritable(flag: string, file: string): Promise<void> {
  if (file === '') throw new KvpeerError('KVPEER_INVALID_OPTION', `${flag} is empty; name a file`);
  try {
    await (await open(file, 'r+')).close();
  } catch (error) {
    if (codeOf(error) !== 'ENOENT') throw unwritable(flag, file, codeOf(error), error);
    try {
      await access(dirname(resolve(file)), constants.W_OK);
    } catch (cause) {
      throw unwritable(flag, file, 'its folder is missing or not writable', cause);
    }
  }
}

function unwritable(flag: string, file: string, reason: string, cause: unknown): KvpeerError {
  const hint = reason === 'EISDIR' ? 'it is a folder' : reason;
  const message = `the report of ${flag} cannot be written to ${file}: ${hint}; name another place`;
  return new KvpeerError('KVPEER_INVALID_OPTION', message, { cause });
}

/**
 * Writes what was asked for; a file that cannot be written does not keep the other from being written.
 *
 * @returns a sentence for each that could not be written
 */
export async function writeReportFiles(
  files: ReportFiles,
  render: { readonly json: () => string; readonly html: () => Promise<string> },
): Promise<readonly string[]> {
  const faults: string[] = [];
  const attempt = async (flag: string, file: string | undefined, make: () => string | Promise<string>) => {
    if (file === undefined) return;
    try {
      await writeFile(file, await make());
    } catch (error) {
      faults.push(
        `the report of ${flag} could not be written to ${file}: ${codeOf(error)}; make room there, or name another place`,
      );
    }
  };
  await attempt('--json', files.json, render.json);
  await attempt('--html', files.html, render.html);
  return faults;
}

function codeOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return 'code' in error && typeof error.code === 'string' ? error.code : error.message;
}
