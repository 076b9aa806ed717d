// Configuration files: what is read of one, and when it is taken for something else.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { MAX_CONFIG_BYTES, readConfigText } from '../../src/main/options/config-file.js';

let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvpeer-config-'));
});

afterAll(() => {
  rmSync(folder, { recursive: true });
});

it('is read whole up to its bound', async () => {
  const file = join(folder, 'long.yaml');
  const text = `port: 0\n#${'ä'.repeat((MAX_CONFIG_BYTES - 10) / 2)}`;
  writeFileSync(file, text);
  expect(await readConfigText(file)).toBe(text);
});

it('is refused beyond its bound, before it is taken apart, and a device without end too', async () => {
  const file = join(folder, 'longer.yaml');
  writeFileSync(file, '#'.repeat(MAX_CONFIG_BYTES + 1));
  await expect(readConfigText(file)).rejects.toThrow(/longer than 1048576 bytes/);
  await expect(readConfigText('/dev/zero')).rejects.toThrow(/longer than 1048576 bytes/);
});

it('cannot be a folder, or nothing', async () => {
  await expect(readConfigText(folder)).rejects.toThrow(/EISDIR/);
  await expect(readConfigText(join(folder, 'none'))).rejects.toThrow(/ENOENT/);
});
