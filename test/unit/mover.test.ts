// The mover's queues and its hard stop, with requests that end when the test says so.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { ControlHandle, PoolHandle } from '../../native/index.js';
import type { SubmissionWatch } from '../../src/workers/mover.js';
import { MAX_OPEN_REQUESTS_PER_PEER, Mover, RETIRED_MS } from '../../src/workers/mover.js';
import { BLOCKS_PER_REQUEST, ScriptedSender } from '../fixtures/scripted-sender.js';

const BLOCK_BYTES = 4096;

function setUp(submissions?: SubmissionWatch) {
  const sender = new ScriptedSender();
  const log: string[] = [];
  const clock = { ms: 0 };
  const mover = new Mover({
    nixl: sender,
    control: 1 as ControlHandle,
    pool: 2 as PoolHandle,
    numBlocks: 1000,
    blockBytes: BLOCK_BYTES,
    submissions,
    now: () => clock.ms,
    events: {
      onServeEnd: (opNumber, status, bytes, cut) =>
        log.push(`${opNumber} ${status} ${bytes / BLOCK_BYTES} ${cut}`),
      onHardStopped: (peerId) => log.push(`stopped ${peerId}`),
      onPeerRemoved: (peerId) => log.push(`removed ${peerId}`),
      onTrouble: (text) => log.push(text),
    },
  });
  const addPeer = (peerId: number, scratch = false) =>
    mover.addPeer(peerId, Uint8Array.of(peerId), 0x10000, 1000, { scratch });
  const serve = (opNumber: number, peerId: number, blockCount: number) => {
    sender.prepared.push(Array.from({ length: blockCount }, (_, i) => [i, i]));
    return mover.serve({
      opNumber,
      peerId,
      slotsOffset: 0,
      indexesOffset: 0,
      statusesOffset: 0,
      count: blockCount,
    });
  };
  const pollUntilIdle = () => {
    while (mover.poll());
  };
  const endAll = (peerId: number) => {
    for (const request of sender.open()) if (request.peer === peerId) sender.end(request);
    pollUntilIdle();
  };
  return { sender, log, clock, mover, addPeer, serve, pollUntilIdle, endAll };
}

