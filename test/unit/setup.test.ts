// The set-up's parts that decide something: what is missing, which NIXL library is meant, what of a wheel is kept.
import { createHash } from 'node:crypto';
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { deflateRawSync } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { closureOf, readDependencies } from '../../scripts/lib/elf.mjs';
import { withLock } from '../../scripts/lib/lock.mjs';
import { findHeaders, findNodeGyp } from '../../scripts/lib/native-build.mjs';
import { nixlCacheFolder } from '../../scripts/lib/nixl-dir.mjs';
import { filesToKeep, requireHash } from '../../scripts/lib/nixl-fetch.mjs';
import { arePackagesInstalled } from '../../scripts/lib/packages.mjs';
import {
  loadFailures,
  missingForNative,
  missingForNixl,
  missingLibraries,
  missingProblem,
  unsupportedReason,
} from '../../scripts/lib/requirements.mjs';
import { continueIn } from '../../scripts/lib/setup.mjs';
import { Problem, run } from '../../scripts/lib/steps.mjs';
import { openZip } from '../../scripts/lib/zip.mjs';
import { resolveNixl } from '../../src/shared/nixl-dir.js';

const DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n';

let folder = '';

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvpeer-setup-'));
});

afterEach(() => {
  rmSync(folder, { recursive: true });
});

function write(path: string, content: string | Buffer = ''): string {
  const file = join(folder, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, content);
  return file;
}

/** A program of that name in the temporary folder, for a PATH that holds only what a test wants. */
function writeProgram(name: string, script: string): void {
  chmodSync(write(name, `#!/bin/sh\n${script}\n`), 0o755);
}

/** A shared library as small as can be: one loaded segment over the whole file, a dynamic section, the strings. */
function elf(needed: string[], runPath: string, kind: 'RPATH' | 'RUNPATH' = 'RPATH'): Buffer {
  const address = 0x10000;
  const strings = Buffer.from(`\0${[...needed, runPath].join('\0')}\0`, 'latin1');
  const offsets = [...needed, runPath].map((text) => strings.indexOf(`\0${text}\0`) + 1);
  const dynamicAt = 64 + 2 * 56;
  const entryCount = needed.length + 3;
  const stringsAt = dynamicAt + entryCount * 16;
  const file = Buffer.alloc(stringsAt + strings.length);
  file.write('\x7fELF\x02\x01\x01', 'latin1');
  file.writeBigUInt64LE(64n, 32);
  file.writeUInt16LE(56, 54);
  file.writeUInt16LE(2, 56);
  const segment = (at: number, type: number, offset: number, bytes: number): void => {
    file.writeUInt32LE(type, at);
    file.writeBigUInt64LE(BigInt(offset), at + 8);
    file.writeBigUInt64LE(BigInt(address + offset), at + 16);
    file.writeBigUInt64LE(BigInt(bytes), at + 32);
  };
  segment(64, 1, 0, file.length);
  segment(120, 2, dynamicAt, entryCount * 16);
  const entries: [number, number][] = [
    ...needed.map((_, index): [number, number] => [1, offsets[index]]),
    [kind === 'RPATH' ? 15 : 29, offsets[needed.length]],
    [5, address + stringsAt],
    [0, 0],
  ];
  entries.forEach(([tag, value], index) => {
    file.writeBigUInt64LE(BigInt(tag), dynamicAt + index * 16);
    file.writeBigUInt64LE(BigInt(value), dynamicAt + index * 16 + 8);
  });
  strings.copy(file, stringsAt);
  return file;
}

