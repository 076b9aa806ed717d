// Slots that a remote write may still reach: kept out of use until nobody can write to them any more.

import type { ShardClient, SlotSet } from '../shards/shard-client.js';
import type { Quarantine, RoleLog, RoundKey, WriterIdentity } from './roles.js';

interface Entry {
  readonly set: SlotSet;
  readonly slotCount: number;
  readonly writer: WriterIdentity;
  readonly round: RoundKey;
  readonly sinceMs: number;
  /** `entering` while the abandon is under way. `reserved`: it failed, so the slots are still the load's. */
  state: 'entering' | 'quarantined' | 'reserved';
  /** An ending event came. */
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
 * A slot leaves the quarantine with the first of (design.md section 6 rule 2): the end of its round, a new session of
 * the same kvpeer incarnation, another incarnation (or agent) at the address, the exit of the process on this host, the
 * recycling of the receive agent.
 */
export class SlotQuarantine implements Quarantine {
  readonly #options: QuarantineOptions;
  /** In the order of their time. */
  readonly #entries = new Set<Entry>();
  #nextCheckMs = -Infinity;

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

  add(set: SlotSet, writer: WriterIdentity, round: RoundKey): void {
    const now = this.#options.now();
    const slotCount = set.reservedCount;
    const entry: Entry = {
      set,
      slotCount,
      writer,
      round,
      sinceMs: now,
      state: 'entering',
      isReleased: false,
    };
    this.#entries.add(entry);
    this.#options.log.info(
      { peer: writer.address, kvRequestId: round.kvRequestId, round: round.round, slots: slotCount },
      'slots quarantined: a write of the peer may still land in them',
    );
    this.#options.shards.abandon(set, { quarantine: true }, (failure) => {
      entry.state = failure ? 'reserved' : 'quarantined';
      if (failure) {
        this.#options.log.warn(
          { peer: writer.address, failure },
          'slots could not enter the quarantine; they stay reserved',
        );
      }
      if (entry.isReleased) this.#free(entry);
    });
    // The next tick looks at the process, and whether so many slots ask for a recycling.
    this.#options.wakeAt(now + PROCESS_CHECK_MS);
  }

  onRoundEnded({ session, kvRequestId, round }: RoundKey): boolean {
    return this.#release(
      (entry) =>
        entry.round.session === session &&
        entry.round.kvRequestId === kvRequestId &&
        entry.round.round === round,
    );
  }

  onConnect(writer: WriterIdentity): void {
    this.#release((entry) => {
      if (entry.writer.address !== writer.address) return false;
      // A kvpeer connects only when nothing of its earlier sessions with us can land, and an address has one owner at a
      // time. A plain peer promises nothing: only another agent, so another process, counts.
      if (writer.incarnation !== undefined || entry.writer.incarnation !== undefined) return true;
      return entry.writer.agentName !== '' && entry.writer.agentName !== writer.agentName;
    });
  }

  onRecycled(): void {
    this.#release((entry) => this.#endsByRecycling(entry));
  }

  tick(nowMs: number): void {
    if (nowMs < this.#nextCheckMs || this.#entries.size === 0) return;
    this.#nextCheckMs = nowMs + PROCESS_CHECK_MS;
    this.#release(({ writer }) => writer.process !== undefined && !this.#options.isAlive(writer.process));
    for (const { writer } of this.#entries) {
      if (writer.process === undefined) continue;
      this.#options.wakeAt(this.#nextCheckMs);
      return;
    }
  }

  #endsByRecycling(entry: Entry): boolean {
    return !(this.#options.hasSameHostLane && entry.writer.isOnThisHost);
  }

  #release(isOver: (entry: Entry) => boolean): boolean {
    let isAny = false;
    for (const entry of this.#entries) {
      if (entry.isReleased || !isOver(entry)) continue;
      entry.isReleased = true;
      isAny = true;
      if (entry.state !== 'entering') this.#free(entry);
    }
    return isAny;
  }

  #free(entry: Entry): void {
    const { shards, log } = this.#options;
    const onFree = (failure: object | undefined): void => {
      this.#entries.delete(entry);
      if (failure) log.warn({ peer: entry.writer.address, failure }, 'slots could not leave the quarantine');
    };
    if (entry.state === 'reserved') shards.abandon(entry.set, { quarantine: false }, onFree);
    else shards.unquarantine(entry.set, onFree);
  }
}
