// A model server that is a real HTTP server: it records what it gets, and answers as the test says.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { once } from 'node:events';
import { createServer as createTlsServer } from 'node:https';
import { connect, type AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';

/** A leg as it arrived. */
export interface RecordedLeg {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
  readonly rawHeaders: readonly string[];
  readonly body: Buffer;
}

export interface ModelServerOptions {
  readonly host?: string;
  readonly port?: number;
  readonly tls?: { readonly cert: string; readonly key: string };
}

export type Script = (leg: RecordedLeg, response: ServerResponse) => void;

const OK: Script = (_leg, response) => {
  response.setHeader('content-type', 'application/json');
  response.end('{"ok":true}');
};

export class ModelServer {
  readonly legs: RecordedLeg[] = [];
  script: Script = OK;
  /** Connections that the other side ended before their answer was complete. */
  abortedCount = 0;
  /** Connections that are open. */
  connectionCount = 0;
  #onEvent: (() => void)[] = [];
  readonly #server: Server;

  private constructor({ tls }: ModelServerOptions) {
    const record = (request: IncomingMessage, response: ServerResponse): void => {
      response.on('close', () => {
        if (!response.writableFinished) this.abortedCount++;
        this.#event();
      });
      void this.#record(request, response);
    };
    this.#server = tls === undefined ? createServer(record) : createTlsServer(tls, record);
    this.#server.on('connection', (socket) => {
      this.connectionCount++;
      socket.once('close', () => {
        this.connectionCount--;
        this.#event();
      });
    });
  }

  static async start(options: ModelServerOptions = {}): Promise<ModelServer> {
    const model = new ModelServer(options);
    // The sidecar dials "localhost", which may be either family.
    model.#server.listen(options.port ?? 0, options.host ?? '127.0.0.1');
    await once(model.#server, 'listening');
    return model;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Settles once the condition holds; looks again after every event of the server. */
  async until(condition: () => boolean): Promise<void> {
    while (!condition()) {
      await new Promise<void>((resolve) => {
        this.#onEvent.push(resolve);
      });
    }
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  async #record(request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      const body = await buffer(request);
      const leg = {
        method: request.method ?? '',
        path: request.url ?? '',
        headers: request.headers,
        rawHeaders: request.rawHeaders,
        body,
      };
      this.legs.push(leg);
      this.script(leg, response);
    } catch {
      this.abortedCount++;
    }
    this.#event();
  }

  #event(): void {
    for (const wake of this.#onEvent.splice(0)) wake();
  }
}

/** Sends bytes as they stand and gives back everything until the other side closes. */
export async function rawExchange(port: number, text: string): Promise<string> {
  const socket = connect(port, '127.0.0.1');
  socket.write(Buffer.from(text, 'latin1'));
  return (await buffer(socket)).toString('latin1');
}