/** A zip archive with every second file packed. */
function zip(files: Record<string, Buffer>): Buffer {
  const locals: Buffer[] = [];
  const directory: Buffer[] = [];
  let offset = 0;
  Object.entries(files).forEach(([name, content], index) => {
    const method = index % 2 === 0 ? 8 : 0;
    const packed = method === 8 ? deflateRawSync(content) : content;
    const shared = Buffer.alloc(26);
    shared.writeUInt16LE(20, 0);
    shared.writeUInt16LE(method, 4);
    shared.writeUInt32LE(packed.length, 14);
    shared.writeUInt32LE(content.length, 18);
    shared.writeUInt16LE(name.length, 22);
    const local = Buffer.concat([Buffer.from('PK\x03\x04'), shared, Buffer.from(name), packed]);
    const rest = Buffer.alloc(14);
    rest.writeUInt32LE(offset, 10);
    directory.push(Buffer.concat([Buffer.from('PK\x01\x02\x14\x00'), shared, rest, Buffer.from(name)]));
    locals.push(local);
    offset += local.length;
  });
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06');
  end.writeUInt16LE(directory.length, 8);
  end.writeUInt16LE(directory.length, 10);
  end.writeUInt32LE(Buffer.concat(directory).length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...locals, ...directory, end]);
}

function treeOf(files: Record<string, Buffer>): {
  has: (path: string) => boolean;
  read: (path: string) => Buffer;
} {
  return { has: (path) => path in files, read: (path) => files[path] };
}

describe('reading shared libraries', () => {
  it('names what a library needs and where its loader looks', () => {
    expect(readDependencies(elf(['liba.so', 'libc.so.6'], '$ORIGIN/.:$ORIGIN/../libs'))).toEqual({
      needed: ['liba.so', 'libc.so.6'],
      runPath: ['$ORIGIN/.', '$ORIGIN/../libs'],
    });
  });

  it('reads the node binary of this machine', () => {
    expect(readDependencies(readFileSync(process.execPath)).needed).toContain('libc.so.6');
  });

  it('refuses what is not a shared library, or is cut off', () => {
    expect(() => readDependencies(Buffer.from('PK\x03\x04 something else'))).toThrow('not a 64-bit');
    expect(() => readDependencies(elf(['liba.so'], '$ORIGIN').subarray(0, 200))).toThrow(RangeError);
  });

  it('follows needs through run paths, also inherited ones, and tells what the system must have', () => {
    const files = {
      'top/libcapi.so': elf(['libcore.so', 'libssl.so.3'], '$ORIGIN/.:$ORIGIN/../libs'),
      'top/libcore.so': elf(['libdeep.so'], ''),
      'libs/libdeep.so': elf(['libcapi.so'], '$ORIGIN', 'RUNPATH'),
      'libs/libunused.so': elf([], ''),
    };
    expect(closureOf(['top/libcapi.so'], treeOf(files))).toEqual({
      inside: ['libs/libdeep.so', 'top/libcapi.so', 'top/libcore.so'],
      outside: ['libssl.so.3'],
    });
  });
});

