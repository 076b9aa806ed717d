// One engine request at this peer: its lookups, loads and stores, by what kv_transfer_params say.

import { KvpeerError } from './errors.js';
import type { Blocks } from './blocks.js';
import { foundStatuses, slotsOf } from './blocks.js';
import { hitsOf, RemoteHits } from './hits.js';
import type { IdentifiedParams } from './params/index.js';
import { formatHostPort } from './params/index.js';
import type { HashFilter } from './params/hash-filter.js';
import type {
  Hits,
  Load,
  LoadRequest,
  PackedKeys,
  PeerRequest,
  Reservation,
  StoreResult,
} from './peer-api.js';
import { HIT, MISS } from './protocol/messages.js';
import type {
  DecoderRequests,
  LoadResult,
  LookupResult,
  MissReason,
  SessionCounters,
} from './session/roles.js';
import type { Session } from './session/session.js';
import type { Refusal, Sessions } from './session/sessions.js';
import { submitForResult } from './shards/promises.js';
import type { KeySpan, ShardClient, SlotSet } from './shards/shard-client.js';

export interface RequestHost {
  readonly shards: ShardClient;
  readonly blocks: Blocks;
  readonly sessions: Sessions;
  readonly decoders: DecoderRequests;
  readonly counters: Pick<SessionCounters, 'miss'>;
  readonly lookupMs: number;
  readonly leaseMs: number;
  /** Called by finish(), once. */
  onFinished(request: Request): void;
}

/** A peer to pull from, with what its answers said. */
interface Source {
  readonly address: string;
  readonly kvRequestId: string;
  /** Keys that do not pass are not asked for here. */
  readonly filter: HashFilter | undefined;
  readonly hits: RemoteHits;
  session: Session | undefined;
}

export class Request implements PeerRequest {
  readonly kvRequestId: string | undefined;
  readonly #host: RequestHost;
  readonly #decoderId: string | undefined;
  /** Remote sources in order of preference. */
  readonly #sources: readonly Source[];
  /** remote_prefiller: no lookup, every block is expected. */
  readonly #expectsAll: boolean;
  /** Blocks that a lookup found here stay here until the load, the end, or the lease time. */
  readonly #localPins = new Map<SlotSet, NodeJS.Timeout>();
  #isFinished = false;

