// What is known of blocks (tokens, parent) and what the router was told of them; makes events, parents before children.

import type { ExtraKey, KvEvent, StoredEvent } from './payload.js';

/** What a block holds, so that a router can compute its own keys. */
export interface DescribedBlock {
  readonly tokenIds: Uint32Array;
  /** Hash of the block before it; undefined for the first of a prompt. */
  readonly parent: Buffer | undefined;
  readonly loraName: string | undefined;
  readonly extraKeys: readonly ExtraKey[] | undefined;
}

interface Entry {
  readonly name: string;
  readonly hash: Buffer;
  block: DescribedBlock | undefined;
  /** Slots that hold it: one, or for a moment two while it moves. */
  residencies: number;
  /** A store is out and no removal. */
  isAnnounced: boolean;
  /** The name of the ancestor whose description is missing. */
  waitsFor: string | undefined;
}

export interface CatalogOptions {
  /** Announce blocks whose tokens nobody told: routers that know the hash from an engine add the tier to it. */
  readonly announcesUnknown: boolean;
  /** Block size of events without tokens. */
  readonly tokensPerBlock: number;
  /** Descriptions kept of blocks that are not here. */
  readonly maxAbsent: number;
}

/** Blocks of one stored or removed event, at most, and their tokens: what waits for a slow subscriber stays small. */
const MAX_EVENT_BLOCKS = 256;
const MAX_EVENT_TOKENS = 16_384;

/**
 * llm-d's router counts stores by hash, drops a block whose parent it does not know, and forgets a hash with its last
 * holder. So each residency is announced once and removed once, and a block whose ancestors are not announced now is
 * announced with them: they are stored before it and removed after it, in one batch.
 */
export class BlockCatalog {
  readonly #options: CatalogOptions;
  readonly #entries = new Map<string, Entry>();
  /** Described blocks that are not here, longest first. */
  readonly #absent = new Map<string, Entry>();
  readonly #waiting = new Map<string, Set<Entry>>();
  readonly #toAnnounce = new Set<Entry>();
  #removed: Buffer[] = [];
  #announcedCount = 0;
  #waitingCount = 0;
  #residentCount = 0;

  constructor(options: CatalogOptions) {
    this.#options = options;
  }

  /** Something waits for takeEvents(). */
  get hasNews(): boolean {
    return this.#removed.length > 0 || this.#toAnnounce.size > 0;
  }

  counts(): {
    readonly announced: number;
    readonly resident: number;
    readonly waiting: number;
    readonly absent: number;
  } {
    return {
      announced: this.#announcedCount,
      resident: this.#residentCount,
      waiting: this.#waitingCount,
      absent: this.#absent.size,
    };
  }

  /** The first description of a hash stands: it names its content. */
  describe(hash: Buffer, block: DescribedBlock): void {
    const name = nameOf(hash);
    const entry = this.#entries.get(name) ?? this.#make(name, hash);
    if (entry.block === undefined) {
      entry.block = block;
      if (entry.residencies > 0) {
        // Announced without tokens before: the router has to take it anew.
        if (entry.isAnnounced) this.#withdraw(entry);
        this.#toAnnounce.add(entry);
      }
      for (const waiting of this.#waiting.get(name) ?? []) {
        waiting.waitsFor = undefined;
        this.#waitingCount -= 1;
        this.#toAnnounce.add(waiting);
      }
      this.#waiting.delete(name);
    }
    if (entry.residencies === 0) this.#keepAbsent(entry);
  }

  arrived(hash: Buffer): void {
    const name = nameOf(hash);
    const entry = this.#entries.get(name) ?? this.#make(name, hash);
    this.#absent.delete(name);
    entry.residencies += 1;
    if (entry.residencies > 1) return;
    this.#residentCount += 1;
    this.#toAnnounce.add(entry);
  }

  left(hash: Buffer): void {
    const entry = this.#entries.get(nameOf(hash));
    if (entry === undefined || entry.residencies === 0) return;
    entry.residencies -= 1;
    if (entry.residencies > 0) return;
    this.#residentCount -= 1;
    if (entry.isAnnounced) this.#withdraw(entry);
    this.#toAnnounce.delete(entry);
    this.#stopWaiting(entry);
    if (entry.block === undefined) this.#entries.delete(entry.name);
    else this.#keepAbsent(entry);
  }

  /** The router has forgotten everything: what is here is news again. */
  announceAll(): void {
    this.#removed = [];
    this.#announcedCount = 0;
    for (const entry of this.#entries.values()) {
      entry.isAnnounced = false;
      if (entry.residencies > 0 && entry.waitsFor === undefined) this.#toAnnounce.add(entry);
    }
  }