describe('serving', () => {
  test('a serve ends once, when every block has been written', () => {
    const { log, addPeer, serve, pollUntilIdle, endAll } = setUp();
    addPeer(1);
    expect(serve(10, 1, 10)).toBe('accepted');
    pollUntilIdle();
    expect(log).toEqual([]);
    endAll(1);
    expect(log).toEqual(['10 done 10 0']);
  });

  test('writes that end inside the post need no poll', () => {
    const { sender, log, mover, addPeer, serve, pollUntilIdle } = setUp();
    addPeer(1);
    sender.instant.add(1);
    serve(10, 1, 3 * BLOCKS_PER_REQUEST);
    pollUntilIdle();
    expect(log).toEqual(['10 done 12 0']);
    expect(mover.openRequestCount).toBe(0);
  });

  test('a serve without blocks ends at once', () => {
    const { log, addPeer, serve } = setUp();
    addPeer(1);
    serve(10, 1, 0);
    expect(log).toEqual(['10 done 0 0']);
  });

  test('one poll posts one request, so that the ring is looked at in between', () => {
    const { sender, mover, addPeer, serve } = setUp();
    addPeer(1);
    serve(10, 1, 20);
    mover.poll();
    expect(sender.posted).toHaveLength(1);
  });

  describe('when the ring is watched', () => {
    const watched = { tailOffset: 64, emptyTail: 7 };

    test('copies that end at once follow each other in one poll', () => {
      const { sender, log, mover, addPeer, serve } = setUp(watched);
      addPeer(1);
      sender.instant.add(1);
      sender.submissionTail = () => 7;
      serve(10, 1, 3 * BLOCKS_PER_REQUEST + 1);
      mover.poll();
      expect(log).toEqual(['10 done 13 0']);
      expect(mover.counters.postedRequestCount).toBe(4);
    });

    test('a submission ends the row, and the next poll goes on behind it', () => {
      const { sender, log, mover, addPeer, serve } = setUp(watched);
      addPeer(1);
      sender.instant.add(1);
      sender.submissionTail = () => (sender.posted.length < 2 ? 7 : 8);
      serve(10, 1, 4 * BLOCKS_PER_REQUEST);
      mover.poll();
      expect(sender.posted).toHaveLength(2);
      sender.submissionTail = () => 7;
      mover.poll();
      expect(log).toEqual(['10 done 16 0']);
      expect(sender.posted.flatMap(({ pairs }) => pairs.map(([local]) => local))).toEqual(
        Array.from({ length: 16 }, (_, i) => i),
      );
    });

    test('a write that does not end at once ends the row', () => {
      const { sender, mover, addPeer, serve } = setUp(watched);
      addPeer(1);
      sender.submissionTail = () => 7;
      serve(10, 1, 3 * BLOCKS_PER_REQUEST);
      mover.poll();
      expect(sender.posted).toHaveLength(1);
      expect(mover.openRequestCount).toBe(1);
    });

    test('peers take turns all the same', () => {
      const { sender, addPeer, serve, pollUntilIdle } = setUp(watched);
      addPeer(1);
      addPeer(2);
      sender.instant.add(1).add(2);
      sender.submissionTail = () => 7;
      serve(10, 1, 8);
      serve(20, 2, 8);
      pollUntilIdle();
      expect(sender.posted.map(({ peer }) => peer)).toEqual([1, 2, 1, 2]);
    });

    test('what was copied before a request failed is counted', () => {
      const { sender, log, mover, addPeer, serve } = setUp(watched);
      addPeer(1);
      sender.instant.add(1);
      sender.submissionTail = () => {
        sender.dead.add(1);
        return 7;
      };
      serve(10, 1, 3 * BLOCKS_PER_REQUEST);
      mover.poll();
      expect(log.at(-1)).toBe('10 failed 4 0');
    });
  });

  test('peers take turns, and each has a bounded number of requests in flight', () => {
    const { sender, addPeer, serve, pollUntilIdle, endAll } = setUp();
    addPeer(1);
    addPeer(2);
    serve(10, 1, 100);
    serve(20, 2, 100);
    pollUntilIdle();
    expect(sender.posted.map((request) => request.peer)).toEqual([1, 2, 1, 2, 1, 2, 1, 2]);
    expect(sender.open()).toHaveLength(2 * MAX_OPEN_REQUESTS_PER_PEER);
    endAll(1);
    expect(sender.open().filter((request) => request.peer === 1)).toHaveLength(MAX_OPEN_REQUESTS_PER_PEER);
  });

  test('a frozen peer does not hold up the others of its agent', () => {
    const { sender, log, addPeer, serve, pollUntilIdle } = setUp();
    addPeer(1);
    addPeer(2);
    sender.instant.add(2);
    serve(10, 1, 100);
    serve(20, 2, 100);
    pollUntilIdle();
    expect(log).toEqual(['20 done 100 0']);
  });

  test('a serve to an unknown peer is refused', () => {
    const { serve, log } = setUp();
    expect(serve(10, 7, 1)).toBe('unknownPeer');
    expect(log).toEqual([]);
  });

  test('the age of the oldest open request is told', () => {
    const { mover, clock, addPeer, serve, endAll } = setUp();
    addPeer(1);
    expect(mover.oldestOpenAgeMs).toBe(0);
    clock.ms = 100;
    serve(10, 1, 8);
    mover.poll();
    clock.ms = 150;
    mover.poll();
    clock.ms = 170;
    expect(mover.oldestOpenAgeMs).toBe(70);
    endAll(1);
    expect(mover.oldestOpenAgeMs).toBe(0);
  });
});

describe('cancelling', () => {
  test('posted parts run to their end, unposted ones are dropped', () => {
    const { mover, log, addPeer, serve, endAll } = setUp();
    addPeer(1);
    serve(10, 1, 12);
    mover.poll();
    mover.cancelUnposted(10);
    expect(log).toEqual([]);
    endAll(1);
    expect(log).toEqual(['10 cancelled 4 0']);
  });

  test('a serve of which nothing is posted ends at once', () => {
    const { mover, log, addPeer, serve } = setUp();
    addPeer(1);
    serve(10, 1, 12);
    mover.cancelUnposted(10);
    expect(log).toEqual(['10 cancelled 0 0']);
  });

  test('a serve that is posted completely ends as done', () => {
    const { mover, log, addPeer, serve, endAll } = setUp();
    addPeer(1);
    serve(10, 1, 4);
    mover.poll();
    mover.cancelUnposted(10);
    endAll(1);
    expect(log).toEqual(['10 done 4 0']);
  });

  test('an ended or unknown serve is left alone', () => {
    const { mover, log } = setUp();
    mover.cancelUnposted(99);
    expect(log).toEqual([]);
  });
});

