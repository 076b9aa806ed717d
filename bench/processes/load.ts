// The load on a producer: bare clients that look up, closed loop or open loop, and fetch into memory of their own.

import { Context } from 'zeromq';

import { HIT } from '../../src/main/protocol/messages.js';
import type { LookupRespMessage, ScanResult } from '../../src/main/protocol/messages.js';
import { writeFetch, writeLookup } from '../../src/main/protocol/write.js';
import { serveCalls } from '../support/child.js';
import type { PoolSize } from '../support/client-memory.js';
import { receivingMemory } from '../support/client-memory.js';
import { KEY_BYTES, benchKeys, randomKeys, shuffled } from '../support/keys.js';
import type { AnnouncedMemory } from '../support/wire-client.js';
import { NO_MEMORY, WireClient } from '../support/wire-client.js';

export interface KeyChoice {
  /** Keys per lookup. */
  readonly keyCount: number;
  /** Keys below this number are at the producer. */
  readonly heldCount: number;
  /** 0 to 1. */
  readonly hitShare?: number;
}

export interface ClosedLoop extends KeyChoice {
  readonly lookupCount: number;
  readonly outstanding: number;
  /** Lookups of one request before it is finished, which gives their pins back. */
  readonly lookupsPerRequest: number;
}

export interface OpenLoop extends KeyChoice {
  readonly perSecond: number;
  readonly seconds: number;
}

export interface LookupTimes {
  /** Per lookup, us; of an open loop from the intended start. */
  readonly latencyUs: Float64Array;
  readonly elapsedMs: number;
  /** Share of the keys that were hits. */
  readonly hitShare: number;
}

/** Lists of keys that a loop takes in turns: made before it, so that the client spends its time on the wire. */
const LIST_COUNT = 64;
const EMPTY = new Int32Array(0);

interface Session {
  readonly client: WireClient;
  /** By id and round. */
  readonly waiting: Map<string, (message: ScanResult) => void>;
  nextId: number;
}

/** The methods that the parent calls. */
export class Load {
  readonly #context = new Context({ maxSockets: 4096 });
  readonly #sessions: Session[] = [];
  #memory: AnnouncedMemory = NO_MEMORY;

  /** Gives the client memory of its own, for fetches. */
  async openMemory(size: PoolSize): Promise<{ metadata: Uint8Array; baseAddr: number }> {
    const memory = await receivingMemory(size);
    this.#memory = memory;
    return { metadata: memory.agentMetadata, baseAddr: memory.baseAddr };
  }

