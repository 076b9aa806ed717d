// Which part is posted next: peers take turns, and a peer's serves go oldest first.

import type { MoverPeer, Serve } from './serve.js';

export class Turns {
  /** Peers with something to post, the one whose turn it is first. */
  private readonly peers: MoverPeer[] = [];

  /** Does nothing for a serve without unposted parts. */
  add(serve: Serve): void {
    if (serve.unposted.length === 0) return;
    const { peer } = serve;
    if (!peer.queue.includes(serve)) peer.queue.push(serve);
    if (!this.peers.includes(peer)) this.peers.push(peer);
  }

  /** How many peers may have something to post. */
  get peerCount(): number {
    return this.peers.length;
  }

  /** The serve whose turn it is, of a peer with fewer open requests than the limit; its peer goes to the end. */
  next(maxOpenCount: number): Serve | undefined {
    for (let left = this.peers.length; left > 0; left--) {
      const peer = this.peers[0];
      this.peers.shift();
      const serve = oldest(peer);
      if (serve === undefined) continue;
      this.peers.push(peer);
      if (peer.openCount < maxOpenCount) return serve;
    }
    return undefined;
  }
}

/** The peer's oldest serve that still has something to post; those that have not are taken out. */
function oldest(peer: MoverPeer): Serve | undefined {
  while (peer.queue.length > 0 && peer.queue[0].unposted.length === 0) peer.queue.shift();
  return peer.queue[0];
}
