// Lets a client that is still sending its body get the answer that came before.

import type { IncomingMessage, ServerResponse } from 'node:http';

/** How often the client is looked at: one that sent nothing in between has read its answer, or never will. */
const LOOK_MS = 5_000;
/** An upload that goes on for longer after its answer is cut. */
const MAX_LOOKS = 6;

/**
 * Reads on, and away, what a client sends after its answer is complete, until its request is complete or the bounds are
 * reached. Closing the connection before would reset it, and a reset makes the client's system throw away the answer that
 * it has not yet read.
 */
export function linger(request: IncomingMessage, response: ServerResponse): void {
  // Before Node's own listener, which closes a connection that was promised to end with this answer.
  response.prependListener('finish', () => {
    if (request.complete || request.socket.destroyed) return;
    const { socket } = request;
    const close = socket.destroySoon.bind(socket);
    let isClosing = false;
    socket.destroySoon = () => {
      isClosing = true;
      socket.end();
    };
    let bytes = socket.bytesRead;
    let looks = 0;
    const timer = setInterval(() => {
      if (socket.bytesRead === bytes || ++looks === MAX_LOOKS) socket.destroy();
      bytes = socket.bytesRead;
    }, LOOK_MS);
    socket.once('close', () => {
      clearInterval(timer);
    });
    request.once('end', () => {
      clearInterval(timer);
      socket.destroySoon = close;
      if (isClosing) close();
    });
    request.unpipe().resume();
  });
}