  /** @param form of the keys in messages; by default what the target takes */
  async connect(target: string, sessionCount = 1, form?: 'packed' | 'list'): Promise<void> {
    for (let i = 0; i < sessionCount; i++) {
      const client = await WireClient.connect(this.#context, target, this.#memory);
      if (form !== undefined) client.packsKeys = form === 'packed';
      const session: Session = { client, waiting: new Map(), nextId: 1 };
      client.onMessage = (message) => {
        this.#onMessage(session, message);
      };
      this.#sessions.push(session);
    }
  }

  async disconnect(): Promise<void> {
    await Promise.all(this.#sessions.splice(0).map(({ client }) => client.close()));
  }

  /** Keeps `outstanding` lookups in flight, over all sessions in turn. */
  async closedLoop(loop: ClosedLoop): Promise<LookupTimes> {
    const { lookupCount, outstanding, lookupsPerRequest } = loop;
    const lists = keyLists(loop);
    const tally = new Tally(lookupCount);
    const startMs = performance.now();
    await new Promise<void>((resolve) => {
      let sentCount = 0;
      let answeredCount = 0;
      const lane = (laneNumber: number): void => {
        const session = this.#sessions[laneNumber % this.#sessions.length];
        let id = newId(session);
        let round = 0;
        const next = (): void => {
          if (sentCount >= lookupCount) {
            finish(session, id, round);
            return;
          }
          if (round === lookupsPerRequest) {
            finish(session, id, round);
            id = newId(session);
            round = 0;
          }
          const keys = lists[sentCount++ % LIST_COUNT];
          const askedMs = performance.now();
          ask(session, id, round++, keys, (message) => {
            tally.add(performance.now() - askedMs, message);
            answeredCount += 1;
            next();
            if (answeredCount === lookupCount) resolve();
          });
        };
        next();
      };
      for (let i = 0; i < Math.min(outstanding, lookupCount); i++) lane(i);
    });
    return tally.result(performance.now() - startMs);
  }

  /** Sends at fixed times, whatever is still unanswered; each lookup is a request of its own. */
  async openLoop(loop: OpenLoop): Promise<LookupTimes> {
    const { perSecond, seconds } = loop;
    const lists = keyLists(loop);
    const total = Math.round(perSecond * seconds);
    const tally = new Tally(total);
    const startMs = performance.now();
    await new Promise<void>((resolve) => {
      let sentCount = 0;
      let answeredCount = 0;
      const sendDue = (): void => {
        const now = performance.now();
        for (; sentCount < total && startMs + (sentCount * 1000) / perSecond <= now; sentCount++) {
          const intendedMs = startMs + (sentCount * 1000) / perSecond;
          const session = this.#sessions[sentCount % this.#sessions.length];
          const id = newId(session);
          ask(session, id, 0, lists[sentCount % LIST_COUNT], (message) => {
            tally.add(performance.now() - intendedMs, message);
            finish(session, id, 0);
            if (++answeredCount === total) resolve();
          });
        }
        if (sentCount < total) setTimeout(sendDue, 1);
      };
      sendDue();
    });
    return tally.result(performance.now() - startMs);
  }

  /**
   * Looks the first blocks up and fetches them, `rounds` times per lane.
   *
   * @returns milliseconds per fetch, from `fetch` sent to `transfer_done` received
   */
  async fetchLoop(options: {
    readonly blockCount: number;
    readonly order: 'consecutive' | 'scattered';
    readonly rounds: number;
    /** Fetches at once; each has destinations of its own. */
    readonly lanes?: number;
    /** A lookup that does not find all blocks is given up instead of being an error. */
    readonly mayBeCut?: boolean;
  }): Promise<Float64Array> {
    const { blockCount, order, rounds, lanes = 1, mayBeCut = false } = options;
    const [session] = this.#sessions;
    const keys = benchKeys(0, blockCount);
    const times: number[] = [];
    const lane = async (laneNumber: number): Promise<void> => {
      const first = laneNumber * blockCount;
      const indexes =
        order === 'consecutive'
          ? Int32Array.from({ length: blockCount }, (_, i) => first + i)
          : shuffled(7, blockCount, blockCount).map((index) => first + index);
      for (let i = 0; i < rounds; i++) {
        const id = newId(session);
        const found = await new Promise<ScanResult>((resolve) => {
          ask(session, id, 0, keys, resolve);
        });
        if (found.type !== 'lookup_resp') throw new Error(`a lookup was answered with ${found.type}`);
        const foundCount = hitCount(found);
        if (foundCount !== blockCount) {
          finish(session, id, 0);
          if (mayBeCut) continue;
          throw new Error(`${foundCount} of ${blockCount} blocks are there`);
        }
        const startMs = performance.now();
        const done = await new Promise<ScanResult>((resolve) => {
          session.waiting.set(`${id}/0`, resolve);
          const isPacked = session.client.packsKeys;
          session.client.send(writeFetch(id, keys, KEY_BYTES, indexes, 0, { isPacked }));
        });
        times.push(performance.now() - startMs);
        if (done.type !== 'transfer_done' || !done.success) throw new Error('the fetch failed');
      }
    };
    await Promise.all(Array.from({ length: lanes }, (_, i) => lane(i)));
    return Float64Array.from(times);
  }

  /**
   * Fetches the first blocks again and again for some time. A producer that is behind with other peers' lookups keeps
   * to its limits and answers with misses: that lookup is asked again.
   *
   * @returns fetches, and lookups that were cut short
   */
  async fetchFor(options: {
    readonly blockCount: number;
    readonly order: 'consecutive' | 'scattered';
    readonly ms: number;
  }): Promise<{ fetchCount: number; cutCount: number }> {
    const endMs = performance.now() + options.ms;
    let fetchCount = 0;
    let cutCount = 0;
    while (performance.now() < endMs) {
      const times = await this.fetchLoop({ ...options, rounds: 1, mayBeCut: true });
      if (times.length === 0) cutCount += 1;
      else fetchCount += 1;
    }
    return { fetchCount, cutCount };
  }

  /** Sends one fetch and stops this whole process in the middle of it, until the parent continues it. */
  async fetchAndFreeze(blockCount: number): Promise<void> {
    const [session] = this.#sessions;
    const keys = benchKeys(0, blockCount);
    const id = newId(session);
    await new Promise<ScanResult>((resolve) => {
      ask(session, id, 0, keys, resolve);
    });
    session.client.send(
      writeFetch(
        id,
        keys,
        KEY_BYTES,
        Int32Array.from({ length: blockCount }, (_, i) => i),
        0,
      ),
    );
    setTimeout(() => process.kill(process.pid, 'SIGSTOP'), 3);
  }

  #onMessage(session: Session, message: ScanResult): void {
    if (message.type !== 'lookup_resp' && message.type !== 'transfer_done') return;
    const name = `${message.kvRequestId}/${message.roundSeq ?? 0}`;
    // An echo answers in order and names nobody.
    const key = session.waiting.has(name) ? name : session.waiting.keys().next().value;
    if (key === undefined) return;
    const waiting = session.waiting.get(key);
    session.waiting.delete(key);
    waiting?.(message);
  }
}

class Tally {
  readonly #latencyUs: Float64Array;
  #count = 0;
  #hits = 0;
  #keys = 0;

