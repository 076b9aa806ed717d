// A port for a process that has to be told one.

import { once } from 'node:events';
import { createServer } from 'node:net';

/** Below the ports that Linux hands to outgoing connections (32768 and up by default). */
const FIRST_PORT = 20_000;
const PORT_COUNT = 12_000;

/**
 * A port that nobody has now, and that no connection gets by chance in the seconds until a process listens on it.
 * Drawn at random, since test files run side by side.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = FIRST_PORT + Math.floor(Math.random() * PORT_COUNT);
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      server.once('error', () => {
        resolve(false);
      });
      server.listen(port, '127.0.0.1', () => {
        resolve(true);
      });
    });
    if (!isFree) continue;
    server.close();
    await once(server, 'close');
    return port;
  }
}
