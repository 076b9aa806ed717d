// Publishes what this node holds: turns residency into batches, numbers them, and begins the numbering again when due.

import { BlockCatalog, type DescribedBlock } from './catalog.js';
import { type NumberedBatch, Numbering } from './numbering.js';
import { type EventForm, type KvEvent, writeBatch } from './payload.js';
import type { ResidencyFeed } from './residency.js';

export interface KvEventsOptions {
  readonly form: EventForm;
  readonly rank: number;
  readonly announcesUnknown: boolean;
  readonly tokensPerBlock: number;
  /** Bounds of the replay buffer. */
  readonly maxBatches: number;
  readonly maxBytes: number;
  readonly maxAbsent: number;
}

export interface KvEventsParts {
  readonly feed: Pick<ResidencyFeed, 'hasChanged' | 'take'>;
  readonly publish: (batch: NumberedBatch) => void;
  /** Seconds since 1970. */
  readonly timeS: () => number;
  /** Runs the callback in a later turn of the event loop. */
  readonly defer: (callback: () => void) => void;
}

/** Work of one turn: slots looked at, blocks announced. */
const SLOTS_PER_TURN = 2048;
const BLOCKS_PER_TURN = 2048;
/** A batch is closed when it holds this many blocks, or this many tokens. */
const BATCH_BLOCKS = 512;
const BATCH_TOKENS = 16_384;
/** The group index at the end of a key is no part of the hash. */
const GROUP_BYTES = 4;

export interface KvEventCounts {
  readonly stored: number;
  readonly removed: number;
  readonly cleared: number;
  readonly batches: number;
  readonly restarts: number;
  /** Blocks of other cache groups than the first: their hash is that of the first group's block. */
  readonly otherGroups: number;
}

export class KvEvents {
  readonly #options: KvEventsOptions;
  readonly #parts: KvEventsParts;
  readonly #catalog: BlockCatalog;
  readonly #numbering: Numbering;
  /** Hash of the block seen in a slot. */
  readonly #hashOf = new Map<number, Buffer>();
  readonly #counts = { stored: 0, removed: 0, cleared: 0, batches: 0, restarts: 0, otherGroups: 0 };
  #isScheduled = false;
  #isClosed = false;

  constructor(options: KvEventsOptions, parts: KvEventsParts) {
    this.#options = options;
    this.#parts = parts;
    this.#catalog = new BlockCatalog(options);
    this.#numbering = new Numbering({ batches: options.maxBatches, bytes: options.maxBytes });
    // A router that knew an earlier life of this node forgets it.
    this.#emit([{ kind: 'cleared' }]);
    this.#schedule();
  }

  get counts(): KvEventCounts {
    return this.#counts;
  }

  get blocks(): ReturnType<BlockCatalog['counts']> {
    return this.#catalog.counts();
  }

  get buffered(): { readonly batches: number; readonly bytes: number } {
    return { batches: this.#numbering.batchCount, bytes: this.#numbering.bytes };
  }

  /** Workers have completed something: one load per shard when no block came or went. */
  readonly onProgress = (): void => {
    if (!this.#isScheduled && this.#parts.feed.hasChanged()) this.#schedule();
  };

  /** What the block of this key holds. The key's bytes are copied. */
  describe(key: Uint8Array, block: DescribedBlock): void {
    const hash = this.#hash(Buffer.from(key));
    if (hash === undefined) return;
    this.#catalog.describe(hash, block);
    if (this.#catalog.hasNews) this.#schedule();
  }

  /** Batches from a number on, in their order. */
  replay(from: number): readonly NumberedBatch[] {
    return this.#numbering.from(from);
  }

  /**
   * Begins the numbering again: 0 is AllBlocksCleared, then what is resident. An empty batch ends the old one, so that a
   * router which has had nothing but a replay so far sees the step back too.
   */
  restart(): void {
    if (this.#isClosed) return;
    this.#emit([]);
    this.#startAnew();
  }

  /** The blocks go with the node. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#emit([{ kind: 'cleared' }]);
  }

  #startAnew(): void {
    this.#counts.restarts += 1;
    this.#numbering.restart();
    this.#emit([{ kind: 'cleared' }]);
    this.#catalog.announceAll();
    this.#schedule();
  }

  #schedule(): void {
    if (this.#isScheduled || this.#isClosed) return;
    this.#isScheduled = true;
    this.#parts.defer(() => {
      this.#isScheduled = false;
      if (!this.#isClosed) this.#turn();
    });
  }

  #turn(): void {
    const isAllSeen = this.#parts.feed.take(SLOTS_PER_TURN, this.#residency);
    for (const events of batchesOf(this.#catalog.takeEvents(BLOCKS_PER_TURN))) this.#emit(events);
    if (isAllSeen && !this.#catalog.hasNews) this.#numbering.onRestated();
    else this.#schedule();
    // The last batch of a numbering and the first of the next leave together: whoever gets one gets the other.
    if (this.#numbering.isFull) this.#startAnew();
  }

  readonly #residency = {
    onArrived: (slot: number, key: Buffer): void => {
      const hash = this.#hash(key);
      if (hash === undefined) return;
      this.#hashOf.set(slot, hash);
      this.#catalog.arrived(hash);
    },
    onLeft: (slot: number): void => {
      const hash = this.#hashOf.get(slot);
      if (hash === undefined) return;
      this.#hashOf.delete(slot);
      this.#catalog.left(hash);
    },
  };

  /** The key without its group; undefined for a block of another group than the first. */
  #hash(key: Buffer): Buffer | undefined {
    const at = key.length - GROUP_BYTES;
    if (key.readUInt32BE(at) === 0) return key.subarray(0, at);
    this.#counts.otherGroups += 1;
    return undefined;
  }

  #emit(events: readonly KvEvent[]): void {
    const { form, rank } = this.#options;
    for (const event of events) {
      if (event.kind === 'cleared') this.#counts.cleared += 1;
      else this.#counts[event.kind] += event.hashes.length;
    }
    this.#counts.batches += 1;
    const payload = writeBatch(events, { timeS: this.#parts.timeS(), rank, form });
    this.#parts.publish(this.#numbering.append(payload));
  }
}

/** Lists of events of about BATCH_BLOCKS blocks and BATCH_TOKENS tokens. */
function batchesOf(events: readonly KvEvent[]): KvEvent[][] {
  const batches: KvEvent[][] = [];
  let batch: KvEvent[] = [];
  let blockCount = 0;
  let tokenCount = 0;
  for (const event of events) {
    batch.push(event);
    blockCount += event.kind === 'cleared' ? 0 : event.hashes.length;
    tokenCount += event.kind === 'stored' ? event.tokenIds.length * event.tokensPerBlock : 0;
    if (blockCount < BATCH_BLOCKS && tokenCount < BATCH_TOKENS) continue;
    batches.push(batch);
    batch = [];
    blockCount = 0;
    tokenCount = 0;
  }
  if (batch.length > 0) batches.push(batch);
  return batches;
}
