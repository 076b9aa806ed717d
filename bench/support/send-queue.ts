// zeromq.js allows one send() per socket at a time: frames wait here for their turn.

import type { Dealer } from 'zeromq';

export class SendQueue {
  readonly #socket: Dealer;
  readonly #frames: Buffer[] = [];
  #pumping: Promise<void> | undefined;

  constructor(socket: Dealer) {
    this.#socket = socket;
  }

  send(frame: Buffer): void {
    this.#frames.push(frame);
    this.#pumping ??= this.#pump();
  }

  async whenEmpty(): Promise<void> {
    await this.#pumping;
  }

  async #pump(): Promise<void> {
    for (let frame = this.#frames.shift(); frame !== undefined; frame = this.#frames.shift()) {
      await this.#socket.send(frame);
    }
    this.#pumping = undefined;
  }
}