describe('reading a wheel', () => {
  it('gives back stored and packed files', () => {
    const files = { 'a.txt': Buffer.from('a'.repeat(1000)), 'b/c.bin': Buffer.from([1, 2, 3]) };
    const wheel = openZip(zip(files));
    expect(wheel.names).toEqual(['a.txt', 'b/c.bin']);
    expect(wheel.read('a.txt')).toEqual(files['a.txt']);
    expect(wheel.read('b/c.bin')).toEqual(files['b/c.bin']);
    expect(() => wheel.read('missing')).toThrow('missing is not in the zip archive');
  });

  it('refuses an archive that names a place outside itself, and one that is none', () => {
    expect(() => openZip(zip({ '../escape': Buffer.from('x') }))).toThrow('names ../escape');
    expect(() => openZip(Buffer.alloc(100))).toThrow('not a zip archive');
  });

  it('keeps the transfer libraries with their needs and the licences, not the clouds and GPU parts', () => {
    const capi = '.nixl_cu12.mesonpy.libs/libnixl_capi.so';
    const ucx = 'nixl_cu12.libs/ucx';
    const files = {
      [capi]: elf(['libssl.so.3'], '$ORIGIN'),
      '.nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so': elf(
        ['libucp-1.so'],
        '$ORIGIN/../../nixl_cu12.libs',
      ),
      '.nixl_cu12.mesonpy.libs/plugins/libplugin_OBJ.so': elf(
        ['libaws-1.so'],
        '$ORIGIN/../../nixl_cu12.libs',
      ),
      'nixl_cu12.libs/libucp-1.so': elf([], ''),
      'nixl_cu12.libs/libaws-1.so': elf([], ''),
      [`${ucx}/libuct_cma.so.0.0.0`]: elf([], ''),
      [`${ucx}/libuct_ib.so.0.0.0`]: elf([], ''),
      [`${ucx}/libuct_ib_mlx5_gda.so.0.0.0`]: elf(['libcuda.so.1'], ''),
      [`${ucx}/libuct_cuda.so.0.0.0`]: elf(['libcuda.so.1'], ''),
      'nixl_ep_cu12/extension.so': elf([], ''),
      'nixl_cu12-1.5.1.dist-info/METADATA': Buffer.from('Version: 1.5.1'),
      'nixl_cu12-1.5.1.dist-info/licenses/LICENSE': Buffer.from('licence'),
    };
    expect(filesToKeep(openZip(zip(files))).sort()).toEqual([
      capi,
      '.nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so',
      'nixl_cu12-1.5.1.dist-info/METADATA',
      'nixl_cu12-1.5.1.dist-info/licenses/LICENSE',
      'nixl_cu12.libs/libucp-1.so',
      `${ucx}/libuct_cma.so.0.0.0`,
      `${ucx}/libuct_ib.so.0.0.0`,
    ]);
  });

  it('refuses a wheel of another hash and names both', () => {
    const wheel = Buffer.from('not the wheel');
    const actual = createHash('sha256').update(wheel).digest('hex');
    expect(() => {
      requireHash(wheel, 'f'.repeat(64));
    }).toThrow(new RegExp(`SHA-256 is ${actual}, expected f{64}`));
    expect(() => {
      requireHash(wheel, actual);
    }).not.toThrow();
  });
});

describe('finding the NIXL library', () => {
  const library = '.nixl_cu12.mesonpy.libs/libnixl_capi.so';

  it('takes the wheel folder, the library folder or the file from KVPEER_NIXL_DIR, with the version beside it', () => {
    const libraryPath = write(`wheel/${library}`);
    write('wheel/nixl_cu12-1.5.1.dist-info/METADATA');
    for (const named of [join(folder, 'wheel'), dirname(libraryPath), libraryPath]) {
      expect(resolveNixl({ KVPEER_NIXL_DIR: named }, folder)).toEqual({
        kind: 'found',
        libraryPath,
        version: '1.5.1',
      });
    }
  });

  it('says that the version is unknown when nothing tells it', () => {
    write(`wheel/${library}`);
    expect(resolveNixl({ KVPEER_NIXL_DIR: join(folder, 'wheel') }, folder)).toMatchObject({
      version: 'unknown',
    });
  });

  it('uses the cache below the package when the variable is not set or empty', () => {
    const libraryPath = join(nixlCacheFolder(folder), library);
    mkdirSync(dirname(libraryPath), { recursive: true });
    writeFileSync(libraryPath, '');
    expect(resolveNixl({}, folder)).toMatchObject({ kind: 'found', libraryPath });
    expect(resolveNixl({ KVPEER_NIXL_DIR: '' }, folder)).toMatchObject({ kind: 'found', libraryPath });
  });

  it('does not fall back to the cache when the variable is wrong', () => {
    mkdirSync(join(nixlCacheFolder(folder), dirname(library)), { recursive: true });
    writeFileSync(join(nixlCacheFolder(folder), library), '');
    const nowhere = join(folder, 'nowhere');
    expect(resolveNixl({ KVPEER_NIXL_DIR: nowhere }, folder)).toMatchObject({
      kind: 'missing',
      reason: `KVPEER_NIXL_DIR is ${nowhere}, but nothing is there.`,
    });
    write('empty/readme');
    expect(resolveNixl({ KVPEER_NIXL_DIR: join(folder, 'empty') }, folder)).toMatchObject({
      kind: 'missing',
      reason: expect.stringContaining('there is no libnixl_capi.so in it') as string,
    });
  });

  it('names the fetch when there is none at all', () => {
    expect(resolveNixl({}, folder)).toMatchObject({
      kind: 'missing',
      reason: expect.stringContaining('has not been fetched') as string,
      remedy: expect.stringContaining('scripts/nixl.mjs') as string,
    });
  });

  it('refuses a version that needs CUDA to load', () => {
    write(`wheel/${library}`);
    write('wheel/nixl_cu12-1.2.0.dist-info/METADATA');
    expect(resolveNixl({ KVPEER_NIXL_DIR: join(folder, 'wheel') }, folder)).toMatchObject({
      kind: 'missing',
      reason: expect.stringContaining('is version 1.2.0') as string,
    });
  });
});

