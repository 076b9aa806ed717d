// Is a NIXL notification on the last write of a fetch a sooner way to know of its end than a message is? It is not, which
// is why kvpeer has no such extension. Two processes with NIXL and sockets, nothing of kvpeer: native/data_completion.cc.
//
//   answer         a message over the threads and hops that transfer_done takes
//   notification   NIXL's, with the answer behind it
//   direct         a message from the thread that wrote to the thread that waits: what fewer hops would give
//   ahead          a notification behind the last post that waits for nothing: is it there before the data?

import { nixlSettings } from '../src/shared/nixl-environment.js';
import { resolveNixl } from '../src/shared/nixl-dir.js';
import type { Bench, Section } from './rows.js';
import { jsonOf, ownProgram } from './support/c-program.js';

const TRANSPORTS = {
  default: {},
  tcp: { UCX_TLS: 'tcp,self' },
  shm: { UCX_TLS: 'tcp,posix,cma,self' },
} as const;
type TransportName = keyof typeof TRANSPORTS;

/** One way of learning of the end. */
interface Way {
  /** From the order to the thread that waits for its end, of each round. */
  readonly p50Us: readonly number[];
  /** Fetches in which a block was not complete then. */
  readonly torn: number;
}

interface Measured {
  readonly blocks: number;
  readonly fetchCount: number;
  readonly answer: Way;
  readonly notification: Way;
  readonly direct: Way;
  readonly ahead: Way;
}

async function measure(
  { rows, isQuick }: Bench,
  program: string,
  library: string,
  name: TransportName,
): Promise<void> {
  const env = { ...process.env, ...TRANSPORTS[name] };
  for (const setting of nixlSettings('127.0.0.1', env)) Object.assign(env, { [setting.name]: setting.value });
  const [rounds, perRound] = isQuick ? [5, 10] : [9, 20];
  const measured = (await jsonOf(program, [library, String(rounds), String(perRound)], env)) as Measured[];
  const prefix = 'ext.dataCompletion';
  for (const { blocks, answer, notification, direct } of measured) {
    const row = `${prefix}.${blocks}x64k.${name}`;
    rows.measured(`${row}.answerUs`, answer.p50Us, 'us');
    rows.measured(`${row}.notificationUs`, notification.p50Us, 'us');
    rows.measured(`${row}.directUs`, direct.p50Us, 'us');
    rows.measured(`${row}.notificationVsAnswer`, ratios(notification, answer));
    rows.measured(`${row}.directVsAnswer`, ratios(direct, answer));
  }
  const fetchCount = measured.reduce((sum, { fetchCount: count }) => sum + count, 0);
  const torn = (way: 'notification' | 'ahead'): number =>
    measured.reduce((sum, one) => sum + one[way].torn, 0);
  rows.figure(`${prefix}.${name}.tornCount`, torn('notification'), 'fetches', fetchCount);
  rows.figure(`${prefix}.${name}.overtakenCount`, torn('ahead'), 'fetches', fetchCount);
}

function ratios(above: Way, below: Way): number[] {
  return above.p50Us.map((us, i) => us / below.p50Us[i]);
}

export const dataCompletionBench: Section = {
  group: 'ext',
  title: 'the end of a fetch from a NIXL notification against a message',
  goals: [],
  prefixes: ['ext.dataCompletion.'],
  async run(bench) {
    const program = await ownProgram('data_completion');
    const nixl = resolveNixl();
    if (program.kind === 'missing') {
      bench.rows.skip('ext.dataCompletion', program.reason);
    } else if (nixl.kind === 'missing') {
      bench.rows.skip('ext.dataCompletion', nixl.reason);
    } else {
      const names: readonly TransportName[] = bench.isQuick ? ['default', 'tcp'] : ['default', 'tcp', 'shm'];
      for (const name of names) await measure(bench, program.path, nixl.libraryPath, name);
    }
  },
};
