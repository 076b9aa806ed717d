// Real peers that are killed, stopped, restarted and damaged: what the others see, and that nothing stays behind.

import { afterEach, expect, test } from 'vitest';

import type { RemotePeerOptions } from '../fixtures/remote-peer.js';
import { eventually, RemotePeer } from '../fixtures/remote-peer.js';
import { freePort } from '../helpers/free-port.js';

/**
 * No clock ends anything here that is only late, as all is on a busy machine. A test makes short what it waits for to
 * run out, and nothing that has to succeed in it.
 */
const PATIENT = {
  lookupMs: 60_000,
  loadMs: 60_000,
  leaseMs: 120_000,
  abortAckMs: 60_000,
  suspectedHandshakeMs: 30_000,
  heartbeatMs: 2000,
  heartbeatTimeoutMs: 60_000,
  backoffMinMs: 50,
  backoffMaxMs: 100,
} as const;
/** A peer that stands still is dead after this. */
const QUICK_DEATH = { heartbeatMs: 300, heartbeatTimeoutMs: 2_000 } as const;
const TCP = { env: { UCX_TLS: 'tcp,self' } } as const;

const peers = new Set<RemotePeer>();

async function start(options: RemotePeerOptions = {}): Promise<RemotePeer> {
  const peer = await RemotePeer.start({ ...PATIENT, ...options });
  peers.add(peer);
  return peer;
}

afterEach(async () => {
  await Promise.all([...peers].map((peer) => peer.destroy()));
  peers.clear();
});

function atRest(peer: RemotePeer, timeoutMs?: number): ReturnType<RemotePeer['stats']> {
  return eventually(
    () => peer.stats(),
    ({ pins, leases, slots }) => pins === 0 && leases === 0 && slots.writing === 0 && slots.quarantined === 0,
    timeoutMs,
  );
}

test('a consumer killed between lookup and fetch: its pins at the producer go', async () => {
  const producer = await start();
  const consumer = await start();
  await producer.call('storeFilled', 0, 50);
  const request = await consumer.open({ remote_kv_source: producer.named('killed-consumer') });
  expect(await consumer.lookup(request, 0, 50)).toHaveLength(50);
  expect((await producer.stats()).pins).toBe(50);
  await consumer.destroy();
  await atRest(producer);
  await eventually(
    () => producer.stats(),
    ({ sessions, nixlPeers }) => sessions.ready === 0 && nixlPeers === 0,
  );
});

test('a consumer that goes silent after its lookup: the lease lapses, and it gets what is still there', async () => {
  const producer = await start({ leaseMs: 1_000 });
  const consumer = await start();
  await producer.call('storeFilled', 0, 50);
  const request = await consumer.open({ remote_kv_source: producer.named('silent-consumer') });
  expect(await consumer.lookup(request, 0, 50)).toHaveLength(50);
  consumer.kill('SIGSTOP');
  await atRest(producer);
  expect(await producer.call('evict', 0, 20)).toBe(20);
  consumer.kill('SIGCONT');
  expect(await consumer.load(request, 0, 50)).toMatchObject({ present: 30, pulled: 30, mismatches: 0 });
});

test('a producer stopped between lookup and fetch: the load ends as a miss, the slots are quarantined and come back', async () => {
  const producer = await start(TCP);
  // Long enough for the load that succeeds in the end.
  const consumer = await start({ ...TCP, loadMs: 3_000, abortAckMs: 300 });
  await producer.call('storeFilled', 0, 50);
  const request = await consumer.open({ remote_kv_source: producer.named('stopped-producer') });
  expect(await consumer.lookup(request, 0, 50)).toHaveLength(50);
  producer.kill('SIGSTOP');
  const load = await consumer.load(request, 0, 50);
  expect(load.present).toBe(0);
  await eventually(
    () => consumer.stats(),
    ({ slots }) => slots.quarantined === 50,
  );
  producer.kill('SIGCONT');
  await atRest(consumer);
  await atRest(producer);
  // The blocks are still to be had.
  const again = await consumer.open({ remote_kv_source: producer.named('stopped-producer-again') });
  expect(await consumer.lookup(again, 0, 50)).toHaveLength(50);
  expect(await consumer.load(again, 0, 50)).toMatchObject({ present: 50, pulled: 50, mismatches: 0 });
});

