// What must not harm a kvpeer: 100,000 mutated messages during pulls, and the inputs that harm vLLM 0.33.0 itself.

import { readFile } from 'node:fs/promises';
import { Dealer } from 'zeromq';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { conformanceKey } from '../../src/main/cli/conformance-set.js';
import { eventually, isQuiet, Kvpeer, range } from './support/kvpeer.js';
import { chanceOf, mutate } from './support/mutations.js';
import { freePort } from '../helpers/free-port.js';
import { VllmPeer } from './support/vllm-peer.js';
import { WirePeer, type WireIdentity, type WireMessage } from './support/wire-peer.js';

const key = (index: number): Uint8Array => conformanceKey('0', index);
const keys = (indexes: readonly number[]): Uint8Array[] => indexes.map(key);

/** What a kvpeer says of itself to whom it dials: metadata that NIXL takes, of memory that is there to be written. */
async function identityOf(donor: Kvpeer): Promise<WireIdentity> {
  const listener = await WirePeer.open();
  void donor.connect(listener.address);
  const connect = await listener.message(({ type }) => type === 'connect');
  await listener.close();
  return {
    agentMetadata: connect.agent_metadata as Uint8Array,
    baseAddr: Number(connect.base_addr),
    numBlocks: Number(connect.num_blocks),
  };
}

/**
 * One session after another: all of them show the metadata of one NIXL agent, which a send agent knows once at a time.
 */
async function expectSessionGone(wire: WirePeer, sessionCount: number): Promise<void> {
  await wire.close();
  await eventually(
    () => kvpeer.levels(),
    ({ sessions }) => sessions <= sessionCount,
  );
}

async function residentMiB(peer: Kvpeer): Promise<number> {
  const status = await readFile(`/proc/${peer.process.pid ?? 0}/status`, 'utf8');
  return Number(/VmRSS:\s+(\d+) kB/.exec(status)?.[1]) / 1024;
}

const HELD = 512;
let kvpeer: Kvpeer;
let donor: Kvpeer;
let secondDonor: Kvpeer;
let identity: WireIdentity;

beforeAll(async () => {
  [kvpeer, donor, secondDonor] = await Promise.all([
    Kvpeer.start({ logLevel: 'fatal' }),
    Kvpeer.start({ logLevel: 'fatal', poolBytes: 512 * 4096 }),
    Kvpeer.start({ logLevel: 'fatal', poolBytes: 512 * 4096 }),
  ]);
  await kvpeer.store(range(0, HELD - 1));
  identity = await identityOf(donor);
});

afterAll(async () => {
  await Promise.all([kvpeer.destroy(), donor.destroy(), secondDonor.destroy()]);
});

