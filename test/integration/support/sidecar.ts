// A sidecar under test, and clients that write their requests byte by byte.

import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { createLogger } from '../../../src/main/observe/log.js';
import type { SidecarOptions } from '../../../src/main/sidecar/options.js';
import { createSidecar, type Sidecar, type SidecarParts } from '../../../src/main/sidecar/sidecar.js';

export const CHAT = '/v1/chat/completions';
export const FROM_SOURCE = 'x-kv-cache-source-host-port: 10.0.0.9:8000\r\n';

/** In clear, on a free port of 127.0.0.1. */
export function startSidecar(
  modelServerPort: number,
  options: SidecarOptions = {},
  parts: SidecarParts = {},
): Promise<Sidecar> {
  return createSidecar(
    { port: 0, host: '127.0.0.1', modelServerPort, secureServing: false, ...options },
    { logger: createLogger('silent'), ...parts },
  );
}

/** A whole request as bytes. @param headers lines, each with its end */
export function requestText(path: string, body: string | Buffer, headers = 'connection: close\r\n'): string {
  const bytes = Buffer.from(body);
  const head = `POST ${path} HTTP/1.1\r\nhost: a\r\n${headers}content-length: ${bytes.length}\r\n\r\n`;
  return head + bytes.toString('latin1');
}

/** A server of raw connections. */
export interface RawServer {
  readonly port: number;
  close(): Promise<void>;
}

/** @param serve gets every connection; its errors are its own affair */
export async function rawServer(serve: (socket: Socket) => void): Promise<RawServer> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined).on('close', () => sockets.delete(socket));
    serve(socket);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    close: async () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}

/** A connected client; its errors show themselves by 'close'. @param isHalfOpen its own side stays open after the other's end */
export async function opened(port: number, isHalfOpen = false): Promise<Socket> {
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: isHalfOpen });
  socket.on('error', () => undefined);
  await once(socket, 'connect');
  return socket;
}

/** What a metric of the sidecar counts for these labels, 0 when it has none. */
export async function counted(sidecar: Sidecar, line: string): Promise<number> {
  const text = await sidecar.metrics.registry.metrics();
  const found = text.split('\n').find((each) => each.startsWith(`${line} `));
  return found === undefined ? 0 : Number(found.slice(line.length + 1));
}
