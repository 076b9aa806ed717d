// What stands in the way of a goal, for the page: printed only beside goals that a run has missed.
//
// Each sentence says what was found by measuring (traces of single fetches and lookups, profiles, experiments); where it
// names rows, those of the same run can be compared with it.

import type { GoalName } from './goals.js';

const WAKE_UPS =
  'Every hand-over between two threads that sleep costs a wake-up: 20 us while the cores are busy, 60 to 150 us on an idle virtual machine.';

export const HINDRANCES: Partial<Record<GoalName, string>> = {
  'lookup.1024.vsEcho': `${WAKE_UPS} The echo is two processes in C that each wait in one place; a lookup goes through the consumer's event loop, both ZeroMQ threads, the producer's event loop, a worker and back.`,
  'lookup.8192.vsEcho': `${WAKE_UPS} To the path of the shorter lookup comes the match, about 50 ns a key, on which the answer waits.`,
  'lookup.1024.vsVllmDefault':
    "The client is vLLM's own, in Python: the time in which it writes and reads 1,024 keys is in the figures of both sides, and what is left of vLLM's is not much more.",
  'lookup.1024.vsVllmTight':
    "As for the default cadence: the Python client's own time for 1,024 keys is in both figures and is most of kvpeer's.",
  'lookup.1024.vsMooncake': `${WAKE_UPS} Mooncake's 2.5 ms are Python and a master that is asked instead of the peer; of kvpeer's time in this row the most is the consumer's and producer's sleeping threads, which \`lookup.echo.1024.p50Us\` (nothing but sockets) shows in part.`,
  'lookup.1024.vsLmcache':
    'LMCache needs two round trips, which its own threads answer between polls: its time moves with what else the cores do, by a factor of two between rounds.',
  'lookup.1024.vsRedis': `${WAKE_UPS} Redis answers from the thread that reads the socket to a C client that knows the answer's layout in advance, and pins nothing.`,
  'lookup.1024.mainCpuUs':
    'No single step is left that is large (`lookup.split.*`, measured hot): up to two turns of the event loop for each lookup, a wake-up of the worker and one from it, the lease and its end; and all of it runs cold, because other threads have had the core in between.',
  'lookup.1024.mainCpuTotalUs':
    'An echo in zeromq.js that reads nothing takes `lookup.cpu.1024.echoUs` on this machine, where the goal was set 23 us. A thread of its own for the ROUTER would take reading off the main thread, about 5 us, for a third hop.',
  'lookup.1024.p99WhileServing':
    'A serve keeps one core busy with the copy, and its receiver, both clients and both event loops share the other: with two cores the 99th percentile is the wait for a core, and that is the same with one worker as with two.',
  'lookup.10000x50.loopDelayMs':
    'The delay of an event loop without any work on the same machine is `lookup.idle.loopDelayMs`: the timer that measures it is late by as much.',
  'index.1m.matchPinNs':
    "1,024 keys from anywhere in the index, which is the worst that can be asked; the blocks of a request, stored one after another, are `index.1m.chainMatchPinNs`. A key is a bucket and a record in pages that nobody has looked at lately. Where the host gives a guest its memory in pages of 4 KiB, two translations of addresses that miss every cache are most of a key: a chain of reads in one huge page, but spread over its 4 KiB parts, takes 73 ns a read here, and 12 when the same lines lie together. The rest goes with the clock of the core, 17 % lower while the other core works. Even pins without a locked instruction, which are no pins, would bring 4 ns. `index.1m.coldMatchPinNs` is a first match after other work; the experiment's own program takes 46 to 54 ns on this machine and took 37 where the goal was set.",
  'index.10mVs64k':
    'At 65,536 blocks most of the index is in the caches; at ten million every bucket and every record is a translation that misses, then a fetch from main memory. Groups of eight, ten and twelve keys instead of six made no difference.',
  'fetch.512x64k.dataVsNixl':
    'The worker posts the same requests as the bare loop; what differs is what runs between two posts, with cold caches after a copy of 4 MiB.',
  'fetch.512x64k.vsNixl': `From first post to last end the rate is NIXL's (\`fetch.512x64k.dataVsNixl\`). About 1.5 ms of a fetch lie before and after: 0.5 to 0.6 ms from the client's send to the first post, 0.8 to 0.9 ms from the last end to the client. ${WAKE_UPS} There are three before and four after, and every step between them runs cold, 20 to 80 us each, after a copy of 64 MiB through the caches.`,
  'fetch.64x1m.vsNixl':
    'The same fixed 1.3 to 1.5 ms around the copy as for 512 x 64 KiB, against a copy that takes 11 ms.',
  'fetch.512x64k.vsLmcacheShm':
    'Both sides move the blocks with one copy by the kernel through the same UCX; its rate here is that of bare NIXL, `fetch.512x64k.shm.nixlGbPerS`.',
  'fetch.64x1m.vsLmcacheShm':
    'As for 512 x 64 KiB: the copy by the kernel is the same on both sides and most of the time.',
  'fetch.4096x4k.vsLmcacheShm':
    'As for 512 x 64 KiB, with one descriptor for every 4 KiB wherever slots are not neighbours.',
  'fetch.512x64k.vsVllm':
    "Both hand the same bytes to the same UCX, and its copy alone (`fetch.512x64k.shm.nixlGbPerS`) takes more than a third of vLLM's whole fetch: three times its rate is more than that copy gives. Two workers copying at once gave nothing here (5.7 GB/s together, 5.9 alone): memory and not a core is the limit.",
  'fetch.512x64k.tcpVsRaw':
    'Sender, receiver, both event loops and ZeroMQ share two cores, where the raw copy has one thread on each; what bare NIXL reaches over TCP in the same run is `fetch.512x64k.tcp.nixlGbPerS`, and a fetch has its fixed 1.3 to 1.5 ms on top. Longer spinning between two looks was no better.',
  'idle.frozenWritePercent':
    'Forty times a second the worker wakes up and asks UCX about the frozen write; on this machine a wake-up alone costs up to 150 us.',
  'evict.conversation5':
    'The two queues reach 1.06 to 1.07 with the seeds that were tried; which keys share a shard and a ghost moves it by 1 %.',
  'evict.synthetic5':
    'The two queues reach 1.05 to 1.06 with the seeds that were tried; which keys share a shard and a ghost moves it by 1 %.',
  'evict.worst':
    "In a pool of 400 blocks (1 % of the synthetic trace) one request is as large as the pool, and two shards of 200 slots fill unevenly: with one shard the same policy has 1.04 times LRU's leading hits there (median of nine seeds of the hash), with two 0.95. Every larger size is at 0.99 or more.",
};