describe('a peer that is gone', () => {
  test('fails its serves once each, and no one else', () => {
    const { sender, log, addPeer, serve, pollUntilIdle, endAll } = setUp();
    addPeer(1);
    addPeer(2);
    serve(10, 1, 100);
    serve(11, 1, 4);
    serve(20, 2, 4);
    pollUntilIdle();
    for (const request of sender.open()) if (request.peer === 1) sender.end(request, -2);
    pollUntilIdle();
    endAll(2);
    expect(log).toEqual([
      'a write to peer 1 failed: status -2',
      '11 failed 0 0',
      '10 failed 0 0',
      '20 done 4 0',
    ]);
  });

  test('fails later serves at once until it is added again', () => {
    const { sender, mover, log, addPeer, serve, pollUntilIdle, endAll } = setUp();
    addPeer(1);
    sender.dead.add(1);
    serve(10, 1, 4);
    pollUntilIdle();
    serve(11, 1, 4);
    expect(log).toEqual(['a write to peer 1 failed: status -2', '10 failed 0 0', '11 failed 0 0']);
    sender.dead.clear();
    expect(mover.removePeer(1)).toBe('removed');
    addPeer(1);
    serve(12, 1, 4);
    pollUntilIdle();
    endAll(1);
    expect(log.at(-1)).toBe('12 done 4 0');
  });

  test('with refused metadata is not added', () => {
    const { mover } = setUp();
    const result = mover.addPeer(1, Uint8Array.of(0), 0, 1, { scratch: false });
    expect(result).toEqual({ status: 'refused', reason: 'NIXL refused the agent metadata' });
    expect(mover.peerCount).toBe(0);
  });

  test('whose first write fails is not added', () => {
    const { sender, mover, addPeer } = setUp();
    sender.dead.add(1);
    expect(addPeer(1, true)).toEqual({ status: 'refused', reason: 'the first write to it failed' });
    expect(mover.peerCount).toBe(0);
    sender.dead.clear();
    expect(addPeer(1, true)).toEqual({ status: 'added' });
  });
});

describe('removing a peer', () => {
  test('waits for its posted requests and drops the rest', () => {
    const { mover, log, addPeer, serve, endAll } = setUp();
    addPeer(1);
    serve(10, 1, 12);
    mover.poll();
    expect(mover.removePeer(1)).toBe('waiting');
    expect(serve(11, 1, 1)).toBe('unknownPeer');
    endAll(1);
    expect(log).toEqual(['10 cancelled 4 0', 'removed 1']);
    expect(addPeer(1)).toEqual({ status: 'added' });
  });

  test('waits for the warm-up of its connection', () => {
    const { mover, log, addPeer, endAll } = setUp();
    addPeer(1, true);
    expect(mover.removePeer(1)).toBe('waiting');
    endAll(1);
    expect(log).toEqual(['removed 1']);
  });

  test('is done at once without open requests, and for an unknown peer', () => {
    const { mover, log, addPeer } = setUp();
    addPeer(1);
    expect(mover.removePeer(1)).toBe('removed');
    expect(mover.removePeer(1)).toBe('removed');
    expect(log).toEqual([]);
  });
});

