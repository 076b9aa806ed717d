// What does the sidecar add to a stream, and does its memory stay flat under many streams and large bodies?

import { Readable } from 'node:stream';
import { Pool } from 'undici';
import type { BenchHttp } from './processes/http.js';
import type { Section } from './rows.js';
import { median, quantile } from './stats.js';
import { Child, withChildren } from './support/child.js';

const MIB = 2 ** 20;
const STREAMS = 1000;
const BODY_MIB = 64;

export const sidecarBench: Section = {
  group: 'sidecar',
  title: 'the sidecar: first byte, throughput beside a bare undici pipe, memory',
  goals: [
    'sidecar.firstByteAddedMs',
    'sidecar.throughputVsPipe',
    'sidecar.streams1000.growthMiB',
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
    const pipe = new Child<BenchHttp>('http');
    await withChildren([model, sidecar, pipe], async () => {
      const modelPort = await model.call('startModel');
      const pools = {
        direct: poolOf(modelPort),
        sidecar: poolOf(await sidecar.call('startSidecar', modelPort)),
        pipe: poolOf(await pipe.call('startPipe', modelPort)),
      };
      try {
        await firstBytes(pools, 2000, rows);
        await throughput(pools, 9, rows);
        const resident = (): Promise<number> => sidecar.call('residentBytes');
        rows.figure(
          'sidecar.streams1000.growthMiB',
          await growthOf(resident, () => streams(pools.sidecar)),
          'MiB',
        );
        rows.figure(
          'sidecar.body64MiB.growthMiB',
          await growthOf(resident, () => largeBody(pools.sidecar)),
          'MiB',
        );
      } finally {
        await Promise.all(Object.values(pools).map((pool) => pool.destroy()));
      }
    });
  },
};

interface Pools {
  readonly direct: Pool;
  readonly sidecar: Pool;
  readonly pipe: Pool;
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
async function rate(pool: Pool, bytes: number): Promise<number> {
  const startedAt = performance.now();
  const { body } = await pool.request({ method: 'POST', path: `/bulk?bytes=${bytes}`, body: '{"a":1}' });
  await body.dump({ limit: bytes * 2 });
  return bytes / ((performance.now() - startedAt) / 1000);
}

async function throughput(pools: Pools, rounds: number, rows: Rows): Promise<void> {
  const bytes = 128 * MIB;
  const rates = { sidecar: [] as number[], pipe: [] as number[] };
  for (let round = 0; round <= rounds; round++) {
    const pipe = await rate(pools.pipe, bytes);
    const sidecar = await rate(pools.sidecar, bytes);
    if (round === 0) continue;
    rates.pipe.push(pipe);
    rates.sidecar.push(sidecar);
  }
  rows.measured(
    'sidecar.streamGBPerS',
    rates.sidecar.map((each) => each / 1e9),
    'GB/s',
  );
  rows.measured(
    'sidecar.pipeGBPerS',
    rates.pipe.map((each) => each / 1e9),
    'GB/s',
  );
  rows.figure('sidecar.throughputVsPipe', median(rates.sidecar) / median(rates.pipe), 'ratio', rounds);
}

/** What a second and third turn add to resident memory after the first one. */
async function growthOf(resident: () => Promise<number>, turn: () => Promise<void>): Promise<number> {
  await turn();
  const before = await resident();
  await turn();
  await turn();
  return ((await resident()) - before) / MIB;
}

async function streams(pool: Pool): Promise<void> {
  const stream = async (): Promise<void> => {
    const { body } = await pool.request({ method: 'POST', path: '/slow?events=10', body: '{"a":1}' });
    await body.dump();
  };
  await Promise.all(Array.from({ length: STREAMS }, stream));
}

async function largeBody(pool: Pool): Promise<void> {
  const piece = Buffer.alloc(MIB, 0x61);
  const pieces = function* (): Generator<Buffer> {
    yield Buffer.from('{"p":"');
    for (let i = 0; i < BODY_MIB; i++) yield piece;
    yield Buffer.from('"}');
  };
  const path = '/v1/chat/completions';
  const { body } = await pool.request({ method: 'POST', path, body: Readable.from(pieces()) });
  await body.dump();
}
