// The batches of the present numbering, from 0: what a replay is answered from, and when it has to begin again.

export interface NumberedBatch {
  readonly sequence: number;
  readonly payload: Buffer;
}

export interface NumberingLimits {
  readonly batches: number;
  readonly bytes: number;
}

/** Beyond what the resident blocks take themselves, a numbering may grow to this many times as much. */
const GROWTH = 2;

/**
 * A router that connects asks from 0, and discards everything for 30 s when the answer does not begin there. So nothing
 * is dropped from the front: at the bound the numbering begins again with what is resident, and the bound follows that
 * upwards, or it would begin again at once.
 */
export class Numbering {
  readonly #limits: NumberingLimits;
  #batches: NumberedBatch[] = [];
  /** Of the numbering before, until the present one has as many. */
  #former: readonly NumberedBatch[] = [];
  #bytes = 0;
  #floor: NumberingLimits = { batches: 0, bytes: 0 };
  #isRestating = true;

  constructor(limits: NumberingLimits) {
    this.#limits = limits;
  }

  get batchCount(): number {
    return this.#batches.length;
  }

  get bytes(): number {
    return this.#bytes;
  }

  append(payload: Buffer): NumberedBatch {
    const batch = { sequence: this.#batches.length, payload };
    this.#batches.push(batch);
    this.#bytes += payload.length;
    if (this.#batches.length >= this.#former.length) this.#former = [];
    return batch;
  }

  /** The resident blocks are all in it now. */
  onRestated(): void {
    if (!this.#isRestating) return;
    this.#isRestating = false;
    this.#floor = { batches: this.#batches.length, bytes: this.#bytes };
  }

  get isFull(): boolean {
    if (this.#isRestating) return false;
    const { batches, bytes } = this.#limits;
    return (
      this.#batches.length >= Math.max(batches, GROWTH * this.#floor.batches) ||
      this.#bytes >= Math.max(bytes, GROWTH * this.#floor.bytes)
    );
  }

  restart(): void {
    this.#former = this.#batches;
    this.#batches = [];
    this.#bytes = 0;
    this.#isRestating = true;
  }

  /**
   * What a replay from `sequence` sends: a list that does not change when the numbering begins again. Who asks from
   * beyond the present numbering has met a gap in the one before, and gets to its end what it can: it sees the step back
   * then. An answer of nothing would be a failed replay, after which a router discards everything for 30 s.
   */
  from(sequence: number): readonly NumberedBatch[] {
    return (sequence < this.#batches.length ? this.#batches : this.#former).slice(sequence);
  }
}
