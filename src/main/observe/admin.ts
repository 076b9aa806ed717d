// The admin server: a few GET routes over HTTP, on loopback unless told otherwise.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Registry } from 'prom-client';
import { KvpeerError } from '../errors.js';
import { formatHostPort } from '../params/address.js';

export interface AdminAnswer {
  readonly status: number;
  readonly contentType: string;
  readonly body: string;
}

export type AdminRoute = () => AdminAnswer | Promise<AdminAnswer>;

export interface AdminServer {
  /** `host:port` as bound. */
  readonly address: string;
  /** Stops listening, lets running answers end, closes idle connections. Idempotent. */
  close(): Promise<void>;
}

export interface AdminOptions {
  readonly host: string;
  /** 0 takes a free port. */
  readonly port: number;
  /** By path, exact. */
  readonly routes: Readonly<Record<string, AdminRoute>>;
  /** Told of a route that threw; the client sees a 500 without the reason. */
  readonly onError: (path: string, error: unknown) => void;
}

/** Scrapers and probes are few; whoever opens more connections is none. */
const MAX_CONNECTIONS = 64;
const REQUEST_MS = 10_000;
/** Time for running answers when the server closes. */
const CLOSE_MS = 1_000;

/** Starts the server. @throws KVPEER_BIND when the address cannot be bound */
export async function startAdmin(options: AdminOptions): Promise<AdminServer> {
  const server = createServer(
    { requestTimeout: REQUEST_MS, headersTimeout: REQUEST_MS, keepAliveTimeout: 5_000 },
    (request, response) => {
      void answer(request, response, options);
    },
  );
  server.maxConnections = MAX_CONNECTIONS;
  await listen(server, options);
  const { address, port } = server.address() as AddressInfo;
  let closing: Promise<void> | undefined;
  return {
    address: formatHostPort({ host: address, port }),
    close: () => (closing ??= close(server)),
  };
}

/** /metrics of a registry. */
export function metricsRoute(registry: Registry): AdminRoute {
  return async () => ({ status: 200, contentType: registry.contentType, body: await registry.metrics() });
}

async function answer(
  request: IncomingMessage,
  response: ServerResponse,
  options: AdminOptions,
): Promise<void> {
  const path = (request.url ?? '/').split('?', 1)[0];
  const isHead = request.method === 'HEAD';
  const found = await choose(path, request.method ?? '', options);
  // A body that nobody reads would keep the connection from being used again.
  request.resume();
  if (found.status === 405) response.setHeader('allow', 'GET, HEAD');
  response.setHeader('content-type', found.contentType);
  response.setHeader('content-length', Buffer.byteLength(found.body));
  response.setHeader('cache-control', 'no-store');
  response.statusCode = found.status;
  response.end(isHead ? undefined : found.body);
}

async function choose(path: string, method: string, options: AdminOptions): Promise<AdminAnswer> {
  if (!Object.hasOwn(options.routes, path)) {
    return text(404, `nothing is here; see ${Object.keys(options.routes).join(', ')}`);
  }
  if (method !== 'GET' && method !== 'HEAD') return text(405, 'only GET and HEAD are answered');
  try {
    return await options.routes[path]();
  } catch (error) {
    options.onError(path, error);
    return text(500, 'the answer could not be made; the log says why');
  }
}

function text(status: number, line: string): AdminAnswer {
  return { status, contentType: 'text/plain; charset=utf-8', body: `${line}\n` };
}

function listen(server: Server, { host, port }: AdminOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (cause: Error): void => {
      const message =
        `the admin address ${formatHostPort({ host, port })} cannot be bound: ${cause.message}; ` +
        'give another --admin-host or --admin-port, or free it';
      reject(new KvpeerError('KVPEER_BIND', message, { cause }));
    };
    server.once('error', fail);
    server.listen({ host, port }, () => {
      server.off('error', fail);
      resolve();
    });
  });
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      server.closeAllConnections();
    }, CLOSE_MS);
    server.close(() => {
      clearTimeout(timer);
      resolve();
    });
    server.closeIdleConnections();
  });
}
