// What does the sidecar add to a stream, and does its memory stay flat under many streams and large bodies?

import { Readable } from 'node:stream';
import { Pool } from 'undici';
import type { BenchHttp } from './processes/http.js';
import type { Section } from './rows.js';
import { median, quantile, ratios } from './stats.js';
import { Child, withChildren } from './support/child.js';

const MIB = 2 ** 20;
const STREAMS = 1000;
const WAVES = 6;
const BODY_MIB = 64;
const BODIES = 8;
/** A long answer, and how often each side sends it in turns. */
const ANSWER_BYTES = 16 * MIB;
const ANSWERS = 40;
/** The first ones compile. */
const WARM_ANSWERS = 8;
/** Fresh processes each: where the system puts one decides as much as what it does. */
const PAIRS = 4;

export const sidecarBench: Section = {
  group: 'sidecar',
  title: 'the sidecar: first byte, throughput beside a bare undici pipe, memory',
  goals: [
    'sidecar.firstByteAddedMs',
    'sidecar.throughputVsPipe',
    'sidecar.streams1000.growthMiB',
    'sidecar.streams1000.growthPerWaveMiB',
    'sidecar.body64MiB.growthMiB',
  ],
  prefixes: ['sidecar.'],
  async run({ isQuick, rows }) {
    if (isQuick) {
      rows.skipMissing(this.goals, 'left out of --quick');
      return;
    }
    const model = new Child<BenchHttp>('http');
    const sidecar = new Child<BenchHttp>('http');
    const large = new Child<BenchHttp>('http');
    await withChildren([model, sidecar, large], async () => {
      const modelPort = await model.call('startModel');
      const pools = {
        direct: poolOf(modelPort),
        sidecar: poolOf(await sidecar.call('startSidecar', modelPort)),
        large: poolOf(await large.call('startSidecar', modelPort)),
      };
      try {
        await firstBytes(pools, 2000, rows);
        await throughput(modelPort, rows);
        await waves(pools.large, () => large.call('residentBytes'), rows);
        await bodies(pools.large, large, rows);
      } finally {
        await Promise.all(Object.values(pools).map((pool) => pool.destroy()));
      }
    });
  },
};

interface Pools {
  readonly direct: Pool;
  readonly sidecar: Pool;
  readonly large: Pool;
}

type Rows = Parameters<Section['run']>[0]['rows'];

function poolOf(port: number): Pool {
  return new Pool(`http://127.0.0.1:${port}`, { headersTimeout: 0, bodyTimeout: 0 });
}

/** @returns milliseconds to the first byte of the body */
async function firstByteMs(pool: Pool): Promise<number> {
  const startedAt = performance.now();
  const { body } = await pool.request({ method: 'POST', path: '/first', body: '{"a":1}' });
  let first: number | undefined;
  for await (const piece of body) {
    if ((piece as Buffer).length > 0) first ??= performance.now() - startedAt;
  }
  return first ?? Number.NaN;
}

async function firstBytes(pools: Pools, count: number, rows: Rows): Promise<void> {
  const times = { direct: [] as number[], sidecar: [] as number[] };
  // In turns: whatever disturbs the machine disturbs both.
  for (let i = 0; i < count; i++) {
    times.direct.push(await firstByteMs(pools.direct));
    times.sidecar.push(await firstByteMs(pools.sidecar));
  }
  const half = count / 2;
  const added = quantile(times.sidecar.slice(half), 0.5) - quantile(times.direct.slice(half), 0.5);
  rows.figure('sidecar.firstByteAddedMs', added, 'ms', half);
}

/** @returns bytes per second */
async function rate(pool: Pool): Promise<number> {
  const startedAt = performance.now();
  const path = `/bulk?bytes=${ANSWER_BYTES}`;
  const { body } = await pool.request({ method: 'POST', path, body: '{"a":1}' });
  await body.dump({ limit: ANSWER_BYTES * 2 });
  return ANSWER_BYTES / ((performance.now() - startedAt) / 1000);
}

