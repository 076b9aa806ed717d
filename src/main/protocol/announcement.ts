// The `kvpeer` map inside `connect`: what a kvpeer tells another beyond the plain protocol.

import { FEATURES, type Feature, type Incarnation, type KvpeerAnnouncement } from './messages.js';
import { ScanFault, type Reader } from './reader.js';

const LONGEST_ID_BYTES = 64;
const MAX_PID = 2 ** 31 - 1;

/** Values of a map that this version knows, by key. */
type Entry = string | number | boolean;

/**
 * Reads the map under the cursor.
 *
 * @returns undefined when it is malformed or incomplete: its sender is then treated as a plain peer, which is always
 *          safe. Keys that this version does not know, and features that are not `true`, are stepped over.
 */
export function announcement(reader: Reader): KvpeerAnnouncement | undefined {
  try {
    return read(reader);
  } catch (fault) {
    if (fault instanceof ScanFault) return undefined;
    throw fault;
  }
}

function read(reader: Reader): KvpeerAnnouncement | undefined {
  let incarnation: Incarnation | undefined;
  const entries = readEntries(reader, (name) => {
    if (name !== 'incarnation') return false;
    incarnation = readIncarnation(reader);
    return true;
  });
  const version = entries?.get('version');
  const keyBytes = entries?.get('key_bytes');
  if (entries === undefined || incarnation === undefined || !isCount(version, 1)) return undefined;
  return {
    version,
    incarnation,
    keyBytes: isCount(keyBytes, 1) ? keyBytes : undefined,
    features: FEATURES.filter((feature: Feature) => entries.get(feature) === true),
  };
}

function readIncarnation(reader: Reader): Incarnation | undefined {
  const entries = readEntries(reader, () => false);
  const id = entries?.get('id');
  const pid = entries?.get('pid');
  const startTime = entries?.get('start_time');
  const bootId = entries?.get('boot_id');
  if (!isShortText(id) || !isCount(pid, 1) || !isCount(startTime, 0) || !isShortText(bootId))
    return undefined;
  return pid > MAX_PID ? undefined : { id, pid, startTime, bootId };
}

/** Scalars of the map under the cursor; `nested` may read a value itself and then returns true. */
function readEntries(reader: Reader, nested: (name: string) => boolean): Map<string, Entry> | undefined {
  const count = reader.enterMap();
  if (count === undefined) {
    reader.skip();
    return undefined;
  }
  const entries = new Map<string, Entry>();
  for (let i = 0; i < count; i++) {
    const name = reader.readText('a key of kvpeer', 1);
    reader.step();
    if (nested(name)) continue;
    const value = readScalar(reader);
    if (value === undefined) entries.delete(name);
    else entries.set(name, value);
  }
  return entries;
}

function readScalar(reader: Reader): Entry | undefined {
  const head = reader.peek();
  if (head === 0xc2 || head === 0xc3) return reader.readBoolean('kvpeer');
  const start = reader.position;
  const integer = reader.tryInteger();
  if (integer !== undefined) return integer;
  if (reader.enterText() !== undefined) {
    reader.position = start;
    return reader.readText('a value of kvpeer', 0);
  }
  reader.skip();
  return undefined;
}

function isCount(value: Entry | undefined, least: number): value is number {
  return typeof value === 'number' && value >= least && value <= Number.MAX_SAFE_INTEGER;
}

function isShortText(value: Entry | undefined): value is string {
  return typeof value === 'string' && value.length > 0 && Buffer.byteLength(value) <= LONGEST_ID_BYTES;
}
