// The fake that session tests stand on keeps the promises of the shard client's contract.

import { describe, expect, it } from 'vitest';
import { Outcome, PositionStatus } from '../../src/shared/operations.js';
import type { Failure, SlotSet } from '../../src/main/shards/shard-client.js';
import { FakeShards, packedKeys } from '../fixtures/fake-shards.js';

function keys(...ids: number[]) {
  const packed = new Uint8Array(ids.length * 36);
  ids.forEach((id, i) => packed.fill(id, i * 36, (i + 1) * 36));
  return packedKeys(packed);
}

function manual(numBlocks = 8): FakeShards {
  return new FakeShards({ numBlocks, isAutomatic: false, serveAutomatically: false });
}

function reserve(fake: FakeShards, ...ids: number[]): SlotSet {
  let got: SlotSet | undefined;
  fake.reserve(keys(...ids), (_failure, set) => (got = set));
  fake.settle();
  if (got === undefined) throw new Error('no set');
  return got;
}

function match(fake: FakeShards, ...ids: number[]): SlotSet {
  let got: SlotSet | undefined;
  fake.match(keys(...ids), {}, (_failure, set) => (got = set));
  fake.settle();
  if (got === undefined) throw new Error('no set');
  return got;
}

describe('the fake shard client', () => {
  it('answers a reserve per key: reserved, pinned when it is there, pending when another writes it', () => {
    const fake = manual();
    fake.put(keys(1));
    const first = reserve(fake, 2);
    const second = reserve(fake, 1, 2, 3, 3);
    expect([...second.statuses]).toEqual([
      PositionStatus.Pinned,
      PositionStatus.Pending,
      PositionStatus.Reserved,
      PositionStatus.Pending,
    ]);
    expect(second.slots[1]).toBe(first.slots[0]);
    expect(fake.isStillWriting(first.slots[0], first.generations[0])).toBe(true);
  });

  it('makes a block visible only with publish and keeps pinned blocks from eviction', () => {
    const fake = manual(2);
    const set = reserve(fake, 1, 2);
    expect(match(fake, 1).pendingCount).toBe(1);
    const settled: SlotSet[] = [];
    fake.onSettled = (s) => settled.push(s);
    fake.publish(set, { keepPins: true }, () => undefined);
    fake.settle();
    expect(settled).toEqual([set]);
    expect(set.pinnedCount).toBe(2);
    expect([...reserve(fake, 3).statuses]).toEqual([PositionStatus.Full]);
    fake.release(set);
    expect([...reserve(fake, 3).statuses]).toEqual([PositionStatus.Reserved]);
    expect(fake.totals().pins).toBe(0);
  });

  it('keeps quarantined slots out of use until unquarantine', () => {
    const fake = manual(1);
    const set = reserve(fake, 1);
    fake.abandon(set, { quarantine: true }, () => undefined);
    fake.settle();
    expect(fake.totals().quarantined).toBe(1);
    expect([...reserve(fake, 2).statuses]).toEqual([PositionStatus.Full]);
    expect(() => {
      fake.release(set);
    }).toThrow(/quarantined/);
    fake.unquarantine(set, () => undefined);
    fake.settle();
    expect(fake.totals().free).toBe(1);
  });

  it('lets a test end serves, and a hard stop ends them before its own completion', () => {
    const fake = manual();
    fake.put(keys(1));
    const lease = match(fake, 1);
    let peer = { peerId: -1, numBlocks: 0 };
    const request = { agentMetadata: new Uint8Array(3), baseAddr: 0, numBlocks: 4, hasScratch: false };
    fake.addPeer(request, (_failure, added) => {
      if (added !== undefined) peer = added;
    });
    fake.settle();
    const events: string[] = [];
    const note = (failure: Failure | undefined): void => {
      events.push(failure?.code === 'outcome' ? `outcome ${failure.outcome}` : 'ok');
    };
    const ask = (id: number, index: number): void => {
      const indexes = Int32Array.of(index);
      fake.serve({ peer, indexes, byLease: { keys: keys(id), leases: [lease] } }, note);
      fake.settle();
    };
    ask(1, 4);
    ask(2, 0);
    ask(1, 0);
    expect(events).toEqual([`outcome ${Outcome.BadDestination}`, `outcome ${Outcome.NotInLease}`]);
    expect(fake.serves).toHaveLength(1);
    fake.hardStop(peer, () => events.push('stopped'));
    fake.settle();
    expect(events.slice(2)).toEqual([`outcome ${Outcome.Stopped}`, 'stopped']);
  });
});
