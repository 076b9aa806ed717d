// Real ZeroMQ for tests: transports that record what they report, raw sockets that misbehave, and waiting for events.

import { Context, Dealer } from 'zeromq';
import type {
  ControlHandlers,
  ControlOptions,
  ControlTransport,
  DealerHandle,
  DownCause,
  TransportRejection,
} from '../../../src/main/control/transport.js';
import { dropMessage } from '../../../src/main/protocol/message-memory.js';
import { createControlTransport } from '../../../src/main/control/zeromq-transport.js';

/** No connection ends because a busy machine keeps its heartbeats waiting. */
export const PATIENT = { heartbeatMs: 2_000, heartbeatTimeoutMs: 60_000, lingerMs: 100 } as const;
/** A silent remote is noticed within a test. */
export const QUICK = { heartbeatMs: 250, heartbeatTimeoutMs: 1_500 } as const;

/** Waits until the condition holds; looks again at every turn of the event loop. */
export async function until(condition: () => boolean, what: string, timeoutMs = 30_000): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`waited ${timeoutMs} ms for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

export interface Recorded {
  readonly transport: ControlTransport;
  readonly messages: { from: string; payload: Buffer }[];
  readonly gone: string[];
  readonly rejected: { reason: TransportRejection; detail: string }[];
  /** Called for each message after it was recorded. */
  onMessage: (from: string, payload: Buffer) => void;
}

export interface RecordedDealer {
  readonly handle: DealerHandle;
  readonly downs: DownCause[];
  readonly connects: number[];
}

/** Everything a test opened; `closeAll` in an `afterEach`. */
export class ControlBench {
  private readonly transports: ControlTransport[] = [];
  private readonly sockets: { close(): void }[] = [];
  readonly context = new Context();

  async bound(
    settings: Partial<ControlOptions> = {},
    handlers: Pick<ControlHandlers, 'aroundReceive'> = {},
  ): Promise<Recorded> {
    const recorded: Recorded = {
      messages: [],
      gone: [],
      rejected: [],
      onMessage: () => undefined,
      transport: createControlTransport(
        { bindHost: '127.0.0.1', bindPort: 0, ...PATIENT, ...settings },
        {
          onMessage: (from, payload) => {
            recorded.messages.push({ from, payload });
            recorded.onMessage(from, payload);
          },
          onRead: (_from, message) => {
            dropMessage(message);
          },
          onPeerGone: (from) => recorded.gone.push(from),
          onRejected: (reason, detail) => recorded.rejected.push({ reason, detail }),
          ...handlers,
        },
      ),
    };
    this.transports.push(recorded.transport);
    await recorded.transport.bind();
    return recorded;
  }

  dealer(from: Recorded, address: string): RecordedDealer {
    const downs: DownCause[] = [];
    const connects: number[] = [];
    const handle = from.transport.openDealer(address, {
      onConnected: () => connects.push(performance.now()),
      onDown: (cause) => downs.push(cause),
    });
    return { handle, downs, connects };
  }

  /** A DEALER of nobody in particular, with any routing id or none. */
  raw(
    to: Recorded,
    routingId?: string | Buffer,
    settings: Partial<ConstructorParameters<typeof Dealer>[0]> = {},
  ): Dealer {
    const dealer = new Dealer({ context: this.context, linger: 0, ...settings });
    // The type says string; the option takes any bytes.
    if (routingId !== undefined) Object.assign(dealer, { routingId });
    dealer.connect(`tcp://${to.transport.localAddress}`);
    this.sockets.push(dealer);
    return dealer;
  }

  async closeAll(): Promise<void> {
    for (const socket of this.sockets) socket.close();
    await Promise.all(this.transports.map((transport) => transport.close()));
    this.sockets.length = 0;
    this.transports.length = 0;
  }
}

export function text(messages: readonly { payload: Buffer }[]): string[] {
  return messages.map(({ payload }) => payload.toString());
}