describe('100,000 mutated messages while vLLM pulls', () => {
  const TOTAL = 100_000;
  const SESSIONS = 40;
  const STRANGERS = 20;

  it(
    'leave the pulls complete, the memory flat, and every kind of rejection counted',
    { timeout: 240_000 },
    async () => {
      const vllm = await VllmPeer.start({ args: ['--blocks', '1024', '--block-bytes', '4096'] });
      const chance = chanceOf(20_261_130);
      const valid: readonly WireMessage[] = [
        { type: 'lookup', kv_request_id: 'f', keys: keys(range(0, 7)), round_seq: 0 },
        { type: 'fetch', kv_request_id: 'f', keys: keys([0, 1]), block_indexes: [0, 1], round_seq: 0 },
        { type: 'fetch', kv_request_id: 'g', keys: [], block_indexes: [], round_seq: 1 },
        { type: 'lookup_resp', kv_request_id: 'f', keys: keys([0]), hits: [true] },
        { type: 'transfer_done', kv_request_id: 'f', success: true, round_seq: 0 },
        { type: 'abort_fetch', kv_request_id: 'f', round_seq: 0 },
        { type: 'abort_ack', kv_request_id: 'f', round_seq: 0 },
        { type: 'connect_ack', peer_id: 'f' },
        {
          type: 'connect',
          peer_id: 'f',
          agent_metadata: new Uint8Array(64),
          base_addr: 0,
          num_blocks: 16,
          block_len: 8192,
          config_fingerprint: 'f',
          hash_seed: 'f',
        },
      ];
      try {
        const running = { fuzz: true };
        const pulls = (async (): Promise<number> => {
          let count = 0;
          for (let first = 0; running.fuzz || count < 2; first = (first + 16) % HELD) {
            const pull = await vllm.pull({ remote: kvpeer.address, keys: `${first}-${first + 15}` });
            expect(pull).toMatchObject({ loaded: 16, missing: [], bad: [] });
            count++;
          }
          return count;
        })();
        const residentBefore = await residentMiB(kvpeer);
        let sent = 0;
        // From peers with a session: a protocol error ends it, what follows comes from a stranger, the next peer goes on.
        const sessionShare = TOTAL / 4 / SESSIONS;
        for (let i = 0; i < SESSIONS; i++) {
          const { sessions } = await kvpeer.levels();
          const peer = await WirePeer.open(kvpeer.address);
          await peer.handshake(identity);
          for (let n = 0; n < sessionShare; n++, sent++) await peer.send(mutate(valid, chance));
          await expectSessionGone(peer, sessions);
        }
        // From strangers that could be peers, and from identities that nobody could call back.
        const strangerShare = (TOTAL - sent) / 2 / STRANGERS;
        for (let i = 0; i < STRANGERS; i++) {
          const port = await freePort();
          for (const routingId of [`127.0.0.1:${port}`, `nobody-${i}`]) {
            const dealer = new Dealer({ routingId, linger: 5_000, sendHighWaterMark: 0 });
            dealer.connect(`tcp://${kvpeer.address}`);
            for (let n = 0; n < strangerShare; n++, sent++) await dealer.send(mutate(valid, chance));
            if (i === 0) await dealer.send([Buffer.from('one'), Buffer.from('two')]);
            if (i === 0) await dealer.send(Buffer.alloc(200_000));
            dealer.close();
          }
        }
        expect(sent).toBeGreaterThanOrEqual(TOTAL);
        // Every frame of an identity that is none is counted: when all are, the node has met everything.
        await eventually(
          () => kvpeer.rejections(),
          (rejections) => (rejections.get('bad_identity') ?? 0) >= STRANGERS * strangerShare,
          60_000,
        );
        running.fuzz = false;
        expect(await pulls).toBeGreaterThanOrEqual(2);
        expect(kvpeer.isAlive).toBe(true);
        const rejections = await kvpeer.rejections();
        for (const reason of [
          'undecodable',
          'too_complex',
          'not_a_map',
          'unknown_type',
          'invalid_field',
          'over_limit',
          'bad_identity',
          'frame_count',
          'stranger_frames',
          'stranger_frame_size',
        ]) {
          expect(
            rejections.get(reason) ?? 0,
            `${reason} of ${JSON.stringify([...rejections])}`,
          ).toBeGreaterThan(0);
        }
        expect((await residentMiB(kvpeer)) - residentBefore).toBeLessThan(96);
      } finally {
        await vllm.destroy();
      }
      await eventually(() => kvpeer.levels(), isQuiet, 45_000);
    },
  );
});