describe('the hard stop', () => {
  test('without a write in flight keeps the agent', () => {
    const { sender, mover, log, addPeer, serve } = setUp();
    addPeer(1);
    serve(10, 1, 4);
    mover.hardStop(1);
    expect(log).toEqual(['10 stopped 0 0', 'stopped 1']);
    expect(sender.destroyedAgents).toEqual([]);
  });

  test('of the only busy peer destroys the agent at once', () => {
    const { sender, mover, log, addPeer, serve, pollUntilIdle } = setUp();
    addPeer(1);
    serve(10, 1, 100);
    pollUntilIdle();
    mover.hardStop(1);
    expect(sender.destroyedAgents).toEqual([1]);
    expect(log).toEqual(['10 stopped 0 4', 'stopped 1']);
  });

  test('lets writes to healthy peers end on the old agent, while new ones go to a new agent', () => {
    const { sender, clock, mover, log, addPeer, serve, pollUntilIdle, endAll } = setUp();
    addPeer(1);
    addPeer(2);
    serve(10, 1, 4);
    serve(20, 2, 4);
    pollUntilIdle();
    mover.hardStop(1);
    serve(21, 2, 4);
    clock.ms = RETIRED_MS - 1;
    pollUntilIdle();
    expect(sender.posted.map(({ agent, peer }) => `${agent}:${peer}`)).toEqual(['1:1', '1:2', '2:2']);
    expect(sender.destroyedAgents).toEqual([]);
    endAll(2);
    expect(sender.destroyedAgents).toEqual([1]);
    expect(log).toEqual(['20 done 4 0', '21 done 4 0', '10 stopped 0 1', 'stopped 1']);
    expect(mover.counters).toMatchObject({
      cutRequestCount: 1,
      repostedRequestCount: 0,
      retiredAgentCount: 1,
    });
  });

  test('cuts a healthy write after a second and posts it once more on the new agent', () => {
    const { sender, clock, mover, log, addPeer, serve, pollUntilIdle, endAll } = setUp();
    addPeer(1);
    addPeer(2);
    serve(10, 1, 4);
    serve(20, 2, 6);
    pollUntilIdle();
    mover.hardStop(1);
    clock.ms = RETIRED_MS;
    pollUntilIdle();
    expect(sender.destroyedAgents).toEqual([1]);
    const again = sender.open();
    expect(again.map(({ agent, pairs }) => [agent, pairs.length])).toEqual([
      [2, 4],
      [2, 2],
    ]);
    endAll(2);
    expect(log).toEqual(['10 stopped 0 1', 'stopped 1', '20 done 6 2']);
    expect(mover.counters.repostedRequestCount).toBe(2);
  });

  test('fails a healthy write that is cut a second time', () => {
    const { clock, mover, log, addPeer, serve, pollUntilIdle } = setUp();
    for (const peerId of [1, 2, 3]) addPeer(peerId);
    serve(10, 1, 4);
    serve(20, 2, 4);
    pollUntilIdle();
    mover.hardStop(1);
    clock.ms += RETIRED_MS;
    pollUntilIdle();
    serve(30, 3, 4);
    pollUntilIdle();
    mover.hardStop(3);
    clock.ms += RETIRED_MS;
    pollUntilIdle();
    expect(log).toContain('20 failed 0 2');
    expect(mover.openRequestCount).toBe(0);
  });

  test('does not post a cut write again when its serve was cancelled', () => {
    const { sender, clock, mover, log, addPeer, serve, pollUntilIdle } = setUp();
    addPeer(1);
    addPeer(2);
    serve(10, 1, 4);
    serve(20, 2, 100);
    pollUntilIdle();
    mover.cancelUnposted(20);
    mover.hardStop(1);
    clock.ms = RETIRED_MS;
    pollUntilIdle();
    expect(log).toContain('20 failed 0 4');
    expect(sender.open()).toEqual([]);
  });

  test('ends early when the stopped peer wakes up and its writes end', () => {
    const { sender, mover, log, addPeer, serve, pollUntilIdle, endAll } = setUp();
    addPeer(1);
    addPeer(2);
    serve(10, 1, 4);
    serve(20, 2, 4);
    pollUntilIdle();
    mover.hardStop(1);
    endAll(1);
    expect(log).toEqual(['10 done 4 0', 'stopped 1']);
    endAll(2);
    expect(sender.destroyedAgents).toEqual([1]);
    expect(mover.counters.cutRequestCount).toBe(0);
  });

  test('stops serves that come while it is under way', () => {
    const { mover, log, addPeer, serve, pollUntilIdle } = setUp();
    addPeer(1);
    addPeer(2);
    serve(10, 1, 4);
    serve(20, 2, 4);
    pollUntilIdle();
    mover.hardStop(1);
    serve(11, 1, 4);
    expect(log).toEqual(['11 stopped 0 0']);
  });

  test('releases a peer that waits to be removed', () => {
    const { mover, log, addPeer, serve, pollUntilIdle } = setUp();
    addPeer(1);
    serve(10, 1, 4);
    pollUntilIdle();
    mover.removePeer(1);
    mover.hardStop(1);
    expect(log).toEqual(['10 stopped 0 1', 'stopped 1', 'removed 1']);
    expect(mover.peerCount).toBe(0);
  });

  test('of two peers on one agent ends with one destruction', () => {
    const { sender, mover, log, addPeer, serve, pollUntilIdle } = setUp();
    addPeer(1);
    addPeer(2);
    serve(10, 1, 4);
    serve(20, 2, 4);
    pollUntilIdle();
    mover.hardStop(1);
    mover.hardStop(2);
    expect(sender.destroyedAgents).toEqual([1]);
    expect(log.toSorted()).toEqual(['10 stopped 0 1', '20 stopped 0 1', 'stopped 1', 'stopped 2']);
  });

  test('fails the peer when no new agent can be made', () => {
    const { sender, mover, log, addPeer, serve, pollUntilIdle } = setUp();
    addPeer(1);
    addPeer(2);
    serve(10, 1, 4);
    pollUntilIdle();
    sender.canMakeAgents = false;
    mover.hardStop(1);
    serve(20, 2, 4);
    pollUntilIdle();
    expect(log.slice(2)).toEqual(['a write to peer 2 failed: UCX cannot be used', '20 failed 0 0']);
  });

  test('of an unknown peer has nothing to do', () => {
    const { mover, log } = setUp();
    mover.hardStop(7);
    expect(log).toEqual(['stopped 7']);
  });
});

