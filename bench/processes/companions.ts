// Small nodes that keep a session with the measured one and do nothing else.

import { Peer } from '../../src/main/peer.js';
import { serveCalls } from '../support/child.js';

/** The methods that the parent calls. */
export class Companions {
  readonly #peers: Peer[] = [];

  async start(target: string, count: number, blockBytes: number): Promise<void> {
    for (let i = 0; i < count; i++) {
      const peer = await Peer.start({
        host: '127.0.0.1',
        port: 0,
        shards: 1,
        blockBytes,
        poolBytes: 16 * blockBytes,
        logLevel: 'error',
      });
      this.#peers.push(peer);
      const connection = await peer.connect(target);
      if (!connection.isReady) throw new Error(`no session with ${target}: ${connection.reason}`);
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.#peers.map((peer) => peer.close({ drainMs: 0 })));
  }
}

const companions = new Companions();
serveCalls(companions, () => companions.close());
