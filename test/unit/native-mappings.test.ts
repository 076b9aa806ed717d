// Mappings as SharedArrayBuffers: alignment, files, prefaulting, and what keeps them mapped.

import { existsSync, readFileSync, statSync, unlinkSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { ControlHandle } from '../../native/index.js';
import { loadNative } from '../../native/index.js';
import { computeLayout } from '../../src/shared/layout.js';
import { writeHeader } from '../../src/shared/layout-header.js';

const native = loadNative();
// Another file for every test: mappings of the ones before may not have been collected yet.
let testCount = 0;
let path = '';

beforeEach(() => {
  testCount += 1;
  path = `/dev/shm/kvpeer-test-${process.pid}-${testCount}-`;
});

afterEach(() => {
  if (existsSync(path)) unlinkSync(path);
});

/** Mappings of the file in this process, as /proc/self/maps lists them. */
function mapsOfPath(): string[] {
  return readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .filter((line) => line.includes(path));
}

describe('a mapping', () => {
  test('starts on a 2 MiB boundary, is zero and rounded up to a page', () => {
    const { buffer } = native.mapFile(path, { bytes: 5000, huge: false, lock: false, create: true });
    expect(buffer).toBeInstanceOf(SharedArrayBuffer);
    expect(buffer.byteLength).toBe(8192);
    expect(new Uint8Array(buffer).every((byte) => byte === 0)).toBe(true);
    const [line] = mapsOfPath();
    expect(Number.parseInt(line, 16) % (2 * 1024 * 1024)).toBe(0);
  });

  test('of a file is the same memory for everybody who maps it, also after it was unlinked', () => {
    const first = native.mapFile(path, { bytes: 4096, huge: false, lock: false, create: true });
    const second = native.mapFile(path, { bytes: 4096, huge: false, lock: false, create: false });
    unlinkSync(path);
    new Uint8Array(first.buffer)[77] = 5;
    expect(new Uint8Array(second.buffer)[77]).toBe(5);
  });

  test('of a file that is there already is not made again, one that is missing or too short is not mapped', () => {
    const options = { bytes: 8192, huge: false, lock: false };
    expect(() => native.mapFile(path, { ...options, create: false })).toThrow(/cannot open .*No such file/);
    native.mapFile(path, { ...options, bytes: 4096, create: true });
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(() => native.mapFile(path, { ...options, create: true })).toThrow(/cannot create .*File exists/);
    expect(() => native.mapFile(path, { ...options, create: false })).toThrow(
      /has 4096 bytes, fewer than the 8192/,
    );
  });

  test('says whether it is locked and huge, and why not', () => {
    const { locked, hugeAdvised, reason } = native.mapAnonymous({ bytes: 4 << 20, huge: true, lock: true });
    expect(locked && hugeAdvised).toBe(reason === '');
    expect(native.mapAnonymous({ bytes: 4096, huge: false, lock: false })).toMatchObject({
      locked: false,
      hugeAdvised: false,
      reason: '',
    });
  });
});

describe('touch', () => {
  test('makes every page present and changes no byte', async () => {
    const bytes = 8 << 20;
    const { buffer } = native.mapFile(path, { bytes, huge: false, lock: false, create: true });
    new Uint8Array(buffer)[12_345] = 9;
    await native.touch(buffer);
    expect(statSync(path).blocks * 512).toBe(bytes);
    expect(new Uint8Array(buffer)[12_345]).toBe(9);
    expect(new Uint8Array(buffer)[12_346]).toBe(0);
  });
});

describe('memory', () => {
  setFlagsFromString('--expose-gc');
  const collectGarbage = runInNewContext('gc') as () => void;
  const layout = computeLayout({
    numBlocks: 4,
    blockBytes: 4096,
    keyBytes: 36,
    shardCount: 1,
    arenaBytes: 4096,
  });

  /** A control mapping whose buffer nobody holds any more when this returns. */
  function attachAndForget(): ControlHandle {
    const options = { bytes: layout.controlBytes, huge: false, lock: false, create: true };
    const { buffer } = native.mapFile(path, options);
    writeHeader(buffer, layout, { seed: 1n, incarnation: 1n });
    return native.attachControl(buffer);
  }

  test('is unmapped once its buffer is collected', async () => {
    (() => native.mapFile(path, { bytes: 4096, huge: false, lock: false, create: true }))();
    expect(mapsOfPath()).toHaveLength(1);
    // The memory of a buffer that was collected goes on another thread.
    await expect
      .poll(() => {
        collectGarbage();
        return mapsOfPath();
      })
      .toHaveLength(0);
  });

  test('stays mapped while it is attached, also when its buffer is gone, and goes with detach', async () => {
    const handle = attachAndForget();
    for (let round = 0; round < 5; round++) {
      collectGarbage();
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(mapsOfPath()).toHaveLength(1);
    native.detach(handle);
    // The memory of a buffer that was collected goes on another thread.
    await expect
      .poll(() => {
        collectGarbage();
        return mapsOfPath();
      })
      .toHaveLength(0);
    expect(() => {
      native.detach(handle);
    }).toThrow(/no such mapping/);
  });
});

test('threadCpuNs is the time that this thread has run, never more than has passed', () => {
  const wallStart = process.hrtime.bigint();
  const start = native.threadCpuNs();
  while (native.threadCpuNs() < start + 20e6);
  const wallNs = Number(process.hrtime.bigint() - wallStart);
  expect(wallNs).toBeGreaterThanOrEqual(20e6);
});
