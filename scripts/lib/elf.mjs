// Reads from a shared library which others it needs and where its loader looks for them (ELF, 64 bit, little endian).
// @ts-check
import { posix } from 'node:path';

const PT_LOAD = 1;
const PT_DYNAMIC = 2;
const DT_NULL = 0;
const DT_NEEDED = 1;
const DT_STRTAB = 5;
const DT_RPATH = 15;
const DT_RUNPATH = 29;

/**
 * @typedef {{ needed: string[], runPath: string[] }} Dependencies
 *   `needed`: file names; `runPath`: folders, `$ORIGIN` not replaced
 */

/**
 * The dependencies that a shared library states.
 *
 * @param {Buffer} file the whole file
 * @returns {Dependencies}
 * @throws {RangeError} when a table lies outside the file
 * @throws {Error} when it is not a 64-bit little-endian ELF file
 */
export function readDependencies(file) {
  if (file.toString('latin1', 0, 4) !== '\x7fELF' || file[4] !== 2 || file[5] !== 1) {
    throw new Error('not a 64-bit little-endian ELF file');
  }
  const segments = readSegments(file);
  const dynamic = segments.find(({ type }) => type === PT_DYNAMIC);
  if (dynamic === undefined) return { needed: [], runPath: [] };

  /** @type {Array<{ tag: number, value: number }>} */
  const entries = [];
  for (let at = dynamic.offset; at + 16 <= dynamic.offset + dynamic.size; at += 16) {
    const tag = Number(file.readBigInt64LE(at));
    if (tag === DT_NULL) break;
    entries.push({ tag, value: Number(file.readBigUInt64LE(at + 8)) });
  }
  const table = entries.find(({ tag }) => tag === DT_STRTAB);
  if (table === undefined) return { needed: [], runPath: [] };
  const strings = offsetOf(table.value, segments);
  /** @param {number} tag */
  const textsOf = (tag) =>
    entries.filter((entry) => entry.tag === tag).map(({ value }) => textAt(file, strings + value));
  // A RUNPATH makes the loader ignore an RPATH in the same file.
  const runPaths = textsOf(DT_RUNPATH);
  const paths = runPaths.length > 0 ? runPaths : textsOf(DT_RPATH);
  return {
    needed: textsOf(DT_NEEDED),
    runPath: paths.flatMap((path) => path.split(':').filter((part) => part !== '')),
  };
}

/**
 * @typedef {{ type: number, offset: number, address: number, size: number }} Segment
 */

/**
 * @param {Buffer} file
 * @returns {Segment[]}
 */
function readSegments(file) {
  const table = Number(file.readBigUInt64LE(32));
  const entrySize = file.readUInt16LE(54);
  return Array.from({ length: file.readUInt16LE(56) }, (_, index) => {
    const at = table + index * entrySize;
    return {
      type: file.readUInt32LE(at),
      offset: Number(file.readBigUInt64LE(at + 8)),
      address: Number(file.readBigUInt64LE(at + 16)),
      size: Number(file.readBigUInt64LE(at + 32)),
    };
  });
}

/**
 * Where in the file the byte lies that is loaded to `address`: the dynamic section speaks in addresses.
 *
 * @param {number} address
 * @param {Segment[]} segments
 */
function offsetOf(address, segments) {
  const segment = segments.find(
    ({ type, address: start, size }) => type === PT_LOAD && address >= start && address < start + size,
  );
  if (segment === undefined) throw new RangeError(`address ${address} is in no loaded segment`);
  return address - segment.address + segment.offset;
}

/**
 * @param {Buffer} file
 * @param {number} offset
 */
function textAt(file, offset) {
  const end = file.indexOf(0, offset);
  if (offset >= file.length || end < 0) throw new RangeError(`a name at ${offset} is outside the file`);
  return file.toString('latin1', offset, end);
}

/**
 * Everything that `roots` need, directly or not, out of one tree of files, by the loader's rule: the folders a library
 * names itself, then those named by the libraries that led to it.
 *
 * @param {string[]} roots paths inside the tree
 * @param {{ has: (path: string) => boolean, read: (path: string) => Buffer }} tree
 * @returns {{ inside: string[], outside: string[] }} paths inside the tree (roots included), and the names that must come
 *   from the system; both sorted
 */
export function closureOf(roots, tree) {
  /** @type {Set<string>} */
  const inside = new Set();
  /** @type {Set<string>} */
  const outside = new Set();
  /**
   * @param {string} path
   * @param {string[]} inherited
   */
  const visit = (path, inherited) => {
    if (inside.has(path)) return;
    inside.add(path);
    const { needed, runPath } = readDependencies(tree.read(path));
    const own = runPath.map((folder) => posix.normalize(folder.replace('$ORIGIN', posix.dirname(path))));
    const folders = [...own, ...inherited];
    for (const name of needed) {
      const found = folders
        .map((folder) => posix.join(folder, name))
        .find((candidate) => tree.has(candidate));
      if (found === undefined) outside.add(name);
      else visit(found, folders);
    }
  };
  for (const root of roots) visit(root, []);
  return { inside: [...inside].sort(), outside: [...outside].sort() };
}
