// What does a lookup cost the main thread of the producer, and how much of it is ZeroMQ's?
//
// Three producers take the same load in turns: kvpeer, an echo in zeromq.js without kvpeer, and the naive design. A
// lookup's own share is what its producer uses beyond the echo. A request is finished after some lookups, or after each
// (`.finished`), and what that costs is counted too: pins that nobody gives back would end at the limits.

import type { Section } from './rows.js';
import type { Echo } from './processes/echo.js';
import type { Load } from './processes/load.js';
import type { Naive } from './processes/naive.js';
import type { BenchNode } from './processes/node.js';
import { Child, withChildren } from './support/child.js';
import type { CpuTimes } from './support/cpu.js';
import { PLAIN_NODE, poolBytesFor } from './support/nodes.js';

const OUTSTANDING = 16;
const KEYS = 1024;
/** Lookups before the first that counts. */
const WARM_UP = 6000;

interface Measured {
  /** us of the main thread per lookup, by round. */
  readonly cpuUs: number[];
  readonly perSecond: number[];
}

interface Target {
  readonly child: { call(method: 'cpu'): Promise<CpuTimes> };
  readonly load: Child<Load>;
  readonly measured: Measured;
}

export const lookupCpuBench: Section = {
  group: 'lookup',
  title: 'CPU of the main thread per lookup',
  goals: ['lookup.1024.mainCpuUs', 'lookup.1024.mainCpuTotalUs', 'lookup.1024.mainCpuVsNaive'],
  prefixes: ['lookup.1024.mainCpu', 'lookup.cpu.'],
  async run({ isQuick, profileDir, rows }) {
    const blockCount = isQuick ? 262_144 : 1_000_000;
    const naiveCount = isQuick ? 16_384 : 131_072;
    const rounds = isQuick ? 5 : 15;
    const perRequest = isQuick ? 8 : 16;
    const node = new Child<BenchNode>('node', { profileDir });
    const echo = new Child<Echo>('echo');
    const naive = new Child<Naive>('naive');
    const loads = [0, 1, 2].map(() => new Child<Load>('load'));
    await withChildren([node, echo, naive, ...loads], async () => {
      const { address } = await node.call('start', {
        ...PLAIN_NODE,
        poolBytes: poolBytesFor(blockCount, PLAIN_NODE.blockBytes),
      });
      await node.call('store', 0, blockCount);
      const targets: Record<'kvpeer' | 'echo' | 'naive', Target> = {
        kvpeer: { child: node, load: loads[0], measured: { cpuUs: [], perSecond: [] } },
        echo: { child: echo, load: loads[1], measured: { cpuUs: [], perSecond: [] } },
        naive: { child: naive, load: loads[2], measured: { cpuUs: [], perSecond: [] } },
      };
      await targets.kvpeer.load.call('connect', address);
      await targets.echo.load.call('connect', await echo.call('start'), 1, 'packed');
      await targets.naive.load.call('connect', await naive.call('start', naiveCount));
      const heldOf = { kvpeer: blockCount, echo: blockCount, naive: naiveCount };

      const measure = async (
        name: keyof typeof targets,
        lookupCount: number,
        lookupsPerRequest: number,
        keyCount = KEYS,
      ): Promise<{ cpuUs: number; perSecond: number }> => {
        const { child, load } = targets[name];
        const before = await child.call('cpu');
        const { elapsedMs, hitShare } = await load.call('closedLoop', {
          keyCount,
          heldCount: heldOf[name],
          lookupCount,
          outstanding: OUTSTANDING,
          lookupsPerRequest,
        });
        const after = await child.call('cpu');
        if (hitShare !== 1) throw new Error(`${name} found ${hitShare} of the keys`);
        return {
          cpuUs: (after.mainNs - before.mainNs) / 1000 / lookupCount,
          perSecond: (lookupCount * 1000) / elapsedMs,
        };
      };

      const perRound = isQuick ? 1000 : 2000;
      const names = ['kvpeer', 'echo', 'naive'] as const;
      // Until V8 has compiled all that a lookup runs: the first thousands cost twice as much.
      for (const name of names) await measure(name, name === 'naive' ? 100 : WARM_UP, perRequest);
      const finished: Record<'kvpeer' | 'echo', number[]> = { kvpeer: [], echo: [] };
      for (let round = 0; round < rounds; round++) {
        for (const name of round % 2 === 0 ? names : [...names].reverse()) {
          const result = await measure(name, name === 'naive' ? perRound / 5 : perRound, perRequest);
          targets[name].measured.cpuUs.push(result.cpuUs);
          targets[name].measured.perSecond.push(result.perSecond);
          if (name !== 'naive') finished[name].push((await measure(name, perRound, 1)).cpuUs);
        }
      }
      const { kvpeer, echo: plain, naive: decoded } = targets;
      const own = difference(kvpeer.measured.cpuUs, plain.measured.cpuUs);
      rows.measured('lookup.1024.mainCpuUs', own);
      rows.measured('lookup.1024.mainCpuTotalUs', kvpeer.measured.cpuUs);
      const naiveOwn = difference(decoded.measured.cpuUs, plain.measured.cpuUs);
      rows.measured(
        'lookup.1024.mainCpuVsNaive',
        own.map((us, i) => us / naiveOwn[i]),
      );
      rows.measured('lookup.cpu.1024.echoUs', plain.measured.cpuUs, 'us');
      rows.measured('lookup.cpu.1024.naiveUs', decoded.measured.cpuUs, 'us');
      rows.measured('lookup.cpu.1024.finishedUs', difference(finished.kvpeer, finished.echo), 'us');
      rows.measured('lookup.cpu.1024.perSecond', kvpeer.measured.perSecond, '1/s');
      rows.measured('lookup.cpu.1024.echoPerSecond', plain.measured.perSecond, '1/s');
      rows.measured('lookup.cpu.1024.naivePerSecond', decoded.measured.perSecond, '1/s');
      for (const keyCount of [16, 128]) {
        const ownUs: number[] = [];
        for (let round = 0; round < rounds; round++) {
          const ours = await measure('kvpeer', perRound, perRequest, keyCount);
          const theirs = await measure('echo', perRound, perRequest, keyCount);
          ownUs.push(ours.cpuUs - theirs.cpuUs);
        }
        rows.measured(`lookup.cpu.${keyCount}.ownUs`, ownUs, 'us');
      }
    });
  },
};

function difference(whole: readonly number[], part: readonly number[]): number[] {
  return whole.map((value, i) => value - part[i]);
}
