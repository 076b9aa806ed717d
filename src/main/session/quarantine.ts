// Slots that a remote write may still reach: kept out of use until nobody can write to them any more.

import type { ShardClient, SlotSet } from '../shards/shard-client.js';
import type { Quarantine, RoleLog, WriterIdentity } from './roles.js';

interface Entry {
  readonly set: SlotSet;
  readonly slotCount: number;
  readonly writer: WriterIdentity;
  readonly kvRequestId: string;
  readonly round: number;
  readonly sinceMs: number;
  /** The slots are QUARANTINED; before that the abandon is under way. */
  isIn: boolean;
  /** An ending event came while the abandon was under way. */
  isReleased: boolean;
}

export interface QuarantineOptions {
  readonly shards: Pick<ShardClient, 'abandon' | 'unquarantine'>;
  readonly log: RoleLog;
  now(): number;
  wakeAt(timeMs: number): void;
  /** Whether the process still runs (same host and pid namespace). */
  isAlive(process: { readonly pid: number; readonly startTime: number }): boolean;
  /** The published metadata offers a lane (CMA) by which a stopped process of this host writes without our receive agent. */
  readonly hasSameHostLane: boolean;
}

/** How often the processes named by quarantined slots are looked at. */
const PROCESS_CHECK_MS = 500;

/**
 * A slot leaves the quarantine with the first of (design: rules that keep data safe, 2): the end of its round, a new
 * session of the same kvpeer incarnation, another incarnation (or agent) at the address, the exit of the process on
 * this host, the recycling of the receive agent.
 */
export class SlotQuarantine implements Quarantine {
  readonly #options: QuarantineOptions;
  readonly #entries = new Set<Entry>();
  #nextCheckMs = 0;

  constructor(options: QuarantineOptions) {
    this.#options = options;
  }

  get slotCount(): number {
    let count = 0;
    for (const entry of this.#entries) count += entry.slotCount;
    return count;
  }

  get entryCount(): number {
    return this.#entries.size;
  }

  get oldestMs(): number | undefined {
    // Insertion order is time order.
    for (const entry of this.#entries) return entry.sinceMs;
    return undefined;
  }

  /** What recycling the receive agent would end: all but what a same-host CMA writer may still reach. */
  recyclable(): { readonly slotCount: number; readonly oldestMs: number | undefined } {
    let slotCount = 0;
    let oldestMs: number | undefined;
    for (const entry of this.#entries) {
      if (entry.isReleased || !this.#endsByRecycling(entry)) continue;
      slotCount += entry.slotCount;
      oldestMs ??= entry.sinceMs;
    }
    return { slotCount, oldestMs };
  }

  add(
    set: SlotSet,
    writer: WriterIdentity,
    round: { readonly kvRequestId: string; readonly round: number },
  ): void {
    const now = this.#options.now();
    const entry: Entry = {
      set,
      slotCount: set.reservedCount,
      writer,
      kvRequestId: round.kvRequestId,
      round: round.round,
      sinceMs: now,
      isIn: false,
      isReleased: false,
    };
    this.#entries.add(entry);
    this.#options.log.info(
      { peer: writer.address, kvRequestId: round.kvRequestId, round: round.round, slots: entry.slotCount },
      'slots quarantined: a write of the peer may still land in them',
    );
    this.#options.shards.abandon(set, { quarantine: true }, (failure) => {
      entry.isIn = true;
      // A worker that died here has its slots rebuilt as quarantined, so the entry stands.
      if (failure)
        this.#options.log.warn(
          { peer: writer.address, failure },
          'abandon failed; the slots stay quarantined',
        );
      if (entry.isReleased) this.#free(entry);
    });
    // The next tick looks at the process, and whether so many slots ask for a recycling.
    this.#options.wakeAt(now + PROCESS_CHECK_MS);
  }

  onRoundEnded(writer: WriterIdentity, kvRequestId: string, round: number): void {
    this.#release(
      (entry) =>
        entry.kvRequestId === kvRequestId && entry.round === round && isSameWriter(entry.writer, writer),
    );
  }

  onConnect(writer: WriterIdentity): void {
    this.#release((entry) => {
      if (entry.writer.address !== writer.address) return false;
      // A kvpeer connects only when nothing of its earlier sessions with us can land. A plain peer does not promise
      // that: only another agent, so another process, counts.
      if (writer.incarnation !== undefined) return true;
      return entry.writer.incarnation !== undefined || entry.writer.agentName !== writer.agentName;
    });
  }

  onRecycled(): void {
    this.#release((entry) => this.#endsByRecycling(entry));
  }

  tick(nowMs: number): void {
    if (nowMs < this.#nextCheckMs) return;
    this.#nextCheckMs = nowMs + PROCESS_CHECK_MS;
    this.#release(({ writer }) => writer.process !== undefined && !this.#options.isAlive(writer.process));
    if ([...this.#entries].some(({ writer }) => writer.process !== undefined))
      this.#options.wakeAt(this.#nextCheckMs);
  }

  #endsByRecycling(entry: Entry): boolean {
    return !(this.#options.hasSameHostLane && entry.writer.isOnThisHost);
  }

  #release(isOver: (entry: Entry) => boolean): void {
    for (const entry of [...this.#entries]) {
      if (entry.isReleased || !isOver(entry)) continue;
      entry.isReleased = true;
      if (entry.isIn) this.#free(entry);
    }
  }

  #free(entry: Entry): void {
    this.#options.shards.unquarantine(entry.set, (failure) => {
      this.#entries.delete(entry);
      if (failure)
        this.#options.log.warn(
          { peer: entry.writer.address, failure },
          'slots could not leave the quarantine',
        );
    });
  }
}

function isSameWriter(a: WriterIdentity, b: WriterIdentity): boolean {
  return a.address === b.address && a.incarnation === b.incarnation && a.agentName === b.agentName;
}