describe('what harms vLLM 0.33.0 leaves kvpeer unharmed:', () => {
  async function withWire(body: (wire: WirePeer) => Promise<void>, as = identity): Promise<void> {
    const { sessions } = await kvpeer.levels();
    const wire = await WirePeer.open(kvpeer.address);
    try {
      await wire.handshake(as);
      await body(wire);
    } finally {
      await expectSessionGone(wire, sessions);
    }
    expect(await kvpeer.probe(range(0, 3))).toBe(4);
  }

  const lookup = (id: string, asked: readonly unknown[]): WireMessage => ({
    type: 'lookup',
    kv_request_id: id,
    keys: asked,
    round_seq: 0,
  });
  const fetchOf = (id: string, asked: readonly Uint8Array[], slots: readonly number[]): WireMessage => ({
    type: 'fetch',
    kv_request_id: id,
    keys: asked,
    block_indexes: slots,
    round_seq: 0,
  });

  it.each(['nocolon', '127.0.0.1:notaport', Buffer.from('fffe3a31', 'hex').toString('latin1')])(
    'identity-without-port, identity-bad-port, identity-not-utf8 (%s)',
    async (routingId) => {
      const before = (await kvpeer.rejections()).get('bad_identity') ?? 0;
      const dealer = new Dealer({ routingId, linger: 1_000 });
      dealer.connect(`tcp://${kvpeer.address}`);
      await dealer.send(Buffer.of(0x80));
      await eventually(
        () => kvpeer.rejections(),
        (rejections) => (rejections.get('bad_identity') ?? 0) > before,
      );
      dealer.close();
    },
  );

  it('many-identities-exhaust-sockets: 400 identities open no socket', async () => {
    const { sockets } = await kvpeer.levels();
    const dealers = Array.from({ length: 400 }, (_, i) => {
      const dealer = new Dealer({ routingId: `127.0.0.1:${20_000 + i}`, linger: 0 });
      dealer.connect(`tcp://${kvpeer.address}`);
      return dealer;
    });
    await Promise.all(dealers.map((dealer) => dealer.send(Buffer.of(0x80))));
    await withWire(async (wire) => {
      await wire.send(lookup('r', keys([0])));
      expect(await wire.answer('lookup_resp', 'r')).toMatchObject({ hits: [true] });
    });
    for (const dealer of dealers) dealer.close();
    await eventually(
      () => kvpeer.levels(),
      (levels) => levels.sockets <= sockets,
    );
  });

  it('index-above-int32 in a pull and in a prefill, index-out-of-region: the fetch fails or the peer is refused', async () => {
    for (const index of [2 ** 31, 1_000_000]) {
      await withWire(async (wire) => {
        await wire.send(lookup('r', keys([0])));
        await wire.answer('lookup_resp', 'r');
        await wire.send(fetchOf('r', keys([0]), [index]));
        const end = await wire.message(({ type }) => type === 'transfer_done' || type === 'disconnect');
        if (end.type === 'transfer_done') expect(end.success).toBe(false);
      });
      await withWire(async (wire) => {
        await wire.send(fetchOf(`pd-${index}`, keys([900]), [index]));
        const request = await kvpeer.open({ remote_decoder: { kv_request_id: `pd-${index}` } });
        await kvpeer.storeFor(request, [900]);
        await kvpeer.finish(request);
        const end = await wire.message(({ type }) => type === 'transfer_done' || type === 'disconnect');
        if (end.type === 'transfer_done') expect(end.success).toBe(false);
      });
    }
    await eventually(
      () => kvpeer.levels(),
      ({ leases }) => leases === 0,
    );
  });

  it('second-answer-flips-hit: a second answer changes nothing', async () => {
    await withWire(async (wire) => {
      const [host, port] = wire.address.split(':');
      const request = await kvpeer.open({
        remote_kv_source: { kv_request_id: 'flip', remote_host: host, remote_port: Number(port) },
      });
      const looking = kvpeer.lookup(request, [950]);
      const asked = await wire.answer('lookup', 'flip');
      const answer = { type: 'lookup_resp', kv_request_id: 'flip', keys: asked.keys };
      await wire.send({ ...answer, hits: [true] });
      expect((await looking).hits).toEqual([950]);
      await wire.send({ ...answer, hits: [false] });
      const loading = kvpeer.load(request, [950]);
      const fetched = await wire.answer('fetch', 'flip');
      await wire.send({
        type: 'transfer_done',
        kv_request_id: 'flip',
        success: false,
        round_seq: fetched.round_seq,
      });
      expect((await loading).loaded).toEqual([]);
      await kvpeer.finish(request);
    });
  });

  it('int-key-allocates: a key that is no bin is refused', async () => {
    await withWire(async (wire) => {
      await wire.send(lookup('r', [2 ** 29]));
      await wire.message(({ type }) => type === 'disconnect');
    });
  });

  it('bound-ids-grow: 5,000 empty fetches leave nothing', async () => {
    const before = await residentMiB(kvpeer);
    await withWire(async (wire) => {
      for (let i = 0; i < 5_000; i++) await wire.send(fetchOf(`r${i}`, [], []));
      await wire.send(lookup('last', keys([0])));
      expect(await wire.answer('lookup_resp', 'last')).toMatchObject({ hits: [true] });
    });
    expect((await residentMiB(kvpeer)) - before).toBeLessThan(48);
  });

  it('fetch-after-short-prefill-waits: a fetch of more than the finished prefill stored fails at once', async () => {
    const request = await kvpeer.open({ remote_decoder: { kv_request_id: 'short' } });
    await kvpeer.storeFor(request, [910]);
    await kvpeer.finish(request);
    await withWire(async (wire) => {
      await wire.send(fetchOf('short', keys([910, 911]), [0, 1]));
      expect(await wire.answer('transfer_done', 'short')).toMatchObject({ success: false });
    });
  });

  it('duplicate-keys-never-complete: answered with failure', async () => {
    await withWire(async (wire) => {
      await wire.send(fetchOf('twice', keys([0, 0]), [0, 1]));
      expect(await wire.answer('transfer_done', 'twice')).toMatchObject({ success: false });
    });
  });

  it('any-peer-takes-parked-blocks: an empty fetch takes none; the rightful one gets them', async () => {
    const rightfulIdentity = await identityOf(secondDonor);
    const request = await kvpeer.open({ remote_decoder: { kv_request_id: 'parked' } });
    await kvpeer.storeFor(request, [920]);
    await kvpeer.finish(request);
    await withWire(async (other) => {
      await other.send(fetchOf('parked', [], []));
      await withWire(async (rightful) => {
        await rightful.send(fetchOf('parked', keys([920]), [0]));
        expect(await rightful.answer('transfer_done', 'parked')).toMatchObject({ success: true });
      }, rightfulIdentity);
    });
  });

  it('lookup-pins-whole-tier: one peer pins its share, and stores go on', async () => {
    const small = await Kvpeer.start({ logLevel: 'fatal', poolBytes: 256 * 4096 });
    const wire = await WirePeer.open(small.address);
    try {
      await small.store(range(0, 199));
      await wire.handshake(identity);
      await wire.send(lookup('r', keys(range(0, 199))));
      await wire.answer('lookup_resp', 'r');
      expect((await small.levels()).pins).toBeLessThanOrEqual(64);
      expect(await small.store(range(1000, 1031))).toMatchObject({ storedCount: 32, notStoredCount: 0 });
    } finally {
      await wire.close();
      await small.destroy();
    }
  });

  it.each([
    ['params-role-not-a-map', { remote_prefiller: 'x' }],
    [
      'params-id-unhashable',
      { remote_kv_source: { kv_request_id: ['x'], remote_host: 'h', remote_port: 1 } },
    ],
    [
      'params-id-int-kills-session',
      { remote_kv_source: { kv_request_id: 7, remote_host: 'h', remote_port: 1 } },
    ],
    ['params-bad-port', { remote_kv_source: { kv_request_id: 'r', remote_host: 'h', remote_port: 'abc' } }],
  ])('%s: refused where the request enters', async (_name, params) => {
    await expect(kvpeer.open(params)).rejects.toThrow(/KvpeerError/);
  });

  it('refused-port-is-dead-at-once: the lookup is a miss at once', async () => {
    const request = await kvpeer.open({
      remote_kv_source: { kv_request_id: 'r', remote_host: '127.0.0.1', remote_port: await freePort() },
    });
    const { hits, ms } = await kvpeer.lookup(request, [970]);
    expect(hits).toEqual([]);
    expect(ms).toBeLessThan(3_000);
    await kvpeer.finish(request);
  });

  it('restarted-peer-is-mute: a second connection of a live identity is read', async () => {
    await withWire(async (wire) => {
      const again = new Dealer({ routingId: wire.address, linger: 0 });
      again.connect(`tcp://${kvpeer.address}`);
      await again.send(Buffer.from('c0', 'hex'));
      await eventually(
        () => kvpeer.rejections(),
        (rejections) => (rejections.get('not_a_map') ?? 0) > 0,
      );
      again.close();
    });
  });
});
