// Which blocks are here: the workers' marks compared with what was seen last, as arrivals and departures.

import { RECORD_KEY, RECORD_KEY_LENGTH, recordOffset } from '../../shared/layout.js';
import { ResidencyMarks } from '../../shared/residency-marks.js';
import { Phase, type SlotTable, generationOf, phaseOf } from '../../shared/slot-state.js';

export interface ResidencyEvents {
  /** A block is READY. @param key of its own memory */
  onArrived(slot: number, key: Buffer): void;
  /** The block that arrived in this slot is not there any more. */
  onLeft(slot: number): void;
}

const NOTHING = -1;

export class ResidencyFeed {
  readonly #table: SlotTable;
  readonly #marks: ResidencyMarks;
  /** Generation of the block that was seen READY in a slot, or NOTHING. */
  readonly #seen: Int32Array;

  constructor(table: SlotTable, marks: SharedArrayBuffer) {
    this.#table = table;
    this.#marks = new ResidencyMarks(marks, table.layout);
    this.#seen = new Int32Array(table.layout.numBlocks).fill(NOTHING);
  }

  hasChanged(): boolean {
    return this.#marks.hasChanged();
  }

  /**
   * Looks at about `maxCount` marked slots. Departures are told before the arrivals of the same call: a block that
   * moved from one slot to another leaves first.
   *
   * @returns whether nothing is left to look at
   */
  take(maxCount: number, events: ResidencyEvents): boolean {
    const arrivals: { slot: number; key: Buffer }[] = [];
    const isAll = this.#marks.take(maxCount, (slot) => {
      const found = this.#read(slot);
      const generation = found?.generation ?? NOTHING;
      const before = this.#seen[slot];
      if (generation === before) return;
      this.#seen[slot] = generation;
      if (before !== NOTHING) events.onLeft(slot);
      if (found !== undefined) arrivals.push({ slot, key: found.key });
    });
    for (const { slot, key } of arrivals) events.onArrived(slot, key);
    return isAll;
  }

  /**
   * The block of a READY slot. Nothing pins it: its key is copied, and stands only if phase and generation are the same
   * afterwards. A slot that changes meanwhile is marked again by whoever changes it.
   */
  #read(slot: number): { readonly generation: number; readonly key: Buffer } | undefined {
    const { layout, bytes } = this.#table;
    const before = this.#table.state(slot);
    if (phaseOf(before) !== Phase.Ready) return undefined;
    const record = recordOffset(layout, slot);
    const length = bytes[record + RECORD_KEY_LENGTH];
    const key = Buffer.from(bytes.subarray(record + RECORD_KEY, record + RECORD_KEY + length));
    const after = this.#table.state(slot);
    const generation = generationOf(before);
    if (phaseOf(after) !== Phase.Ready || generationOf(after) !== generation) return undefined;
    return { generation, key };
  }
}
