// A running peer's KV events over ZeroMQ: golden bytes live and replayed, restarts of the numbering, late subscribers.

import { setImmediate as nextTurn } from 'node:timers/promises';

import { afterEach, describe, expect, it } from 'vitest';
import { Subscriber } from 'zeromq';

import type { PeerOptions } from '../../src/main/options.js';
import type { Peer } from '../../src/main/peer.js';
import { EventSubscriber, replayFrom, type EventMessage } from '../fixtures/event-subscriber.js';
import { startPeer } from '../fixtures/local-peers.js';

const BLOCK_BYTES = 4096;
const STORED =
  'ab426c6f636b53746f72656492c40800000000000000a1c40800000000000000a2c098000102030405060704c0a3435055c0c0';
const REMOVED = 'ac426c6f636b52656d6f76656491c40800000000000000a2a343505500';
const CLEARED = 'b0416c6c426c6f636b73436c656172656400';

const open: EventSubscriber[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((subscriber) => subscriber.close()));
});

function portsOf(peer: Peer): { readonly port: number; readonly replayPort: number } {
  const { port, replayPort } = peer.kvEvents ?? {};
  return { port: port ?? 0, replayPort: replayPort ?? 0 };
}

function subscribe(port: number): EventSubscriber {
  const subscriber = new EventSubscriber(port);
  open.push(subscriber);
  return subscriber;
}

/** Keys of 8-byte hashes, group 0. */
function keysOf(...ids: readonly number[]): Buffer {
  return Buffer.concat(ids.map((id) => Buffer.from([0, 0, 0, 0, 0, 0, 0, id, 0, 0, 0, 0])));
}

const EVENTS = {
  dataPlane: 'none',
  keyBytes: 12,
  kvEventsPort: 0,
  kvEventsReplayPort: 0,
  kvEventsModel: 'm',
  kvEventsPod: '10.0.0.7:8000',
  // The numbering begins again only in the tests of that: not by time, and not for how much a fast machine publishes.
  kvEventsSettleMs: 3_600_000,
  kvEventsResubscribeMs: 3_600_000,
  kvEventsBufferBatches: 10_000_000,
  kvEventsBufferBytes: 4 * 1024 ** 3,
} as const satisfies PeerOptions;

/** A batch without its time, which stands in bytes 2 to 9. */
function withoutTime({ payload }: EventMessage): string {
  return payload.toString('hex', 0, 2) + payload.toString('hex', 10);
}

/** A subscription takes a moment to arrive: blocks come and go until the subscriber has heard of one. */
async function heard(peer: Peer, subscriber: EventSubscriber): Promise<void> {
  peer.describe(keysOf(1), { tokenIds: [9, 9, 9, 9], tokensPerBlock: 4 });
  while (subscriber.messages.length === 0) {
    await peer.store(keysOf(1), new Uint8Array(BLOCK_BYTES));
    await nextTurn();
    await peer.evict(keysOf(1));
    await nextTurn();
  }
}

