// The echo in C over libzmq, which nothing over ZeroMQ can beat.

import { jsonOf } from './c-program.js';

export interface EchoRow {
  readonly keys: 1 | 16 | 128 | 1024 | 8192;
  readonly p50Us: number;
  readonly p99Us: number;
}

/**
 * @param topology `two`: each side has its ROUTER and a DEALER to the other, as the wire has it
 * @param msPerSize time for each number of keys
 */
export async function lookupsOfEcho(
  path: string,
  topology: 'one' | 'two',
  msPerSize: number,
): Promise<EchoRow[]> {
  const { lookups } = (await jsonOf(path, [topology, String(msPerSize)])) as {
    lookups: { keys: EchoRow['keys']; p50_us: number; p99_us: number }[];
  };
  return lookups.map(({ keys, p50_us, p99_us }) => ({ keys, p50Us: p50_us, p99Us: p99_us }));
}