test('closing stops everything and destroys every agent', () => {
  const { sender, mover, log, addPeer, serve, pollUntilIdle } = setUp();
  addPeer(1);
  serve(10, 1, 100);
  pollUntilIdle();
  mover.close();
  expect(log).toEqual(['10 stopped 0 4']);
  expect(sender.agents.size).toBe(0);
});

test('whatever happens, each accepted serve ends exactly once and no write outlives its end', () => {
  const peerId = fc.integer({ min: 1, max: 3 });
  const step = fc.oneof(
    fc.record({ kind: fc.constant('serve' as const), peerId, count: fc.integer({ min: 0, max: 30 }) }),
    fc.record({ kind: fc.constant('end' as const), pick: fc.nat(), status: fc.constantFrom(0, 0, 0, -2) }),
    fc.record({ kind: fc.constant('cancel' as const), pick: fc.nat() }),
    fc.record({ kind: fc.constantFrom('stop' as const, 'remove' as const, 'add' as const), peerId }),
    fc.record({ kind: fc.constant('poll' as const), count: fc.integer({ min: 1, max: 10 }) }),
    fc.record({ kind: fc.constant('wait' as const), ms: fc.integer({ min: 1, max: RETIRED_MS }) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const { sender, mover, log, clock, addPeer, serve } = setUp();
      const accepted: number[] = [];
      const known = new Set<number>();
      for (const [index, taken] of steps.entries()) {
        switch (taken.kind) {
          case 'serve':
            if (serve(index, taken.peerId, taken.count) === 'accepted') accepted.push(index);
            else sender.prepared.length = 0;
            break;
          case 'end': {
            const open = sender.open();
            if (open.length > 0) sender.end(open[taken.pick % open.length], taken.status);
            break;
          }
          case 'cancel':
            mover.cancelUnposted(accepted[taken.pick % Math.max(1, accepted.length)] ?? -1);
            break;
          case 'stop':
            mover.hardStop(taken.peerId);
            break;
          case 'remove':
            if (known.has(taken.peerId) && mover.removePeer(taken.peerId) === 'removed')
              known.delete(taken.peerId);
            break;
          case 'add':
            if (!known.has(taken.peerId)) addPeer(taken.peerId, true);
            known.add(taken.peerId);
            break;
          case 'poll':
            for (let i = 0; i < taken.count; i++) mover.poll();
            break;
          case 'wait':
            clock.ms += taken.ms;
            break;
        }
        for (const line of log) if (line.startsWith('removed')) known.delete(Number(line.split(' ')[1]));
      }
      mover.close();
      const ends = log.filter((line) => /^\d/.test(line)).map((line) => Number(line.split(' ')[0]));
      expect(ends.sort((a, b) => a - b)).toEqual(accepted);
      expect(sender.agents.size).toBe(0);
      expect(mover.openRequestCount).toBe(0);
    }),
    { numRuns: 500 },
  );
});
