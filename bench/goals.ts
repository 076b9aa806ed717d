// The rows that have a goal: what each measures and what this project promises of it.

export type Goal = { readonly atMost: number } | { readonly atLeast: number };

export const GROUPS = ['lookup', 'serve', 'parts', 'eviction', 'peers', 'match', 'sidecar', 'ext'] as const;
export type GroupName = (typeof GROUPS)[number];

export interface GoalRow {
  readonly unit: string;
  readonly goal: Goal;
  /** One line for the table: what is compared with what. */
  readonly what: string;
}

const atMost = (limit: number, unit: string, what: string): GoalRow => ({
  unit,
  goal: { atMost: limit },
  what,
});
const atLeast = (limit: number, unit: string, what: string): GoalRow => ({
  unit,
  goal: { atLeast: limit },
  what,
});

export const GOALS = {
  'lookup.1024.vsEcho': atMost(
    1.5,
    'ratio',
    'lookup p50 of 1,024 keys, kvpeer to kvpeer, against a C libzmq echo of the same bytes over two sockets',
  ),
  'lookup.8192.vsEcho': atMost(2, 'ratio', 'the same with 8,192 keys'),
  'lookup.1024.vsVllmDefault': atMost(0.04, 'ratio', 'lookup p50 against vLLM as it comes (1 ms poll)'),
  'lookup.1024.vsVllmTight': atMost(0.05, 'ratio', 'lookup p50 against vLLM in a tight loop'),
  'lookup.1024.vsLmcache': atMost(0.01, 'ratio', 'lookup p50 against LMCache P2P'),
  'lookup.1024.vsMooncake': atMost(0.1, 'ratio', 'lookup p50 against the existence check of Mooncake Store'),
  'lookup.1024.vsRedis': atMost(1, 'ratio', 'lookup p50 against Redis SMISMEMBER with a C client'),
  'lookup.1024.mainCpuUs': atMost(
    12,
    'us',
    "kvpeer's own CPU on the producer's main thread per lookup, 16 outstanding, minus the same echo without kvpeer",
  ),
  'lookup.1024.mainCpuTotalUs': atMost(25, 'us', 'the same with ZeroMQ'),
  'lookup.1024.mainCpuVsNaive': atMost(
    0.1,
    'ratio',
    'own share of the main thread against the naive design (decoded messages, Map, one piscina.run per lookup)',
  ),
  'lookup.1024.p99WhileServing': atMost(
    0.5,
    'ratio',
    'lookup p99 while the node serves 512 x 64 KiB in a loop, against one worker for both',
  ),
  'lookup.10000x50.loopDelayMs': atMost(
    2,
    'ms',
    'event-loop delay p99 of the producer with 50 lookups/s of 10,000 keys',
  ),
  'lookup.sessions256.p99VsOne': atMost(
    1.5,
    'ratio',
    'lookup p99 with 256 sessions against one, same total rate',
  ),
  'index.1m.matchPinNs': atMost(
    50,
    'ns/key',
    'match and pin, native, one million blocks, keys from anywhere',
  ),
  'index.10mVs64k': atMost(3, 'ratio', 'match and pin at ten million blocks against 65,536'),
  'index.bytesPerSlot': atMost(128, 'bytes', 'control memory per slot, keys of 36 bytes'),
  'ring.mainCpuVsPiscina': atMost(0.125, 'ratio', 'main-thread CPU per request, rings against piscina.run'),
  'fetch.512x64k.dataVsNixl': atLeast(
    0.95,
    'ratio',
    'rate from first post to last completion against a bare NIXL loop of the same requests',
  ),
  'fetch.512x64k.vsNixl': atLeast(
    0.85,
    'ratio',
    'rate from fetch sent to transfer_done received against a bare NIXL loop',
  ),
  'fetch.64x1m.vsNixl': atLeast(0.95, 'ratio', 'the same with 64 x 1 MiB'),
  'fetch.512x64k.vsLmcacheShm': atLeast(2.5, 'ratio', 'rate against LMCache P2P on one host'),
  'fetch.64x1m.vsLmcacheShm': atLeast(2, 'ratio', 'the same with 64 x 1 MiB'),
  'fetch.4096x4k.vsLmcacheShm': atLeast(3, 'ratio', 'the same with 4096 x 4 KiB'),
  'fetch.512x64k.vsVllm': atLeast(
    3,
    'ratio',
    'rate, kvpeer to kvpeer, against vLLM to vLLM on the same UCX_TLS',
  ),
  'fetch.512x64k.tcpVsRaw': atLeast(1, 'ratio', 'rate over TCP against the raw copy over one connection'),
  'idle.cpuPercent': atMost(2, '%', 'CPU of an idle node with eight sessions, of one core'),
  'idle.frozenWritePercent': atMost(1, '%', 'what one frozen write adds to it'),
  'start.readyMs': atMost(2000, 'ms', 'Peer.start with a pool of 1 GiB'),
  'evict.conversation5': atLeast(
    1.05,
    'ratio',
    "leading hits against LRU's, conversation trace, 5 % of the blocks",
  ),
  'evict.synthetic5': atLeast(
    1.05,
    'ratio',
    "leading hits against LRU's, synthetic trace, 5 % of the blocks",
  ),
  'sidecar.firstByteAddedMs': atMost(
    1,
    'ms',
    'first byte of a stream, p50, through the sidecar minus straight from the model server',
  ),
  'sidecar.throughputVsPipe': atLeast(
    0.9,
    'ratio',
    'one long stream against a bare undici pipe, the median of rounds with both',
  ),
  'sidecar.streams1000.growthMiB': atMost(
    16,
    'MiB',
    'resident memory of waves 5 to 7 of 1,000 concurrent streams above waves 2 to 4',
  ),
  'sidecar.streams1000.growthPerWaveMiB': atMost(2, 'MiB', 'the same per wave: a plateau, no growth'),
  'sidecar.body64MiB.growthMiB': atMost(
    16,
    'MiB',
    'resident memory after request bodies 6 to 9 of 64 MiB above bodies 2 to 5',
  ),
  'evict.worst': atLeast(0.98, 'ratio', "leading hits against LRU's, the worst of both traces at every size"),
} as const satisfies Readonly<Record<string, GoalRow>>;

export type GoalName = keyof typeof GOALS;

export function goalOf(name: string): GoalRow | undefined {
  return (GOALS as Readonly<Record<string, GoalRow>>)[name];
}