/** Every round has both, one right after the other, and the order changes: a slow moment of the machine hits both. */
async function throughput(modelPort: number, rows: Rows): Promise<void> {
  const rates = { sidecar: [] as number[], pipe: [] as number[] };
  for (let pair = 0; pair < PAIRS; pair++) {
    const children = { sidecar: new Child<BenchHttp>('http'), pipe: new Child<BenchHttp>('http') };
    await withChildren(Object.values(children), async () => {
      const pools = {
        sidecar: poolOf(await children.sidecar.call('startSidecar', modelPort)),
        pipe: poolOf(await children.pipe.call('startPipe', modelPort)),
      };
      for (let round = -WARM_ANSWERS; round < ANSWERS; round++) {
        for (const name of round % 2 === 0
          ? (['pipe', 'sidecar'] as const)
          : (['sidecar', 'pipe'] as const)) {
          const bytesPerS = await rate(pools[name]);
          if (round >= 0) rates[name].push(bytesPerS);
        }
      }
      await Promise.all(Object.values(pools).map((pool) => pool.destroy()));
    });
  }
  const gigabytes = (each: number): number => each / 1e9;
  rows.measured('sidecar.streamGBPerS', rates.sidecar.map(gigabytes), 'GB/s');
  rows.measured('sidecar.pipeGBPerS', rates.pipe.map(gigabytes), 'GB/s');
  rows.measured('sidecar.throughputVsPipe', ratios(rates.sidecar, rates.pipe), 'ratio');
}

/** Resident memory after every one of so many turns. The first turn makes connections and compiles: it does not count. */
async function residentMiB(
  resident: () => Promise<number>,
  count: number,
  turn: () => Promise<void>,
): Promise<number[]> {
  const after: number[] = [];
  await turn();
  while (after.length < count) {
    await turn();
    after.push((await resident()) / MIB);
  }
  return after;
}

/** What the later half of the turns has above the earlier half: a leak would show, one turn's luck does not. */
function growthOf(mib: readonly number[]): number {
  const half = mib.length / 2;
  return median(mib.slice(half)) - median(mib.slice(0, half));
}

async function waves(pool: Pool, resident: () => Promise<number>, rows: Rows): Promise<void> {
  const after = await residentMiB(resident, WAVES, () => streams(pool));
  rows.figure('sidecar.streams1000.growthMiB', growthOf(after), 'MiB', WAVES);
  rows.figure('sidecar.streams1000.growthPerWaveMiB', growthOf(after) / (WAVES / 2), 'MiB', WAVES);
}

async function bodies(pool: Pool, sidecar: Child<BenchHttp>, rows: Rows): Promise<void> {
  const after = await residentMiB(
    () => sidecar.call('residentBytes'),
    BODIES,
    () => largeBody(pool, {}),
  );
  rows.figure('sidecar.body64MiB.growthMiB', growthOf(after), 'MiB', BODIES);
  const held: number[] = [];
  // Bodies that are read as a whole, scanned and rewritten. No goal: on few cores the system's own turns are in it.
  for (let i = 0; i < 6; i++) {
    await sidecar.call('watchLoop');
    await largeBody(pool, { 'x-kv-cache-source-host-port': '10.0.0.9:8000' });
    const longestMs = await sidecar.call('longestHoldMs');
    if (i > 0) held.push(longestMs);
  }
  rows.measured('sidecar.body64MiB.heldMs', held, 'ms');
}

async function streams(pool: Pool): Promise<void> {
  const stream = async (): Promise<void> => {
    const { body } = await pool.request({ method: 'POST', path: '/slow?events=10', body: '{"a":1}' });
    await body.dump();
  };
  await Promise.all(Array.from({ length: STREAMS }, stream));
}

async function largeBody(pool: Pool, headers: Record<string, string>): Promise<void> {
  const piece = Buffer.alloc(MIB, 0x61);
  const pieces = function* (): Generator<Buffer> {
    yield Buffer.from('{"p":"');
    for (let i = 0; i < BODY_MIB; i++) yield piece;
    yield Buffer.from('"}');
  };
  const path = '/v1/chat/completions';
  const { body } = await pool.request({ method: 'POST', path, headers, body: Readable.from(pieces()) });
  await body.dump();
}
