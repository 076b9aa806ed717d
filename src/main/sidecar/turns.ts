// The requests of one connection, one after the other.

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/**
 * Node hands over every request that a client sends ahead, at once. Answers leave in order anyway, and without turns a
 * megabyte of requests on one connection would open tens of thousands to the model server.
 */
export class Turns {
  /** What waits on connections with a request that is being answered. */
  readonly #waiting = new WeakMap<Socket, (() => void)[]>();

  /** Whether a request of this connection is being answered. */
  has(socket: Socket): boolean {
    return this.#waiting.has(socket);
  }

  /** Calls `handle` when all requests before this one are answered; never when the connection ends before. */
  take({ socket }: IncomingMessage, response: ServerResponse, handle: () => void): void {
    const begin = (): void => {
      response.once('close', () => {
        this.#next(socket);
      });
      handle();
    };
    const waiting = this.#waiting.get(socket);
    if (waiting !== undefined) {
      waiting.push(begin);
      return;
    }
    this.#waiting.set(socket, []);
    begin();
  }

  #next(socket: Socket): void {
    const begin = socket.destroyed ? undefined : this.#waiting.get(socket)?.shift();
    if (begin === undefined) this.#waiting.delete(socket);
    else begin();
  }
}