describe('missing pieces', () => {
  it('are named together, with one command for all', () => {
    const missing = [
      { reason: 'the C++ compiler g++ was not found.', piece: 'compiler' },
      ...missingLibraries(['libssl.so.3: cannot open shared object file', 'libcrypto.so.3: cannot open']),
    ];
    const problem = missingProblem(missing, DEBIAN);
    expect(problem).toBeInstanceOf(Problem);
    expect(problem.reason).toContain('g++ was not found');
    expect(problem.reason).toContain('needs libssl.so.3');
    expect(problem.remedy).toBe('apt-get install -y g++ libssl3');
  });

  it('are named by the package of the distribution, or plainly on one that is not known', () => {
    const missing = [{ reason: 'no compiler', piece: 'compiler' }];
    expect(missingProblem(missing, 'ID="rocky"\nID_LIKE="rhel centos fedora"\n').remedy).toBe(
      'dnf install -y gcc-c++',
    );
    expect(missingProblem(missing, 'ID=ubuntu\nID_LIKE=debian\n').remedy).toBe('apt-get install -y g++');
    expect(missingProblem(missing, 'ID=arch\n').remedy).toBe(
      'install with your package manager: g++ 10 or newer.',
    );
    expect(missingProblem(missing, '').remedy).toContain('package manager');
  });

  it('of the native build are the compiler, make and Python', async () => {
    const nowhere = join(folder, 'nowhere');
    const missing = await missingForNative({ CXX: nowhere, MAKE: nowhere, PYTHON: nowhere });
    expect(missing.map(({ piece }) => piece)).toEqual(['compiler', 'make', 'python']);
  });

  it('include a compiler that is there and too old', async () => {
    writeProgram('old-g++', 'echo "unrecognized option -std=gnu++20" >&2; exit 1');
    const missing = await missingForNative({ CXX: join(folder, 'old-g++') });
    expect(missing).toMatchObject([
      { piece: 'compiler', reason: expect.stringContaining('C++20') as string },
    ]);
  });

  it('of the NIXL fetch are Python, or its pip', async () => {
    const withoutPython = await missingForNixl({ PYTHON: join(folder, 'nowhere') });
    expect(withoutPython.map(({ piece }) => piece)).toEqual(expect.arrayContaining(['python', 'pip']));
    writeProgram('python', 'echo "No module named pip" >&2; exit 1');
    const withoutPip = await missingForNixl({ PYTHON: join(folder, 'python') });
    expect(withoutPip.map(({ piece }) => piece)).toContain('pip');
    expect(withoutPip.map(({ piece }) => piece)).not.toContain('python');
  });

  it('of the loader are told in its own words', async () => {
    expect(await loadFailures(['libc.so.6'])).toEqual([]);
    expect(await loadFailures(['libc.so.6', 'libnot-there.so.9'])).toEqual([
      expect.stringContaining('libnot-there.so.9: cannot open shared object file') as string,
    ]);
  });

  it('cannot be mended where no build of NIXL fits', () => {
    expect(unsupportedReason('x64', '2.36')).toBeUndefined();
    expect(unsupportedReason('arm64', '2.28')).toBeUndefined();
    expect(unsupportedReason('riscv64', '2.36')).toContain('riscv64');
    expect(unsupportedReason('x64', undefined)).toContain('glibc');
    expect(unsupportedReason('x64', '2.17')).toContain('2.17');
  });
});

