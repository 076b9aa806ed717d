// What one replayed request counts, at a peer that answers as the test says.
import { describe, expect, it } from 'vitest';
import { KvpeerError } from '../../src/main/errors.js';
import { REPLAY_KEY_BYTES } from '../../src/main/cli/replay/keys.js';
import { findPrefix, runRequest, type RequestPeer } from '../../src/main/cli/replay/requester.js';
import type { Hits, Load, PinnedBlocks } from '../../src/main/peer-api.js';

/** What the peer holds, and what comes of asking the source. */
interface Scene {
  /** Which of the request's blocks are here at the probe. */
  readonly here: readonly boolean[];
  /** Which of those are gone by the time of the pin. */
  readonly evicted?: readonly number[];
  readonly leadingHits?: number;
  readonly pulled?: number;
  readonly joined?: number;
  readonly mismatches?: number;
  readonly notStored?: number;
  readonly lookupFails?: boolean;
  readonly loadFails?: boolean;
  readonly storeFails?: boolean;
}

class ScenePeer implements RequestPeer {
  readonly events: string[] = [];
  heldCount = 0;
  readonly #scene: Scene;

  constructor(scene: Scene) {
    this.#scene = scene;
  }

  probe(): Promise<Hits> {
    return Promise.resolve(hitsOf(this.#scene.here));
  }

  pin(keys: Uint8Array): Promise<PinnedBlocks> {
    const { here, evicted = [] } = this.#scene;
    const flags = here
      .slice(0, keys.length / REPLAY_KEY_BYTES)
      .map((isHere, index) => isHere && !evicted.includes(index));
    return Promise.resolve(this.#pinned(flags));
  }

  open(params: unknown): ReturnType<RequestPeer['open']> {
    const scene = this.#scene;
    const { remote_kv_source: source } = params as {
      remote_kv_source: { remote_host: string; remote_port: number };
    };
    this.events.push(`open ${source.remote_host}:${source.remote_port}`);
    const unused = (): never => {
      throw new Error('a replayed request does not call this');
    };
    return {
      kvRequestId: 'id',
      lookup: (keys) => {
        const count = keys.length / REPLAY_KEY_BYTES;
        this.events.push(`lookup ${count}`);
        if (scene.lookupFails) return Promise.reject(new KvpeerError('KVPEER_BUSY', 'no room'));
        return Promise.resolve(
          hitsOf(Array.from({ length: count }, (_, index) => index < (scene.leadingHits ?? 0))),
        );
      },
      load: (keys, options) => {
        const count = keys.length / REPLAY_KEY_BYTES;
        this.events.push(`load ${count} poison ${String(options?.poison)}`);
        if (scene.loadFails) return Promise.reject(new KvpeerError('KVPEER_WORKER_LOST', 'gone'));
        const { pulled = 0, joined = 0 } = scene;
        const pinned = this.#pinned(Array.from({ length: count }, (_, index) => index < pulled + joined));
        const load: Load = { ...pinned, pulledCount: pulled, bytesPulled: pulled * 4096 };
        return Promise.resolve(load);
      },
      store: unused,
      reserve: unused,
      finish: () => {
        this.events.push('finish');
      },
    };
  }

  readonly content: RequestPeer['content'] = {
    storeFilled: (keys) => {
      this.events.push(`store ${keys.length / REPLAY_KEY_BYTES}`);
      if (this.#scene.storeFails) return Promise.reject(new KvpeerError('KVPEER_BUSY', 'no room'));
      const { notStored = 0 } = this.#scene;
      return Promise.resolve({ storedCount: 0, presentCount: 0, notStoredCount: notStored });
    },
    verify: () => Promise.resolve(this.#scene.mismatches ?? 0),
  };

  #pinned(flags: readonly boolean[]): PinnedBlocks {
    this.heldCount += 1;
    return {
      count: flags.length,
      slots: Int32Array.from(flags, (isHere, index) => (isHere ? index : -1)),
      presentCount: flags.filter(Boolean).length,
      block: () => undefined,
      release: () => {
        this.heldCount -= 1;
      },
    };
  }
}

function hitsOf(flags: readonly boolean[]): Hits {
  const firstMiss = flags.indexOf(false);
  return {
    count: flags.length,
    hitCount: flags.filter(Boolean).length,
    leadingCount: firstMiss === -1 ? flags.length : firstMiss,
    bitmap: new Uint8Array(Math.ceil(flags.length / 8)),
    has: (index) => flags[index],
  };
}

const IDS = [1, 2, 3, 4, 5];
const NONE = [false, false, false, false, false];
const TWO = [true, true, false, false, false];
const ALL = [true, true, true, true, true];
const source = (prefixBlocks: number): { host: string; port: number; prefixBlocks: number } => ({
  host: '127.0.0.1',
  port: 7,
  prefixBlocks,
});

async function run(
  scene: Scene,
  prefixBlocks: number | null,
): Promise<{ outcome: Awaited<ReturnType<typeof runRequest>>; events: string[] }> {
  const peer = new ScenePeer(scene);
  const outcome = await runRequest(peer, {
    ids: IDS,
    source: prefixBlocks === null ? null : source(prefixBlocks),
  });
  expect(peer.heldCount).toBe(0);
  expect(outcome.referenced).toBe(outcome.local + outcome.pulled + outcome.computed);
  return { outcome, events: peer.events };
}

describe('a replayed request', () => {
  it('computes and stores all of its blocks when nobody holds any', async () => {
    const { outcome, events } = await run({ here: NONE }, null);
    expect(outcome).toMatchObject({
      local: 0,
      pulled: 0,
      computed: 5,
      lookup: null,
      load: null,
      failures: [],
    });
    expect(events).toEqual(['store 5']);
  });

  it('does nothing more when all of its blocks are local', async () => {
    const { outcome, events } = await run({ here: ALL }, 5);
    expect(outcome).toMatchObject({ local: 5, computed: 0 });
    expect(events).toEqual([]);
  });

  it('looks up what is beyond its local prefix, loads the leading hits poisoned, and stores the rest', async () => {
    const { outcome, events } = await run({ here: TWO, leadingHits: 2, pulled: 2 }, 4);
    expect(outcome).toMatchObject({
      local: 2,
      pulled: 2,
      computed: 1,
      verified: 2,
      mismatches: 0,
      bytesPulled: 8192,
      lookup: { keys: 3 },
      load: { blocks: 2 },
    });
    expect(events).toEqual(['open 127.0.0.1:7', 'lookup 3', 'load 2 poison true', 'finish', 'store 5']);
  });

  it('asks nobody when the source holds no more than is here', async () => {
    const { events } = await run({ here: TWO }, 2);
    expect(events).toEqual(['store 5']);
  });

  it('takes for local what it could pin, not what it saw before', async () => {
    const { outcome } = await run({ here: TWO, evicted: [1] }, 1);
    expect(outcome).toMatchObject({ local: 1, computed: 4 });
  });

  it('counts blocks that came with another load as local, and failed pulls as computed', async () => {
    const { outcome } = await run({ here: NONE, leadingHits: 5, pulled: 2, joined: 1 }, 5);
    expect(outcome).toMatchObject({ local: 1, pulled: 2, computed: 2, verified: 3 });
  });

  it('reports mismatches and blocks that found no slot', async () => {
    const { outcome } = await run({ here: NONE, leadingHits: 2, pulled: 2, mismatches: 1, notStored: 3 }, 2);
    expect(outcome).toMatchObject({ mismatches: 1, notStored: 3, failures: [] });
  });

  it.each([
    ['lookup', { lookupFails: true }, 'KVPEER_BUSY'],
    ['load', { leadingHits: 3, loadFails: true }, 'KVPEER_WORKER_LOST'],
    ['store', { leadingHits: 0, storeFails: true }, 'KVPEER_BUSY'],
  ])(
    'counts a failed %s by its code, computes instead, and finishes its request',
    async (_, failing, code) => {
      const { outcome, events } = await run({ here: TWO, ...failing }, 4);
      expect(outcome).toMatchObject({ local: 2, pulled: 0, computed: 3, failures: [code] });
      expect(events).toContain('finish');
    },
  );

  it('knows its prefix without pinning anything', async () => {
    const peer = new ScenePeer({ here: TWO });
    expect(await findPrefix(peer, IDS)).toBe(2);
    expect(await findPrefix(peer, [])).toBe(0);
    expect(peer.heldCount).toBe(0);
  });
});
