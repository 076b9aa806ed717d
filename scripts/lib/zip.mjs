// Reads single files out of a wheel (a zip archive), so that nothing of it needs to be unpacked that is not wanted.
// @ts-check
import { inflateRawSync } from 'node:zlib';

const END_OF_DIRECTORY = 0x06054b50;
const DIRECTORY_ENTRY = 0x02014b50;
const LOCAL_HEADER = 0x04034b50;
const END_BYTES = 22;
const LONGEST_COMMENT = 0xffff;
/** Offset of the directory in an archive that needs the 64-bit form, which no wheel of ours does. */
const NEEDS_ZIP64 = 0xffffffff;
const STORED = 0;
const DEFLATED = 8;

/**
 * Opens an archive that is in memory.
 *
 * @param {Buffer} archive
 * @returns {{ names: string[], has: (name: string) => boolean, read: (name: string) => Buffer }} names of files, folders
 *   left out; `read` throws for a name that is not there
 * @throws {Error} when it is not a zip archive, is damaged, or names a place outside itself
 */
export function openZip(archive) {
  const { count, offset } = readEnd(archive);
  /** @type {Map<string, { method: number, bytes: number, unpackedBytes: number, header: number }>} */
  const files = new Map();
  let at = offset;
  for (let index = 0; index < count; index += 1) {
    if (archive.readUInt32LE(at) !== DIRECTORY_ENTRY)
      throw new Error('the directory of the zip archive is damaged');
    const nameBytes = archive.readUInt16LE(at + 28);
    const name = archive.toString('utf8', at + 46, at + 46 + nameBytes);
    if (name.startsWith('/') || name.split('/').includes('..'))
      throw new Error(`the zip archive names ${name}`);
    if (!name.endsWith('/')) {
      files.set(name, {
        method: archive.readUInt16LE(at + 10),
        bytes: archive.readUInt32LE(at + 20),
        unpackedBytes: archive.readUInt32LE(at + 24),
        header: archive.readUInt32LE(at + 42),
      });
    }
    at += 46 + nameBytes + archive.readUInt16LE(at + 30) + archive.readUInt16LE(at + 32);
  }
  return {
    names: [...files.keys()],
    has: (name) => files.has(name),
    read: (name) => {
      const file = files.get(name);
      if (file === undefined) throw new Error(`${name} is not in the zip archive`);
      if (archive.readUInt32LE(file.header) !== LOCAL_HEADER)
        throw new Error(`${name} in the zip archive is damaged`);
      const start =
        file.header + 30 + archive.readUInt16LE(file.header + 26) + archive.readUInt16LE(file.header + 28);
      const packed = archive.subarray(start, start + file.bytes);
      const content = unpack(packed, file.method, name);
      if (content.length !== file.unpackedBytes) throw new Error(`${name} in the zip archive is damaged`);
      return content;
    },
  };
}

/**
 * The end record, which is searched from the back because a comment may follow it.
 *
 * @param {Buffer} archive
 */
function readEnd(archive) {
  const first = Math.max(0, archive.length - END_BYTES - LONGEST_COMMENT);
  for (let at = archive.length - END_BYTES; at >= first; at -= 1) {
    if (archive.readUInt32LE(at) !== END_OF_DIRECTORY) continue;
    const offset = archive.readUInt32LE(at + 16);
    if (offset === NEEDS_ZIP64) throw new Error('zip archives of more than 4 GiB are not supported');
    return { count: archive.readUInt16LE(at + 10), offset };
  }
  throw new Error('not a zip archive');
}

/**
 * @param {Buffer} packed
 * @param {number} method
 * @param {string} name
 */
function unpack(packed, method, name) {
  if (method === STORED) return packed;
  if (method === DEFLATED) return inflateRawSync(packed);
  throw new Error(`${name} in the zip archive is packed by method ${method}, which is not supported`);
}