describe('up-to-date checks', () => {
  const lock = (packages: Record<string, object>): string => JSON.stringify({ packages });

  it('accept installed packages that are those of the lock file, optional ones aside', () => {
    const wanted = { 'node_modules/a': { version: '1.0.0', integrity: 'x' } };
    const foreign = { 'node_modules/b-arm64': { version: '1.0.0', optional: true } };
    write('package-lock.json', lock({ '': { version: '0.1.0' }, ...wanted, ...foreign }));
    expect(arePackagesInstalled(folder)).toBe(false);
    write('node_modules/.package-lock.json', lock(wanted));
    expect(arePackagesInstalled(folder)).toBe(true);
  });

  it('ask for an installation when one package is missing or of another version', () => {
    write('package-lock.json', lock({ 'node_modules/a': { version: '1.1.0' } }));
    write('node_modules/.package-lock.json', lock({ 'node_modules/a': { version: '1.0.0' } }));
    expect(arePackagesInstalled(folder)).toBe(false);
    write('node_modules/.package-lock.json', lock({}));
    expect(arePackagesInstalled(folder)).toBe(false);
  });
});

describe('the native build', () => {
  it('takes headers of the running ABI only', () => {
    write('fits/bin/node');
    write('fits/include/node/node.h');
    write('fits/include/node/node_version.h', '#define NODE_MODULE_VERSION 4711\n');
    write('other/include/node/node.h');
    write('other/include/node/node_version.h', '#define NODE_MODULE_VERSION 1\n');
    const environment = { npm_config_nodedir: join(folder, 'other') };
    expect(findHeaders(environment, join(folder, 'fits/bin/node'), '4711')).toBe(join(folder, 'fits'));
    expect(findHeaders(environment, join(folder, 'nowhere/bin/node'), '4712')).toBeUndefined();
  });

  it('prefers the node-gyp that npm names, then the one of the package', () => {
    const own = write('node_modules/node-gyp/bin/node-gyp.js');
    const named = write('npm/node-gyp.js');
    expect(findNodeGyp(folder, { npm_config_node_gyp: named })).toBe(named);
    expect(findNodeGyp(folder, { npm_config_node_gyp: join(folder, 'gone') })).toBe(own);
  });
});

describe('the set-up lock', () => {
  it('makes a second set-up wait for the first', async () => {
    const file = join(folder, 'set-up.lock');
    const order: string[] = [];
    const holder = write('set-up.lock', String(process.ppid));
    const second = withLock(file, () => {
      order.push('second');
      return Promise.resolve();
    });
    order.push('first');
    rmSync(holder);
    await second;
    expect(order).toEqual(['first', 'second']);
  });

  it('is taken over from a holder that died, and given back after a failure', async () => {
    const file = write('set-up.lock', '4194305');
    await expect(withLock(file, () => Promise.reject(new Error('no network')))).rejects.toThrow('no network');
    await expect(withLock(file, () => Promise.resolve('ran'))).resolves.toBe('ran');
  });
});

describe('going on after the set-up', () => {
  it('runs the program in the same process, with its arguments and its exit status', async () => {
    write('dist/program.mjs', 'console.log(JSON.stringify(process.argv.slice(1))); process.exit(3);');
    const module = new URL('../../scripts/lib/setup.mjs', import.meta.url).href;
    const script = `import(${JSON.stringify(module)}).then((setup) =>
      setup.continueIn(${JSON.stringify(folder)}, 'dist/program.mjs', ['replay', '--peers', '2']));`;
    const { status, output } = await run(process.execPath, ['-e', script]);
    expect(JSON.parse(output)).toEqual([join(folder, 'dist/program.mjs'), 'replay', '--peers', '2']);
    expect(status).toBe(3);
  });

  it('says when the program was not built', async () => {
    await expect(continueIn(folder, 'dist/program.mjs', [])).rejects.toThrow('was not built');
  });
});
