// The header of the control mapping: written once by whoever makes it, checked by whoever adopts it.

import { type Layout, PAGE_BYTES, computeLayout } from './layout.js';

/** "kvpeerCM", read as a little-endian u64. */
export const LAYOUT_MAGIC = 0x4d43_7265_6570_766bn;
/** Raised with every change of layout.ts or of the hash: the native code and an adopted mapping must agree with them. */
export const LAYOUT_VERSION = 2;

/** Header fields, u64 little endian at `field * 8`. The native code reads the same list (native/core/layout.h). */
export const HeaderField = {
  Magic: 0,
  Version: 1,
  ControlBytes: 2,
  PoolBytes: 3,
  NumBlocks: 4,
  BlockBytes: 5,
  KeyBytes: 6,
  ShardCount: 7,
  SlotsPerShard: 8,
  BucketsPerShard: 9,
  RecordBytes: 10,
  RingCapacity: 11,
  Seed: 12,
  Incarnation: 13,
  WordsOffset: 14,
  RingsOffset: 15,
  ScratchOffset: 16,
  CountersOffset: 17,
  ArenaOffset: 18,
  ArenaBytes: 19,
  IndexOffset: 20,
  RecordsOffset: 21,
  HistoryOffset: 22,
} as const;
const HEADER_FIELD_COUNT = 23;

/** What readLayout finds beside the sizes. */
export interface AdoptedLayout extends Layout {
  readonly seed: bigint;
  readonly incarnation: bigint;
}

/**
 * Writes the header of a new control mapping (zeroed memory: every slot FREE, every index entry empty). The magic is
 * stored last, so a mapping whose maker died half-way is not adopted.
 *
 * @param seed        random u64, secret: the hash of keys that come from the network starts from it
 * @param incarnation random u64, another one for each process that runs on this mapping
 */
export function writeHeader(
  control: SharedArrayBuffer,
  layout: Layout,
  identity: { readonly seed: bigint; readonly incarnation: bigint },
): void {
  if (control.byteLength < layout.controlBytes) {
    throw new RangeError(
      `the control mapping has ${control.byteLength} bytes, the layout needs ${layout.controlBytes}`,
    );
  }
  const fields = new BigUint64Array(control, 0, HEADER_FIELD_COUNT);
  const numbers = headerNumbers(layout);
  for (const name of numberFieldNames) fields[HeaderField[name]] = BigInt(numbers[name]);
  fields[HeaderField.Seed] = identity.seed;
  fields[HeaderField.Incarnation] = identity.incarnation;
  Atomics.store(fields, HeaderField.Magic, LAYOUT_MAGIC);
}

/** A mapping that is taken over after a restart gets a new incarnation. */
export function writeIncarnation(control: SharedArrayBuffer, incarnation: bigint): void {
  new BigUint64Array(control, 0, HEADER_FIELD_COUNT)[HeaderField.Incarnation] = incarnation;
}

/**
 * Reads and checks the header of a control mapping.
 *
 * @throws RangeError naming the field that is wrong, what it is and what it must be
 */
export function readLayout(control: SharedArrayBuffer): AdoptedLayout {
  if (control.byteLength < PAGE_BYTES) {
    throw new RangeError(
      `the control mapping has ${control.byteLength} bytes, less than its header (${PAGE_BYTES})`,
    );
  }
  const fields = new BigUint64Array(control, 0, HEADER_FIELD_COUNT);
  if (Atomics.load(fields, HeaderField.Magic) !== LAYOUT_MAGIC) {
    throw new RangeError('the control mapping has no kvpeer header (wrong magic)');
  }
  const version = Number(fields[HeaderField.Version]);
  if (version !== LAYOUT_VERSION) {
    throw new RangeError(
      `the control mapping has layout version ${version}, this program has ${LAYOUT_VERSION}; start with a new pool`,
    );
  }
  const found = (name: NumberField): number => Number(fields[HeaderField[name]]);
  const layout = computeLayout({
    numBlocks: found('NumBlocks'),
    blockBytes: found('BlockBytes'),
    keyBytes: found('KeyBytes'),
    shardCount: found('ShardCount'),
    ringCapacity: found('RingCapacity'),
    arenaBytes: found('ArenaBytes'),
  });
  const expected = headerNumbers(layout);
  for (const name of numberFieldNames) {
    if (found(name) !== expected[name]) {
      throw new RangeError(`the control mapping's ${name} is ${found(name)}, it must be ${expected[name]}`);
    }
  }
  if (control.byteLength < layout.controlBytes) {
    throw new RangeError(
      `the control mapping has ${control.byteLength} bytes, its header says ${layout.controlBytes}`,
    );
  }
  return { ...layout, seed: fields[HeaderField.Seed], incarnation: fields[HeaderField.Incarnation] };
}

type NumberField = Exclude<keyof typeof HeaderField, 'Magic' | 'Seed' | 'Incarnation'>;

function headerNumbers(layout: Layout): Record<NumberField, number> {
  return {
    Version: LAYOUT_VERSION,
    ControlBytes: layout.controlBytes,
    PoolBytes: layout.poolBytes,
    NumBlocks: layout.numBlocks,
    BlockBytes: layout.blockBytes,
    KeyBytes: layout.keyBytes,
    ShardCount: layout.shardCount,
    SlotsPerShard: layout.slotsPerShard,
    BucketsPerShard: layout.bucketsPerShard,
    RecordBytes: layout.recordBytes,
    RingCapacity: layout.ringCapacity,
    WordsOffset: layout.wordsOffset,
    RingsOffset: layout.ringsOffset,
    ScratchOffset: layout.scratchOffset,
    CountersOffset: layout.countersOffset,
    ArenaOffset: layout.arenaOffset,
    ArenaBytes: layout.arenaBytes,
    IndexOffset: layout.indexOffset,
    RecordsOffset: layout.recordsOffset,
    HistoryOffset: layout.historyOffset,
  };
}

const numberFieldNames = (Object.keys(HeaderField) as (keyof typeof HeaderField)[]).filter(
  (name): name is NumberField => name !== 'Magic' && name !== 'Seed' && name !== 'Incarnation',
);
