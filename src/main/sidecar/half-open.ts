// Tells a client that has only ended its side of the connection from one that has left.

import type { IncomingMessage, Server, ServerResponse } from 'node:http';

/**
 * When the client is asked, in milliseconds after its end of stream. The first byte makes a closed connection answer with
 * a reset, the next one after that fails; there are several because the way may be long.
 */
const PROBES_MS = [0, 20, 100, 500, 2_000, 10_000];

/** Node's own switch, without a declared type: otherwise it ends the connection on the client's end of stream. */
export function keepHalfOpen(server: Server): void {
  Object.assign(server, { httpAllowHalfOpen: true });
}

/**
 * Keeps the connection of a client that ended its side after its request: it still gets its whole answer. The same end of
 * stream comes from a client that has closed everything, and whose legs must be cancelled. Only bytes sent to it show
 * which; `100 Continue` is what every client of HTTP/1.1 reads past. Once the answer has begun nothing can be slipped in:
 * then the end of stream counts as leaving, as it always does with the reference.
 */
export function watchHalfOpen(request: IncomingMessage, response: ServerResponse): void {
  const { socket } = request;
  const timers: NodeJS.Timeout[] = [];
  const probe = (): void => {
    if (!response.headersSent && !socket.destroyed) response.writeContinue();
  };
  const ended = (): void => {
    // Everything is handed over, and the connection closes after it.
    if (response.writableEnded) return;
    if (response.headersSent || request.httpVersion === '1.0') socket.destroy();
    else for (const delayMs of PROBES_MS) timers.push(setTimeout(probe, delayMs));
  };
  // It may have ended while the requests before this one were answered.
  if (socket.readableEnded) ended();
  else socket.once('end', ended);
  response.once('close', () => {
    socket.off('end', ended);
    for (const timer of timers) clearTimeout(timer);
  });
}
