// A party of the sidecar's benchmark, one role per process: the model server, the sidecar, or a bare undici pipe.

import { createServer, type Server, type ServerResponse } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Pool } from 'undici';
import { createLogger } from '../../src/main/observe/log.js';
import { createSidecar } from '../../src/main/sidecar/sidecar.js';
import { serveCalls } from '../support/child.js';

const PIECE = Buffer.alloc(64 * 1024, 0x61);
/** Pause between two events of a slow stream, as between two tokens. */
const EVENT_MS = 200;

export class BenchHttp {
  #server: Server | undefined;
  readonly #delay = monitorEventLoopDelay({ resolution: 1 });

  /** Answers `/first` with one event, `/bulk?bytes=N` with so many bytes, `/slow?events=N` with one event at a time. */
  async startModel(): Promise<number> {
    return this.#listen(
      createServer((request, response) => {
        const url = new URL(request.url ?? '/', 'http://model');
        // The body is read to its end before the answer begins.
        request.resume().once('end', () => {
          response.writeHead(200, { 'content-type': 'text/event-stream' });
          if (url.pathname === '/bulk') void sendBulk(response, Number(url.searchParams.get('bytes')));
          else if (url.pathname === '/slow') sendSlowly(response, Number(url.searchParams.get('events')));
          else response.end('data: 1\n\n');
        });
      }),
    );
  }

  async startSidecar(modelServerPort: number): Promise<number> {
    const sidecar = await createSidecar(
      { port: 0, host: '127.0.0.1', modelServerPort, secureServing: false },
      { logger: createLogger('silent') },
    );
    return sidecar.port;
  }

  /** The floor: undici's stream() into Node's server, without a rule. */
  async startPipe(modelServerPort: number): Promise<number> {
    const pool = new Pool(`http://localhost:${modelServerPort}`, { headersTimeout: 0, bodyTimeout: 0 });
    return this.#listen(
      createServer((request, response) => {
        const leg = {
          method: request.method as 'POST',
          path: request.url ?? '/',
          body: request,
          opaque: response,
        };
        void pool.stream(leg, ({ statusCode, headers, opaque }) => {
          const target = opaque as ServerResponse;
          target.writeHead(statusCode, { 'content-type': String(headers['content-type']) });
          return target;
        });
      }),
    );
  }

  /** Bytes of resident memory after a collection. Buffers are given back beside it, a little later. */
  async residentBytes(): Promise<number> {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    for (let i = 0; i < 3; i++) {
      collect();
      await sleep(50);
    }
    return process.memoryUsage.rss();
  }

  /** Begins to look how long the event loop is held. */
  watchLoop(): void {
    this.#delay.reset();
    this.#delay.enable();
  }

  /** Milliseconds, since `watchLoop`. */
  longestHoldMs(): number {
    this.#delay.disable();
    return this.#delay.max / 1e6;
  }

  async #listen(server: Server): Promise<number> {
    this.#server = server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return (server.address() as AddressInfo).port;
  }

  close(): void {
    this.#server?.closeAllConnections();
  }
}

async function sendBulk(response: ServerResponse, bytes: number): Promise<void> {
  for (let sent = 0; sent < bytes; sent += PIECE.length) {
    if (!response.write(PIECE)) await once(response, 'drain');
  }
  response.end();
}

function sendSlowly(response: ServerResponse, events: number): void {
  let left = events;
  const timer = setInterval(() => {
    if (left-- > 0) response.write('data: {"token":1}\n\n');
    else response.end();
  }, EVENT_MS);
  response.once('close', () => {
    clearInterval(timer);
  });
}

const http = new BenchHttp();
serveCalls(http, () => {
  http.close();
});
