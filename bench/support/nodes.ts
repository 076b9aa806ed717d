// Options of the nodes that are measured.

import type { PeerOptions } from '../../src/main/options.js';

/** Lookups only, one client that may pin what it likes: its limits are not what is measured. */
export const PLAIN_NODE = {
  dataPlane: 'none',
  blockBytes: 4096,
  peerPinShare: 1,
  allPeersPinShare: 1,
} as const satisfies PeerOptions;

/** Pool for that many blocks, with a tenth more: keys do not fall evenly on the shards. */
export function poolBytesFor(blockCount: number, blockBytes: number): number {
  return Math.ceil(blockCount * 1.1 + 256) * blockBytes;
}
