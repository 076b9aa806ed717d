// The life of the receive agent.

import { readdirSync } from 'node:fs';
import { expect, test } from 'vitest';
import { startTestShards } from '../helpers/running-shards.js';

process.env.UCX_TLS = 'tcp,self';

function descriptorCount(): number {
  return readdirSync('/proc/self/fd').length;
}

test('a node that is closed while its receive agent is replaced leaves no agent behind', async () => {
  const first = await startTestShards({ blocks: 64, dataPlane: 'nixl' });
  await first.close();
  const before = descriptorCount();

  const shards = await startTestShards({ blocks: 64, dataPlane: 'nixl' });
  const recycling = shards.dataPlane.recycle();
  await shards.close();
  await recycling;
  // Threads that have ended give theirs back a moment later.
  await expect.poll(descriptorCount).toBeLessThanOrEqual(before);
});