test('a producer stopped for longer than the heartbeats allow: the session ends, and the exit of the process frees the slots', async () => {
  const producer = await start({ ...TCP, ...QUICK_DEATH });
  const consumer = await start({ ...TCP, ...QUICK_DEATH });
  await producer.call('storeFilled', 0, 20);
  const request = await consumer.open({ remote_kv_source: producer.named('stopped-then-killed') });
  await consumer.lookup(request, 0, 20);
  producer.kill('SIGSTOP');
  expect((await consumer.load(request, 0, 20)).present).toBe(0);
  await eventually(
    () => consumer.stats(),
    ({ slots, sessions }) => slots.quarantined === 20 && sessions.ready === 0,
  );
  await producer.destroy();
  await atRest(consumer);
});

test('one byte flipped in a slot of the producer is exactly one mismatch at the consumer', async () => {
  const producer = await start();
  const consumer = await start();
  await producer.call('storeFilled', 0, 50);
  await producer.call('corrupt', 17, 1234);
  const request = await consumer.open({ remote_kv_source: producer.named('flipped') });
  await consumer.lookup(request, 0, 50);
  expect(await consumer.load(request, 0, 50)).toMatchObject({ present: 50, pulled: 50, mismatches: 1 });
});

test('a producer killed during writes: the loads end as misses, nothing is torn, nothing stays behind', async () => {
  const producer = await start({ ...TCP, blockBytes: 65_536, poolBytes: 256 * 65_536 });
  const consumer = await start({ ...TCP, blockBytes: 65_536, poolBytes: 256 * 65_536 });
  await producer.call('storeFilled', 0, 60);
  const request = await consumer.open({ remote_kv_source: producer.named('killed-producer') });
  expect(await consumer.lookup(request, 0, 60)).toHaveLength(60);
  const loading = consumer.load(request, 0, 60);
  producer.kill('SIGKILL');
  const { present, mismatches } = await loading;
  expect(mismatches).toBe(0);
  expect([0, 60]).toContain(present);
  await eventually(
    () => consumer.stats(),
    ({ slots, sessions, nixlPeers }) =>
      slots.writing === 0 && slots.quarantined === 0 && sessions.ready === 0 && nixlPeers === 0,
  );
});

test('a peer restarted at the same address, five times: each run is found and pulled from', async () => {
  const consumer = await start();
  const port = await freePort();
  let producer = await start({ port });
  for (let run = 0; run < 5; run++) {
    if (run > 0) {
      await producer.destroy();
      peers.delete(producer);
      producer = await start({ port });
    }
    await producer.call('storeFilled', run * 100, 10);
    const hits = await eventually(
      async () => {
        const request = await consumer.open({
          remote_kv_source: producer.named(`restart-${run}-${Date.now()}`),
        });
        const found = await consumer.lookup(request, run * 100, 10);
        if (found.length === 10) {
          expect(await consumer.load(request, run * 100, 10)).toMatchObject({ pulled: 10, mismatches: 0 });
        }
        await consumer.call('finish', request);
        return found.length;
      },
      (count) => count === 10,
    );
    expect(hits).toBe(10);
  }
  const { sessions, nixlPeers } = await consumer.stats();
  expect({ ready: sessions.ready, nixlPeers }).toEqual({ ready: 1, nixlPeers: 1 });
}, 120_000);

test('a consumer frozen during a write: the write is stopped, the source slots can be refilled, the others are served', async () => {
  const big = {
    blockBytes: 1024 * 1024,
    poolBytes: 192 * 1024 * 1024,
    plainStopMs: 1500,
    plainAbortMs: 300,
    plainPostMs: 1000,
  };
  const producer = await start({ ...TCP, ...big, ...QUICK_DEATH });
  const frozen = await start({ ...TCP, ...big, ...QUICK_DEATH });
  const healthy = await start({ ...TCP, ...big, ...QUICK_DEATH });
  await producer.call('storeFilled', 0, 80);
  const doomed = await frozen.open({ remote_kv_source: producer.named('frozen') });
  expect(await frozen.lookup(doomed, 0, 40)).toHaveLength(40);
  frozen.load(doomed, 0, 40).catch(() => undefined);
  await eventually(
    () => producer.stats(),
    ({ served }) => served.posts > 0,
  );
  frozen.kill('SIGSTOP');
  const request = await healthy.open({ remote_kv_source: producer.named('healthy') });
  expect(await healthy.lookup(request, 40, 40)).toHaveLength(40);
  expect(await healthy.load(request, 40, 40)).toMatchObject({ pulled: 40, mismatches: 0 });
  await healthy.call('finish', request);
  await atRest(producer, 60_000);
}, 120_000);
