// What ends the quarantine of slots that a remote write may still reach, event by event.

import { describe, expect, it } from 'vitest';
import { SlotQuarantine } from '../../src/main/session/quarantine.js';
import type { RoundKey, WriterIdentity } from '../../src/main/session/roles.js';
import { RoundMemory } from '../../src/main/session/rounds.js';
import type { SlotSet } from '../../src/main/shards/shard-client.js';
import { FakeShards, packedKeys } from '../fixtures/fake-shards.js';
import { keysOf } from '../fixtures/producer-harness.js';

const SESSION = {};
const ROUND: RoundKey = { session: SESSION, kvRequestId: 'r', round: 3 };

const KVPEER: WriterIdentity = {
  address: '10.0.0.2:5710',
  incarnation: 'run-1',
  agentName: 'agent-1',
  isOnThisHost: false,
  process: undefined,
};
const PLAIN: WriterIdentity = { ...KVPEER, incarnation: undefined };
const UNKNOWN: WriterIdentity = { ...PLAIN, agentName: '', isOnThisHost: true };
const LOCAL: WriterIdentity = { ...KVPEER, isOnThisHost: true, process: { pid: 7, startTime: 70 } };

class Setup {
  nowMs = 0;
  readonly wakes: number[] = [];
  readonly dead = new Set<number>();
  readonly shards = new FakeShards({ numBlocks: 8, isAutomatic: false });
  readonly quarantine: SlotQuarantine;

  constructor(hasSameHostLane = false) {
    const ignore = (): void => undefined;
    this.quarantine = new SlotQuarantine({
      shards: this.shards,
      log: { debug: ignore, info: ignore, warn: ignore },
      now: () => this.nowMs,
      wakeAt: (timeMs) => this.wakes.push(timeMs),
      isAlive: ({ pid }) => !this.dead.has(pid),
      hasSameHostLane,
    });
  }

  reserve(...ids: number[]): SlotSet {
    let found: SlotSet | undefined;
    this.shards.reserve(packedKeys(keysOf(...ids)), (_failure, set) => {
      found = set;
    });
    this.shards.settle();
    if (!found) throw new Error('nothing was reserved');
    return found;
  }

  add(writer: WriterIdentity, round: RoundKey = ROUND): this {
    this.quarantine.add(this.reserve(1, 2), writer, round);
    this.shards.settle();
    return this;
  }

  /** Slots in quarantine once everything under way has ended. */
  get count(): number {
    this.shards.settle();
    expect(this.shards.totals().openSets).toBe(this.quarantine.entryCount);
    return this.shards.totals().quarantined;
  }
}