  /**
   * Events for what has come and gone since, removals first.
   *
   * @param maxBlocks blocks to announce now, beside their ancestors; the rest is for the next call
   */
  takeEvents(maxBlocks: number): KvEvent[] {
    const events = removedEvents(this.#removed);
    this.#removed = [];
    const stored: Entry[] = [];
    const bridges: Entry[] = [];
    const unknown: Entry[] = [];
    let count = 0;
    for (const entry of this.#toAnnounce) {
      if (count >= maxBlocks) break;
      count += 1;
      this.#toAnnounce.delete(entry);
      if (entry.isAnnounced) continue;
      if (entry.block === undefined) {
        if (this.#options.announcesUnknown) unknown.push(entry);
        continue;
      }
      this.#announceChain(entry, stored, bridges);
    }
    for (const entry of unknown) this.#markAnnounced(entry);
    events.push(...runsOf(stored), ...unknownEvents(unknown, this.#options.tokensPerBlock));
    for (const entry of bridges) this.#unmarkAnnounced(entry);
    events.push(...removedEvents(bridges.map((entry) => entry.hash)));
    return events;
  }

  /** The block, behind those of its ancestors that are not announced. */
  #announceChain(entry: Entry, stored: Entry[], bridges: Entry[]): void {
    const chain: Entry[] = [];
    for (let at = entry; ;) {
      chain.push(at);
      const parent = at.block?.parent;
      if (parent === undefined) break;
      const name = nameOf(parent);
      const next = this.#entries.get(name);
      if (next?.block === undefined) {
        this.#wait(entry, name);
        return;
      }
      // Descriptions that lead back to themselves are no chain: such a block is never announced.
      if (chain.length > this.#entries.size) {
        this.#wait(entry, name);
        return;
      }
      // Announced without tokens it has no keys at the router; describe() has withdrawn such a one.
      if (next.isAnnounced) break;
      at = next;
    }
    for (const one of chain.reverse()) {
      this.#markAnnounced(one);
      stored.push(one);
      if (one.residencies === 0) bridges.push(one);
    }
  }

  #markAnnounced(entry: Entry): void {
    entry.isAnnounced = true;
    this.#announcedCount += 1;
    this.#stopWaiting(entry);
  }

  #unmarkAnnounced(entry: Entry): void {
    entry.isAnnounced = false;
    this.#announcedCount -= 1;
  }

  #withdraw(entry: Entry): void {
    this.#unmarkAnnounced(entry);
    this.#removed.push(entry.hash);
  }

  #wait(entry: Entry, name: string): void {
    entry.waitsFor = name;
    this.#waitingCount += 1;
    const others = this.#waiting.get(name);
    if (others === undefined) this.#waiting.set(name, new Set([entry]));
    else others.add(entry);
  }

  #stopWaiting(entry: Entry): void {
    if (entry.waitsFor === undefined) return;
    const others = this.#waiting.get(entry.waitsFor);
    others?.delete(entry);
    if (others?.size === 0) this.#waiting.delete(entry.waitsFor);
    entry.waitsFor = undefined;
    this.#waitingCount -= 1;
  }

  #make(name: string, hash: Buffer): Entry {
    const entry: Entry = {
      name,
      hash,
      block: undefined,
      residencies: 0,
      isAnnounced: false,
      waitsFor: undefined,
    };
    this.#entries.set(name, entry);
    return entry;
  }

  #keepAbsent(entry: Entry): void {
    this.#absent.delete(entry.name);
    this.#absent.set(entry.name, entry);
    if (this.#absent.size <= this.#options.maxAbsent) return;
    for (const [name, oldest] of this.#absent) {
      this.#absent.delete(name);
      this.#entries.delete(oldest.name);
      break;
    }
  }
}

function nameOf(hash: Buffer): string {
  return hash.toString('latin1');
}

function removedEvents(hashes: readonly Buffer[]): KvEvent[] {
  const events: KvEvent[] = [];
  for (let first = 0; first < hashes.length; first += MAX_EVENT_BLOCKS) {
    events.push({ kind: 'removed', hashes: hashes.slice(first, first + MAX_EVENT_BLOCKS) });
  }
  return events;
}

function unknownEvents(entries: readonly Entry[], tokensPerBlock: number): KvEvent[] {
  const events: KvEvent[] = [];
  for (let first = 0; first < entries.length; first += MAX_EVENT_BLOCKS) {
    events.push({
      kind: 'stored',
      hashes: entries.slice(first, first + MAX_EVENT_BLOCKS).map((entry) => entry.hash),
      parent: undefined,
      tokenIds: [],
      tokensPerBlock,
      loraName: undefined,
      extraKeys: undefined,
    });
  }
  return events;
}

/** One event per run of blocks that follow each other: a router with larger blocks than ours needs them together. */
function runsOf(entries: readonly Entry[]): StoredEvent[] {
  const events: StoredEvent[] = [];
  let run: { readonly entry: Entry; readonly block: DescribedBlock }[] = [];
  const close = (): void => {
    const first = run.at(0);
    if (first === undefined) return;
    const extraKeys = run.map(({ block }) => block.extraKeys);
    events.push({
      kind: 'stored',
      hashes: run.map(({ entry }) => entry.hash),
      parent: first.block.parent,
      tokenIds: run.map(({ block }) => block.tokenIds),
      tokensPerBlock: first.block.tokenIds.length,
      loraName: first.block.loraName,
      extraKeys: extraKeys.some((keys) => keys !== undefined) ? extraKeys : undefined,
    });
    run = [];
  };
  for (const entry of entries) {
    const { block } = entry;
    if (block === undefined) continue;
    const last = run.at(-1);
    const isNext =
      last !== undefined &&
      run.length < MAX_EVENT_BLOCKS &&
      (run.length + 1) * block.tokenIds.length <= MAX_EVENT_TOKENS &&
      block.parent !== undefined &&
      block.parent.equals(last.entry.hash) &&
      block.loraName === last.block.loraName &&
      block.tokenIds.length === last.block.tokenIds.length;
    if (!isNext) close();
    run.push({ entry, block });
  }
  close();
  return events;
}