  constructor(lookupCount: number) {
    this.#latencyUs = new Float64Array(lookupCount);
  }

  add(latencyMs: number, message: ScanResult): void {
    this.#latencyUs[this.#count++] = latencyMs * 1000;
    // Counting is client's time: every 16th answer stands for the others.
    if (message.type !== 'lookup_resp' || (this.#count & 15) !== 1) return;
    this.#hits += hitCount(message);
    this.#keys += message.hits.length;
  }

  result(elapsedMs: number): LookupTimes {
    return { latencyUs: this.#latencyUs, elapsedMs, hitShare: this.#hits / Math.max(1, this.#keys) };
  }
}

function keyLists({ keyCount, heldCount, hitShare = 1 }: KeyChoice): Buffer[] {
  return Array.from({ length: LIST_COUNT }, (_, i) => randomKeys(i + 1, keyCount, heldCount, hitShare));
}

function newId(session: Session): string {
  return `${session.client.address}-${session.nextId++}`;
}

function ask(
  session: Session,
  id: string,
  round: number,
  keys: Buffer,
  onAnswer: (message: ScanResult) => void,
): void {
  session.waiting.set(`${id}/${round}`, onAnswer);
  const isPacked = session.client.packsKeys;
  session.client.send(writeLookup(id, keys, KEY_BYTES, round, { ttlMs: 8000, lookupSeq: round, isPacked }));
}

/** The request is over: the producer gives the pins of all its rounds back. */
function finish(session: Session, id: string, round: number): void {
  session.client.send(writeFetch(id, new Uint8Array(0), KEY_BYTES, EMPTY, round));
}

function hitCount({ hits }: LookupRespMessage): number {
  let count = 0;
  for (const hit of hits) if (hit === HIT) count += 1;
  return count;
}

serveCalls(new Load());