describe('quarantined slots', () => {
  it('are out of the index and out of use', () => {
    const setup = new Setup().add(KVPEER);
    expect(setup.count).toBe(2);
    expect(setup.quarantine).toMatchObject({ slotCount: 2, oldestMs: 0 });
    expect(setup.shards.slotOf(keysOf(1))).toBe(-1);
  });

  it('come back when their round ends, on the session that fetched it', () => {
    const setup = new Setup().add(KVPEER);
    expect(setup.quarantine.onRoundEnded({ ...ROUND, round: 4 })).toBe(false);
    expect(setup.quarantine.onRoundEnded({ ...ROUND, kvRequestId: 's' })).toBe(false);
    expect(setup.quarantine.onRoundEnded({ ...ROUND, session: {} })).toBe(false);
    expect(setup.count).toBe(2);
    expect(setup.quarantine.onRoundEnded(ROUND)).toBe(true);
    expect(setup.count).toBe(0);
    expect(setup.shards.totals().free).toBe(8);
    expect(setup.quarantine.onRoundEnded(ROUND)).toBe(false);
  });

  it.each([
    ['the same kvpeer incarnation', KVPEER, KVPEER, true],
    ['another incarnation at the address', KVPEER, { ...KVPEER, incarnation: 'run-2' }, true],
    ['a plain peer where a kvpeer was', KVPEER, PLAIN, true],
    ['a kvpeer where a plain peer was', PLAIN, KVPEER, true],
    ['the same plain peer, which promises nothing', PLAIN, PLAIN, false],
    ['a plain peer with another agent: another process', PLAIN, { ...PLAIN, agentName: 'agent-2' }, true],
    ['a plain peer where it is not known who writes', UNKNOWN, PLAIN, false],
    ['a kvpeer where it is not known who writes', UNKNOWN, KVPEER, true],
    ['a kvpeer at another address', KVPEER, { ...KVPEER, address: '10.0.0.2:5711' }, false],
  ] as const)('and the connect of %s', (_who, writer, connecting, isOver) => {
    const setup = new Setup().add(writer);
    setup.quarantine.onConnect(connecting);
    expect(setup.count).toBe(isOver ? 0 : 2);
  });

  it('come back when their process on this host has gone, looked at twice a second', () => {
    const setup = new Setup().add(LOCAL);
    expect(setup.wakes).toEqual([500]);
    setup.quarantine.tick(500);
    expect(setup.count).toBe(2);
    expect(setup.wakes).toEqual([500, 1_000]);
    setup.dead.add(7);
    setup.quarantine.tick(999);
    expect(setup.count).toBe(2);
    setup.quarantine.tick(1_000);
    expect(setup.count).toBe(0);
  });

  it('of a process that cannot be seen stay', () => {
    const setup = new Setup().add(KVPEER);
    setup.dead.add(7);
    setup.quarantine.tick(500);
    expect(setup.count).toBe(2);
  });

  it('come back with the recycling of the receive agent', () => {
    const setup = new Setup().add(KVPEER).add(LOCAL);
    expect(setup.quarantine.recyclable()).toEqual({ slotCount: 4, oldestMs: 0 });
    setup.quarantine.onRecycled();
    expect(setup.count).toBe(0);
  });

  it('stay through a recycling where a stopped process of this host may copy into them', () => {
    const setup = new Setup(true).add(LOCAL);
    setup.nowMs = 5;
    setup.add(KVPEER);
    expect(setup.quarantine.recyclable()).toEqual({ slotCount: 2, oldestMs: 5 });
    setup.quarantine.onRecycled();
    expect(setup.count).toBe(2);
    setup.dead.add(7);
    setup.quarantine.tick(500);
    expect(setup.count).toBe(0);
  });

  it('do not miss an event that comes while they are on their way in', () => {
    const setup = new Setup();
    setup.quarantine.add(setup.reserve(1), KVPEER, ROUND);
    setup.quarantine.onConnect(KVPEER);
    expect(setup.quarantine.entryCount).toBe(1);
    expect(setup.count).toBe(0);
    expect(setup.shards.totals().free).toBe(8);
  });

  it('that could not go in are given back all the same', () => {
    const setup = new Setup();
    setup.shards.failNext('abandon', { code: 'KVPEER_WORKER_LOST' });
    setup.quarantine.add(setup.reserve(1), KVPEER, ROUND);
    setup.shards.settle();
    expect(setup.shards.totals().writing).toBe(1);
    setup.quarantine.onRoundEnded(ROUND);
    setup.shards.settle();
    expect(setup.shards.totals()).toMatchObject({ free: 8, openSets: 0 });
  });

  it('are freed once, however many events come', () => {
    const setup = new Setup().add(KVPEER);
    setup.shards.hold('unquarantine');
    setup.quarantine.onRoundEnded(ROUND);
    setup.quarantine.onConnect(KVPEER);
    setup.quarantine.onRecycled();
    setup.shards.resume('unquarantine');
    expect(setup.count).toBe(0);
    expect(setup.shards.asked.filter((operation) => operation === 'unquarantine')).toHaveLength(1);
  });
});

describe('round numbers', () => {
  it('are remembered per address and id for a time', () => {
    const rounds = new RoundMemory(60_000);
    rounds.remember('a:1', 'r', 5, 0);
    rounds.remember('a:1', 's', 1, 10);
    expect(rounds.recall('a:1', 'r')).toBe(5);
    expect(rounds.recall('b:1', 'r')).toBe(0);
    rounds.tick(60_000);
    expect(rounds.recall('a:1', 'r')).toBe(0);
    expect(rounds.recall('a:1', 's')).toBe(1);
  });

  it('of ids beyond a bound are forgotten, oldest use first', () => {
    const rounds = new RoundMemory(60_000, 2);
    rounds.remember('a:1', 'r', 1, 0);
    rounds.remember('a:1', 's', 1, 1);
    rounds.remember('a:1', 'r', 2, 2);
    rounds.remember('a:1', 't', 1, 3);
    expect(rounds.size).toBe(2);
    expect(rounds.recall('a:1', 's')).toBe(0);
    expect(rounds.recall('a:1', 'r')).toBe(2);
  });
});
