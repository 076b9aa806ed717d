// One listening port: HTTP/1.1 in clear or over TLS, with the limits of the reference.

import {
  createServer,
  type IncomingMessage,
  type Server,
  type ServerOptions,
  type ServerResponse,
} from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { TLSSocket } from 'node:tls';
import { KvpeerError } from '../errors.js';
import { formatHostPort } from '../params/address.js';
import { keepHalfOpen, watchHalfOpen } from './half-open.js';
import type { ServingTls } from './tls.js';
import { Turns } from './turns.js';
import { headWithoutUpgrade, isFollowed } from './upgrade.js';

export interface ListenerOptions {
  /** Address to bind; undefined for all. */
  readonly host: string | undefined;
  readonly port: number;
  readonly tls: ServingTls | undefined;
  readonly onRequest: (request: IncomingMessage, response: ServerResponse) => void;
  readonly onUpgrade: (request: IncomingMessage, socket: Duplex, head: Buffer) => void;
}

const LIMITS: ServerOptions = {
  headersTimeout: 30_000,
  // Node looks every 30 s by default: a head could take twice its time.
  connectionsCheckingInterval: 5_000,
  // A body may take as long as its client does: uploads and pauses are the client's affair.
  requestTimeout: 0,
  keepAliveTimeout: 300_000,
  maxHeaderSize: 1 << 20,
  // Checked with the request, so that the answer says what is wrong.
  requireHostHeader: false,
};
/** Time for the first byte of a TLS connection. */
const FIRST_BYTE_MS = 30_000;
const TLS_HANDSHAKE_RECORD = 0x16;

export class Listener {
  readonly #server: Server;
  readonly #options: ListenerOptions;
  #isDraining = false;
  /** All of them: Node's server forgets those that speak another protocol, or are not yet through with TLS. */
  readonly #sockets = new Set<Socket>();
  /** Those without a request so far, by their addresses: a TLS socket and the one below it are the same connection. */
  readonly #silent = new Map<string, Socket>();

  private constructor(server: Server, options: ListenerOptions) {
    this.#server = server;
    this.#options = options;
    server.on('connection', (socket: Socket) => {
      // Once more, for each wish to upgrade that is read past.
      if (this.#sockets.has(socket)) return;
      this.#sockets.add(socket);
      const key = addressesOf(socket);
      this.#silent.set(key, socket);
      socket.once('close', () => {
        this.#sockets.delete(socket);
        this.#silent.delete(key);
      });
    });
    server.on('secureConnection', (socket: Socket) => this.#silent.set(addressesOf(socket), socket));
    server.on('request', (request, response) => {
      this.#silent.delete(addressesOf(request.socket));
      response.once('close', () => {
        // Its head left before the drain and promised to keep the connection: nobody else would end it now.
        if (!this.#isDraining) return;
        setImmediate(() => {
          server.closeIdleConnections();
        });
      });
    });
  }

  /** @throws KVPEER_BIND */
  static async open(options: ListenerOptions): Promise<Listener> {
    const { tls, host, port } = options;
    const server = tls === undefined ? createServer(LIMITS) : createTlsServer({ ...LIMITS, ...tls.options });
    if (tls !== undefined) {
      tls.serve(server as ReturnType<typeof createTlsServer>);
      refusePlainText(server);
    }
    // By default Node takes 1,000 lines and drops the others without a word, also the length of the body.
    server.maxHeadersCount = 0;
    keepHalfOpen(server);
    const turns = new Turns();
    const take = (request: IncomingMessage, response: ServerResponse): void => {
      turns.take(request, response, () => {
        watchHalfOpen(request, response);
        options.onRequest(request, response);
      });
    };
    server.on('request', take);
    // Answered once, here; the legs carry no `expect`.
    server.on('checkContinue', (request, response) => {
      response.writeContinue();
      take(request, response);
    });
    server.on('upgrade', (request, socket, head) => {
      // Node has let go of the connection, and with it of the answers before this one. Nobody asks for another protocol
      // while he waits for those.
      if (turns.has(request.socket)) {
        socket.destroy();
        return;
      }
      if (isFollowed(request)) {
        options.onUpgrade(request, socket, head);
        return;
      }
      socket.unshift(Buffer.concat([headWithoutUpgrade(request), head]));
      server.emit(tls === undefined ? 'connection' : 'secureConnection', socket);
    });
    await new Promise<void>((resolve, reject) => {
      const fail = (cause: Error): void => {
        const address = formatHostPort({ host: host ?? '*', port });
        const message = `the address ${address} cannot be bound: ${cause.message}; give another --port, or free it`;
        reject(new KvpeerError('KVPEER_BIND', message, { cause }));
      };
      server.once('error', fail);
      server.listen({ host, port }, () => {
        server.off('error', fail);
        resolve();
      });
    });
    return new Listener(server, options);
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** `host:port` as bound. */
  get address(): string {
    return formatHostPort({ host: this.#options.host ?? '::', port: this.port });
  }

  /**
   * Takes no new connections and closes those without a request, also without a first one: Node's server counts such a
   * connection as busy until its head is overdue. Settles when all connections have ended.
   */
  async drain(): Promise<void> {
    this.#isDraining = true;
    await new Promise<void>((resolve) => {
      this.#server.close(() => {
        resolve();
      });
      this.#server.closeIdleConnections();
      for (const socket of this.#silent.values()) if (this.#isIdle(socket)) socket.destroy();
    });
  }

  /** Nothing of a request has arrived. A TLS handshake that is not through counts for nothing. */
  #isIdle(socket: Socket): boolean {
    const isHandshake = this.#options.tls !== undefined && !(socket instanceof TLSSocket);
    return isHandshake || socket.bytesRead === 0;
  }

  /** Ends every connection. */
  destroy(): void {
    this.#server.closeAllConnections();
    for (const socket of this.#sockets) socket.destroy();
  }
}

function addressesOf(socket: Socket): string {
  return `${socket.localAddress ?? ''} ${socket.remoteAddress ?? ''} ${socket.remotePort ?? 0}`;
}

/**
 * A client that speaks plain HTTP to a TLS port is told so. Its first byte decides before TLS sees the connection, since
 * TLS could only break it off.
 */
function refusePlainText(server: Server): void {
  const accept = server.listeners('connection');
  server.removeAllListeners('connection');
  server.on('connection', (socket: Socket) => {
    socket.setTimeout(FIRST_BYTE_MS, () => {
      socket.destroy();
    });
    socket.on('error', () => undefined);
    socket.once('data', (first: Buffer) => {
      socket.pause();
      socket.setTimeout(0);
      if (first[0] === TLS_HANDSHAKE_RECORD) {
        socket.unshift(first);
        for (const listener of accept) listener.call(server, socket);
        return;
      }
      const text = 'Client sent an HTTP request to an HTTPS server.\n';
      socket.end(
        `HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: ${text.length}\r\nconnection: close\r\n\r\n${text}`,
      );
    });
  });
}
