// Where the reports of a replay go: found out before the run, and no report lost for another one.

import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkReportFiles, writeReportFiles } from '../../src/main/cli/replay/report-files.js';

let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvpeer-reports-'));
});

afterAll(() => {
  rmSync(folder, { recursive: true });
});

describe('before the run', () => {
  it('a place where a report can be written is accepted and left as it is', async () => {
    const json = join(folder, 'new.json');
    const html = join(folder, 'old.html');
    writeFileSync(html, 'earlier');
    await checkReportFiles({ json, html });
    await checkReportFiles({});
    await checkReportFiles({ json: '/dev/null' });
    expect(existsSync(json)).toBe(false);
    expect(readFileSync(html, 'utf8')).toBe('earlier');
  });

  it('a folder, a place in a folder that is not there, and no name at all are refused by name', async () => {
    const code = 'KVPEER_INVALID_OPTION';
    const inNone = join(folder, 'none', 'x.json');
    await expect(checkReportFiles({ json: folder })).rejects.toMatchObject({
      code,
      message: `the report of --json cannot be written to ${folder}: it is a folder; name another place`,
    });
    await expect(checkReportFiles({ html: inNone })).rejects.toMatchObject({
      code,
      message: `the report of --html cannot be written to ${inNone}: its folder is missing or not writable; name another place`,
    });
    await expect(checkReportFiles({ json: '' })).rejects.toMatchObject({
      code,
      message: '--json is empty; name a file',
    });
  });

  it('one file for two reports is refused, however it is written', async () => {
    const json = join(folder, 'same');
    await expect(checkReportFiles({ json, html: join(folder, '.', 'same') })).rejects.toThrow(
      /name two files/,
    );
  });
});

describe('after the run', () => {
  it('one report that cannot be written is named, and the other is written', async () => {
    const html = join(folder, 'page.html');
    const json = join(folder, 'meanwhile-a-folder');
    mkdirSync(json);
    const faults = await writeReportFiles(
      { json, html },
      { json: () => '{}\n', html: () => Promise.resolve('<p>') },
    );
    expect(faults).toEqual([
      `the report of --json could not be written to ${json}: EISDIR; make room there, or name another place`,
    ]);
    expect(readFileSync(html, 'utf8')).toBe('<p>');
  });

  it('a full disk is a fault like any other', async () => {
    const faults = await writeReportFiles(
      { json: '/dev/full' },
      { json: () => '{}\n', html: () => Promise.resolve('') },
    );
    expect(faults).toHaveLength(1);
    expect(faults[0]).toContain('ENOSPC');
  });
});
