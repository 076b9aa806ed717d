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
export function freePort(): Promise<number> {
  return freePorts(1);
}

/** The first of so many free ports in a row. */
export async function freePorts(count: number): Promise<number> {
  for (;;) {
    const port = FIRST_PORT + Math.floor(Math.random() * (PORT_COUNT - count));
    const ports = Array.from({ length: count }, (_, i) => port + i);
    if ((await Promise.all(ports.map(isFree))).every(Boolean)) return port;
  }
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  const isBound = await new Promise<boolean>((resolve) => {
    server.once('error', () => {
      resolve(false);
    });
    server.listen(port, '127.0.0.1', () => {
      resolve(true);
    });
  });
  if (!isBound) return false;
  server.close();
  await once(server, 'close');
  return true;
}