describe('KV events of a running peer', () => {
  it('have the golden bytes live, and the same bytes replayed', async () => {
    const peer = await startPeer(EVENTS);
    const { port, replayPort } = portsOf(peer);
    const subscriber = subscribe(port);
    await heard(peer, subscriber);

    peer.describe(keysOf(0xa1, 0xa2), { tokenIds: [0, 1, 2, 3, 4, 5, 6, 7], tokensPerBlock: 4 });
    await peer.store(keysOf(0xa1, 0xa2), new Uint8Array(2 * BLOCK_BYTES));
    await subscriber.until((messages) => messages.some((message) => withoutTime(message).includes(STORED)));
    await peer.evict(keysOf(0xa2));
    await subscriber.until((messages) => messages.some((message) => withoutTime(message).endsWith(REMOVED)));

    const live = subscriber.messages;
    expect(withoutTime(live[live.length - 2])).toBe(`93cb9199${STORED}00`);
    expect(withoutTime(live[live.length - 1])).toBe(`93cb9193${REMOVED}`);
    const replayed = await replayFrom(replayPort, 0);
    expect(replayed[0].sequence).toBe(0n);
    expect(withoutTime(replayed[0])).toBe(`93cb9191${CLEARED}`);
    expect(replayed.map(({ sequence }) => Number(sequence))).toEqual(replayed.map((_, i) => i));
    expect(replayed.slice(-live.length)).toEqual(live);
    expect(new Set(replayed.map(({ topic }) => topic))).toEqual(new Set(['kv@10.0.0.7:8000@m']));
    expect(await replayFrom(replayPort, replayed.length - 1)).toEqual(replayed.slice(-1));
    expect(await replayFrom(replayPort, replayed.length)).toEqual([]);
  });

  it('have the map form by option', async () => {
    const peer = await startPeer({ ...EVENTS, kvEventsForm: 'map' });
    const { replayPort } = portsOf(peer);
    const [cleared] = await replayFrom(replayPort, 0);
    expect(withoutTime(cleared)).toBe('93cb9181a474797065b0416c6c426c6f636b73436c656172656400');
  });

  it('begin again for a late subscriber where there is no replay', async () => {
    const peer = await startPeer({ ...EVENTS, kvEventsReplayPort: 'off', kvEventsResubscribeMs: 1 });
    peer.describe(keysOf(0xa1, 0xa2), { tokenIds: [0, 1, 2, 3, 4, 5, 6, 7], tokensPerBlock: 4 });
    await peer.store(keysOf(0xa1, 0xa2), new Uint8Array(2 * BLOCK_BYTES));
    for (const subscriber of [subscribe(portsOf(peer).port), subscribe(portsOf(peer).port)]) {
      const first = (messages: readonly EventMessage[]): number =>
        messages.findIndex(({ sequence }) => sequence === 0n);
      await subscriber.until((messages) => {
        const at = first(messages);
        return at >= 0 && messages.slice(at).some((message) => withoutTime(message).includes(STORED));
      });
      const at = first(subscriber.messages);
      expect(withoutTime(subscriber.messages[at])).toBe(`93cb9191${CLEARED}`);
    }
  });

  it('begin again for a late subscriber that does not ask for a replay, and not for one that does', async () => {
    const peer = await startPeer({ ...EVENTS, kvEventsResubscribeMs: 3_000 });
    const { port, replayPort } = portsOf(peer);
    peer.describe(keysOf(0xa1, 0xa2), { tokenIds: [0, 1, 2, 3, 4, 5, 6, 7], tokensPerBlock: 4 });
    await peer.store(keysOf(0xa1, 0xa2), new Uint8Array(2 * BLOCK_BYTES));
    const asking = subscribe(port);
    await replayFrom(replayPort, 0);
    await heard(peer, asking);
    const restarts = async (): Promise<string | undefined> =>
      /kvpeer_kv_events_restarts_total (\d+)/.exec(await peer.metrics.metrics())?.[1];
    // Traffic for longer than the time in which subscriptions and requests are compared.
    const end = performance.now() + 4_500;
    while (performance.now() < end) {
      await peer.store(keysOf(1), new Uint8Array(BLOCK_BYTES));
      await peer.evict(keysOf(1));
      await nextTurn();
    }
    expect(await restarts()).toBe('0');
    const late = subscribe(port);
    await late.until((messages) => messages.some((message) => withoutTime(message).includes(STORED)));
    expect(withoutTime(late.messages.find(({ sequence }) => sequence === 0n) ?? late.messages[0])).toBe(
      `93cb9191${CLEARED}`,
    );
    expect(await restarts()).toBe('1');
  });

  it('do not begin again for who subscribes to something else', async () => {
    const peer = await startPeer({ ...EVENTS, kvEventsReplayPort: 'off', kvEventsResubscribeMs: 1 });
    const other = new Subscriber({ linger: 0 });
    other.connect(`tcp://127.0.0.1:${portsOf(peer).port}`);
    other.subscribe('kv@10.0.0.8', 'kv@10.0.0.7:8000@m and more', 'x');
    const restarts = async (): Promise<string | undefined> =>
      /kvpeer_kv_events_restarts_total (\d+)/.exec(await peer.metrics.metrics())?.[1];
    // A subscriber of ours comes after it, and is the only one that is told.
    const ours = subscribe(portsOf(peer).port);
    await ours.until((messages) => messages.some(({ sequence }) => sequence === 0n));
    expect(await restarts()).toBe('1');
    other.close();
  });

  it('step back to 0 at the bound of the buffer, and a replay from 0 then has what is here', async () => {
    const peer = await startPeer({ ...EVENTS, kvEventsBufferBatches: 16 });
    const { port, replayPort } = portsOf(peer);
    const subscriber = subscribe(port);
    await heard(peer, subscriber);
    peer.describe(keysOf(0xa1, 0xa2), { tokenIds: [0, 1, 2, 3, 4, 5, 6, 7], tokensPerBlock: 4 });
    await peer.store(keysOf(0xa1, 0xa2), new Uint8Array(2 * BLOCK_BYTES));
    const before = subscriber.messages.length;
    const hasSteppedBack = (messages: readonly EventMessage[]): boolean =>
      messages.slice(before).some(({ sequence }) => sequence === 0n);
    while (!hasSteppedBack(subscriber.messages)) {
      await peer.store(keysOf(1), new Uint8Array(BLOCK_BYTES));
      await nextTurn();
      await peer.evict(keysOf(1));
      await nextTurn();
    }
    const replayed = await replayFrom(replayPort, 0);
    expect(replayed.slice(0, 2).map(withoutTime).join('|')).toContain(CLEARED);
    expect(replayed.map(withoutTime).join('|')).toContain(STORED);
  });

  it('say that everything is gone when the peer closes', async () => {
    const peer = await startPeer(EVENTS);
    const subscriber = subscribe(portsOf(peer).port);
    await heard(peer, subscriber);
    await peer.close();
    await subscriber.until((messages) => withoutTime(messages[messages.length - 1]) === `93cb9191${CLEARED}`);
  });

  it('are counted in the metrics', async () => {
    const peer = await startPeer(EVENTS);
    await replayFrom(portsOf(peer).replayPort, 0);
    const text = await peer.metrics.metrics();
    expect(text).toContain('kvpeer_kv_events_replays_total 1');
    expect(text).toContain('kvpeer_kv_events_buffer{unit="batches"} 1');
  });

  it.each([
    ['a token below zero', { tokenIds: [-1, 1, 2, 3] }],
    ['a token of more than 32 bits', { tokenIds: [2 ** 32, 1, 2, 3] }],
    ['a token that is no whole number', { tokenIds: [0.5, 1, 2, 3] }],
    ['too few tokens', { tokenIds: [1, 2, 3] }],
    ['no tokens per block', { tokensPerBlock: 0 }],
    ['a parent that is no key', { parent: new Uint8Array(3) }],
    ['an extra key that is no text', { extraKeys: [[7 as unknown as string]] }],
    ['extra keys that are no list', { extraKeys: {} as unknown as [] }],
    ['extra keys of a block that are no list', { extraKeys: [7 as unknown as []] }],
    ['a name of an adapter that is no text', { loraName: 5 as unknown as string }],
    ['a place that is no number', { extraKeys: [[['image', NaN]]] }],
  ] as const)('are refused a description with %s, where it is told and not later', async (_, wrong) => {
    const peer = await startPeer(EVENTS);
    const description = { tokenIds: [1, 2, 3, 4], tokensPerBlock: 4, ...wrong };
    expect(() => {
      peer.describe(keysOf(1), description);
    }).toThrow(expect.objectContaining({ code: 'KVPEER_INVALID_ARGUMENT' }) as Error);
    expect(() => {
      peer.describe(keysOf(1).subarray(1), { tokenIds: [1, 2, 3, 4], tokensPerBlock: 4 });
    }).toThrow(/whole keys/);
  });

  it('are not published, and cost nothing, without the option', async () => {
    const peer = await startPeer({ dataPlane: 'none' });
    expect(peer.kvEvents).toBeUndefined();
    peer.describe(new Uint8Array(36), { tokenIds: [1], tokensPerBlock: 1 });
  });

  it('cannot be published on a port that is taken: the error names the option', async () => {
    const peer = await startPeer(EVENTS);
    await expect(startPeer({ ...EVENTS, kvEventsPort: portsOf(peer).port })).rejects.toMatchObject({
      code: 'KVPEER_BIND',
      message: expect.stringContaining('--kv-events-port') as string,
    });
  });
});
