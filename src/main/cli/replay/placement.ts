// Which peer computes a request, and which other peer it may pull from.
import { seededRandom } from './random.js';

export const PLACEMENTS = ['round-robin', 'random'] as const;

export type Placement = (typeof PLACEMENTS)[number];

/** A function from the request's number (after skip, in order) to the peer that computes it. */
export function makePlacement(
  placement: Placement,
  peers: number,
  seed: number,
): (request: number) => number {
  if (placement === 'round-robin') return (request) => request % peers;
  const random = seededRandom(seed);
  return () => random.integer(peers);
}

/** The other peer with the longest prefix, the lowest number among equals; undefined when none holds a block. */
export function chooseSource(prefixes: readonly number[], computingPeer: number): number | undefined {
  let best: number | undefined;
  prefixes.forEach((prefix, peer) => {
    if (peer !== computingPeer && prefix > (best === undefined ? 0 : prefixes[best])) best = peer;
  });
  return best;
}