  constructor(host: RequestHost, params: IdentifiedParams) {
    this.#host = host;
    this.#decoderId = params.remoteDecoder?.kvRequestId;
    const { remotePrefiller, remoteKvSource } = params;
    this.#expectsAll = remotePrefiller !== undefined;
    const named = params.isPullOff ? [] : remotePrefiller ? [remotePrefiller] : (remoteKvSource ?? []);
    this.#sources = named.map((source) => ({
      address: formatHostPort(source),
      kvRequestId: source.kvRequestId,
      filter: 'filter' in source ? source.filter : undefined,
      hits: new RemoteHits(host.shards.keyBytes),
      session: undefined,
    }));
    this.kvRequestId = this.#sources.at(0)?.kvRequestId;
    if (this.#decoderId !== undefined) host.decoders.open(this.#decoderId);
    // Dialling takes time: begin before the first lookup, as the engine opens the request while it is still queued.
    for (const source of this.#sources) host.sessions.acquire(source.address, () => undefined);
  }

  async lookup(keys: PackedKeys): Promise<Hits> {
    this.#assertOpen('lookup');
    const span = this.#host.blocks.span(keys);
    if (span.count === 0) return hitsOf(new Uint8Array(0));
    const statuses = await this.#lookupHere(span);
    if (this.#expectsAll) return hitsOf(statuses.fill(HIT));
    for (const source of this.#sources) {
      if (this.#isFinished) break;
      const { missing, positions } = missesOf(span, statuses, this.#host.shards.keyBytes, source.filter);
      if (positions.length === 0) continue;
      const answer = await this.#lookupAt(source, missing);
      if (!answer) continue;
      source.hits.add(missing.bytes, answer.statuses);
      for (let i = 0; i < positions.length; i++) statuses[positions[i]] = answer.statuses[i];
    }
    return hitsOf(statuses);
  }

  /** Pins what is here, so that a load after the lookup still finds it. */
  async #lookupHere(span: KeySpan): Promise<Uint8Array> {
    const set = await submitForResult<SlotSet>('lookup', (done) => {
      this.#host.shards.match(span, {}, done);
    });
    const statuses = foundStatuses(set);
    if (set.pinnedCount === 0 || this.#isFinished) this.#host.shards.release(set);
    else this.#holdPins(set);
    return statuses;
  }

  #holdPins(set: SlotSet): void {
    const timer = setTimeout(() => {
      this.#dropPins(set);
    }, this.#host.leaseMs);
    timer.unref();
    this.#localPins.set(set, timer);
  }

  #dropPins(set: SlotSet): void {
    clearTimeout(this.#localPins.get(set));
    if (this.#localPins.delete(set)) this.#host.shards.release(set);
  }

  #dropAllPins(): void {
    for (const set of [...this.#localPins.keys()]) this.#dropPins(set);
  }

  async #lookupAt(source: Source, keys: KeySpan): Promise<LookupResult | undefined> {
    const session = await this.#sessionOf(source);
    if (typeof session === 'string') {
      this.#host.counters.miss(missReason(session), keys.count);
      return undefined;
    }
    // finish() has said good-bye already; what was asked after it nobody would end.
    if (this.#isFinished) return undefined;
    return new Promise((resolve) => {
      session.consumer.lookup(source.kvRequestId, keys, resolve);
    });
  }

  /** Bounded by the lookup's time: a predecessor that still drains may hold a new session back for longer. */
  #sessionOf(source: Source): Promise<Session | Refusal> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        resolve('backoff');
      }, this.#host.lookupMs);
      this.#host.sessions.acquire(source.address, (session) => {
        clearTimeout(timer);
        if (typeof session !== 'string') {
          if (source.session !== session) source.hits.clear();
          source.session = session;
        }
        resolve(session);
      });
    });
  }

  async load(keys: PackedKeys, options: LoadRequest = {}): Promise<Load> {
    this.#assertOpen('load');
    const { blocks, shards } = this.#host;
    const borrowed = blocks.span(keys);
    const owned = borrowed.count === 0 ? keys : keys.slice();
    const span: KeySpan = { ...borrowed, bytes: owned };
    const slots = new Int32Array(span.count).fill(-1);
    const pins: SlotSet[] = [];
    let pulledCount = 0;
    const isOpen = new Uint8Array(span.count).fill(1);
    for (const source of this.#sources) {
      if (this.#isFinished) break;
      const ifHeld =
        options.expect === 'held' && !this.#expectsAll && (await this.#findOut(source, span, isOpen));
      const isRemote = this.#expectsAll || ifHeld ? undefined : source.hits.select(owned);
      const isExpected = (i: number): boolean =>
        isRemote === undefined ? mayBeAt(source, span, i, shards.keyBytes) : isRemote[i] === 1;
      const { subset, positions } = subsetOf(span, shards.keyBytes, (i) => isOpen[i] === 1 && isExpected(i));
      if (positions.length === 0) continue;
      const result = await this.#loadFrom(source, subset, ifHeld, options);
      if (!result) continue;
      pins.push(...result.pins);
      pulledCount += result.pulledCount;
      for (let i = 0; i < positions.length; i++) {
        slots[positions[i]] = result.slots[i];
        if (result.slots[i] >= 0) isOpen[positions[i]] = 0;
      }
    }
    try {
      await this.#pinHere(span, slots, isOpen, pins);
    } catch (error) {
      for (const set of pins) shards.release(set);
      throw error;
    } finally {
      this.#dropAllPins();
    }
    return blocks.asLoad(blocks.pinned(span.count, pins, slots), pulledCount);
  }

  /**
   * Before a load without a lookup: true when the source can be told to write what it holds; otherwise it is asked now.
   * (Its abilities are not known before the handshake is over: a lookup waits for that by itself.)
   */
  async #findOut(source: Source, span: KeySpan, isOpen: Uint8Array): Promise<boolean> {
    const session = await this.#sessionOf(source);
    if (typeof session === 'string') return true;
    if (session.remote?.features.has('speculative_fetch') === true) return true;
    const { keyBytes } = this.#host.shards;
    const { subset } = subsetOf(span, keyBytes, (i) => isOpen[i] === 1 && mayBeAt(source, span, i, keyBytes));
    const answer = subset.count === 0 ? undefined : await this.#lookupAt(source, subset);
    if (answer) source.hits.add(subset.bytes, answer.statuses);
    return false;
  }

  async #loadFrom(
    source: Source,
    keys: KeySpan,
    ifHeld: boolean,
    { poison = false, onStarted }: LoadRequest,
  ): Promise<LoadResult | undefined> {
    const asked = source.session;
    const session = await this.#sessionOf(source);
    if (typeof session === 'string') {
      this.#host.counters.miss(missReason(session), keys.count);
      return undefined;
    }
    if (this.#isFinished) return undefined;
    // What the source pinned for the lookup went with the session that asked.
    if (!this.#expectsAll && session !== asked) {
      this.#host.counters.miss('peer-down', keys.count);
      return undefined;
    }
    source.hits.clear();
    const { shards } = this.#host;
    const beforeFetch = (set: SlotSet, proceed: () => void): void => {
      shards.poison(set, proceed);
    };
    return new Promise((resolve) => {
      const options = { ifHeld, onFetch: onStarted, ...(poison ? { beforeFetch } : {}) };
      session.consumer.load(source.kvRequestId, keys, options, resolve);
    });
  }

  /** What no source gave may be here all the same. */
  async #pinHere(span: KeySpan, slots: Int32Array, isOpen: Uint8Array, pins: SlotSet[]): Promise<void> {
    const { shards } = this.#host;
    const { subset, positions } = subsetOf(span, shards.keyBytes, (i) => isOpen[i] === 1);
    if (positions.length === 0) return;
    const set = await submitForResult<SlotSet>('load', (done) => {
      shards.match(subset, {}, done);
    });
    const found = slotsOf(set);
    for (let i = 0; i < positions.length; i++) if (found[i] >= 0) slots[positions[i]] = found[i];
    pins.push(set);
  }

  store(keys: PackedKeys, blocks: Uint8Array): Promise<StoreResult> {
    this.#assertOpen('store');
    return this.#host.blocks.store(keys, blocks, this.#keep());
  }

  /** Stores content that belongs to the keys; see ContentTools. */
  storeFilled(keys: PackedKeys): Promise<StoreResult> {
    this.#assertOpen('store');
    return this.#host.blocks.storeFilled(keys, this.#keep());
  }

  reserve(keys: PackedKeys): Promise<Reservation> {
    this.#assertOpen('reserve');
    return this.#host.blocks.reserve(keys, this.#keep());
  }

  /** Stored blocks stay pinned for the remote decoder; a block that was READY already counts as stored. */
  #keep(): ((set: SlotSet) => void) | undefined {
    const id = this.#decoderId;
    if (id === undefined) return undefined;
    return (set) => {
      this.#host.decoders.addStored(id, set);
    };
  }

  finish(): void {
    if (this.#isFinished) return;
    this.#isFinished = true;
    this.#dropAllPins();
    for (const source of this.#sources) {
      source.session?.consumer.finish(source.kvRequestId);
      source.hits.clear();
    }
    if (this.#decoderId !== undefined) this.#host.decoders.finish(this.#decoderId);
    this.#host.onFinished(this);
  }

  #assertOpen(what: string): void {
    if (!this.#isFinished) return;
    throw new KvpeerError('KVPEER_INVALID_ARGUMENT', `${what}: the request was finished; open another one`);
  }
}

function missReason(refusal: Refusal): MissReason {
  return refusal === 'backoff' ? 'peer-backoff' : 'peer-down';
}

/** The keys for which `isWanted` says yes, packed, and their positions. */
function subsetOf(
  span: KeySpan,
  keyBytes: number,
  isWanted: (index: number) => boolean,
): { subset: KeySpan; positions: Int32Array } {
  const positions = new Int32Array(span.count);
  let count = 0;
  for (let i = 0; i < span.count; i++) if (isWanted(i)) positions[count++] = i;
  if (count === span.count) return { subset: span, positions };
  const bytes = new Uint8Array(count * keyBytes);
  for (let i = 0; i < count; i++) {
    const at = span.first + positions[i] * span.stride;
    bytes.set(span.bytes.subarray(at, at + keyBytes), i * keyBytes);
  }
  return { subset: { bytes, first: 0, stride: keyBytes, count }, positions: positions.subarray(0, count) };
}

/** Whether a key passes the source's filter. */
function mayBeAt({ filter }: Pick<Source, 'filter'>, span: KeySpan, i: number, keyBytes: number): boolean {
  return filter?.has(span.bytes, span.first + i * span.stride, keyBytes) ?? true;
}

function missesOf(
  span: KeySpan,
  statuses: Uint8Array,
  keyBytes: number,
  filter: HashFilter | undefined,
): { missing: KeySpan; positions: Int32Array } {
  const { subset, positions } = subsetOf(
    span,
    keyBytes,
    (i) => statuses[i] === MISS && mayBeAt({ filter }, span, i, keyBytes),
  );
  return { missing: subset, positions };
}
