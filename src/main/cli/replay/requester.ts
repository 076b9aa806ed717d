// One request of the replay at the peer that computes it: local prefix, lookup, load, verification, store.
import { randomUUID } from 'node:crypto';
import type { PeerApi, PinnedBlocks, PackedKeys } from '../../peer-api.js';
import { codeOf } from './failure.js';
import { keysOf, REPLAY_KEY_BYTES } from './keys.js';
import type { RequestOutcome, RequestSource, RunArguments } from './messages.js';

/** What a request uses of its peer. */
export type RequestPeer = Pick<PeerApi, 'probe' | 'pin' | 'open' | 'content'>;

/** What the source gave: blocks that are in this peer now because of it, and what it took. */
interface Fetched {
  readonly lookup: RequestOutcome['lookup'];
  readonly load: RequestOutcome['load'];
  readonly pulled: number;
  /** Leading hits that were here by the time of the load, or came with another load. */
  readonly joined: number;
  readonly verified: number;
  readonly mismatches: number;
  readonly bytesPulled: number;
}

const NOTHING_FETCHED: Fetched = {
  lookup: null,
  load: null,
  pulled: 0,
  joined: 0,
  verified: 0,
  mismatches: 0,
  bytesPulled: 0,
};

/** How many leading blocks of these ids the peer holds now. */
export async function findPrefix(peer: RequestPeer, ids: readonly number[]): Promise<number> {
  if (ids.length === 0) return 0;
  return (await peer.probe(keysOf(ids))).leadingCount;
}

/**
 * Runs one request as an engine would: what is here is kept from eviction, what the source has more of is pulled and
 * verified, the rest is computed and stored. Never throws: what went wrong is in `failures`, and its blocks count as
 * computed.
 */
export async function runRequest(peer: RequestPeer, { ids, source }: RunArguments): Promise<RequestOutcome> {
  const failures: string[] = [];
  const held: PinnedBlocks[] = [];
  const keys = keysOf(ids);
  let local = 0;
  let fetched = NOTHING_FETCHED;
  let notStored = 0;

  const attempt = async (step: () => Promise<void>): Promise<void> => {
    try {
      await step();
    } catch (error) {
      failures.push(codeOf(error));
    }
  };

  if (ids.length > 0) {
    await attempt(async () => {
      local = await pinPrefix(peer, keys, held);
    });
    if (source !== null && source.prefixBlocks > local) {
      await attempt(async () => {
        fetched = await fetchFrom(peer, source, keys.subarray(local * REPLAY_KEY_BYTES), held);
      });
    }
    await attempt(async () => {
      // All keys, so that each block keeps its place in the chain; those that are here are found and left alone.
      const isComplete = local + fetched.pulled + fetched.joined === ids.length;
      if (!isComplete) notStored = (await peer.content.storeFilled(keys)).notStoredCount;
    });
    for (const pinned of held) pinned.release();
  }

  const { pulled, joined, verified, mismatches, bytesPulled, lookup, load } = fetched;
  return {
    referenced: ids.length,
    local: local + joined,
    pulled,
    computed: ids.length - local - joined - pulled,
    notStored,
    verified,
    mismatches,
    bytesPulled,
    lookup,
    load,
    failures,
  };
}

/** Pins the leading blocks that are here; the count is what was pinned, whatever the probe said before. */
async function pinPrefix(peer: RequestPeer, keys: PackedKeys, held: PinnedBlocks[]): Promise<number> {
  const { leadingCount } = await peer.probe(keys);
  if (leadingCount === 0) return 0;
  const pinned = await peer.pin(keys.subarray(0, leadingCount * REPLAY_KEY_BYTES));
  held.push(pinned);
  const firstGone = pinned.slots.indexOf(-1);
  return firstGone === -1 ? leadingCount : firstGone;
}

/** One lookup for the keys beyond the local prefix, and one load of its leading hits into poisoned slots. */
async function fetchFrom(
  peer: RequestPeer,
  source: RequestSource,
  keys: PackedKeys,
  held: PinnedBlocks[],
): Promise<Fetched> {
  const request = peer.open({
    remote_kv_source: { kv_request_id: randomUUID(), remote_host: source.host, remote_port: source.port },
  });
  try {
    const lookupStart = performance.now();
    const hits = await request.lookup(keys);
    const lookup = { keys: hits.count, micros: (performance.now() - lookupStart) * 1000 };
    if (hits.leadingCount === 0) return { ...NOTHING_FETCHED, lookup };

    const loadStart = performance.now();
    const load = await request.load(keys.subarray(0, hits.leadingCount * REPLAY_KEY_BYTES), { poison: true });
    const loadMicros = (performance.now() - loadStart) * 1000;
    held.push(load);
    const mismatches = await peer.content.verify(load);
    return {
      lookup,
      load: { blocks: load.pulledCount, micros: loadMicros },
      pulled: load.pulledCount,
      joined: load.presentCount - load.pulledCount,
      verified: load.presentCount,
      mismatches,
      bytesPulled: load.bytesPulled,
    };
  } finally {
    request.finish();
  }
}
