// Connections that change their protocol, such as WebSocket: passed through both ways.

import { ServerResponse, type IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import type { RawHeaders } from './headers.js';

/** Whether a request to upgrade is followed. Others (h2c of some HTTP clients) are answered as if they had not asked. */
export function isFollowed(request: IncomingMessage): boolean {
  return (request.headers.upgrade ?? '').toLowerCase() === 'websocket';
}

/**
 * The head of the request without its wish to upgrade, to be read once more: Node has stopped parsing the connection.
 */
export function headWithoutUpgrade(request: IncomingMessage): Buffer {
  const lines = [`${request.method ?? 'GET'} ${request.url ?? '/'} HTTP/${request.httpVersion}`];
  const raw = request.rawHeaders;
  for (let i = 0; i + 1 < raw.length; i += 2) {
    const name = raw[i].toLowerCase();
    if (name === 'upgrade' || name === 'http2-settings') continue;
    const value = name === 'connection' ? withoutUpgradeNames(raw[i + 1]) : raw[i + 1];
    if (name !== 'connection' || value !== '') lines.push(`${raw[i]}: ${value}`);
  }
  return Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1');
}

function withoutUpgradeNames(value: string): string {
  const names = value.split(',').map((name) => name.trim());
  return names.filter((name) => !/^(?:upgrade|http2-settings)$/i.test(name)).join(', ');
}

/** A response on a connection that Node has given away with 'upgrade'; it ends with the answer. */
export function responseOn(request: IncomingMessage, socket: Duplex): ServerResponse {
  const response = new ServerResponse(request);
  response.shouldKeepAlive = false;
  // The very socket of the request: 'upgrade' declares it as a Duplex only.
  response.assignSocket(request.socket);
  response.once('finish', () => {
    socket.end();
  });
  return response;
}

/** Joins the client's connection and the model server's after its 101. */
export function join(
  client: Duplex,
  server: Duplex,
  first: { readonly head: Buffer; readonly status: number; readonly headers: RawHeaders },
): void {
  const lines = [`HTTP/1.1 ${first.status} Switching Protocols`];
  for (let i = 0; i + 1 < first.headers.length; i += 2) {
    lines.push(`${first.headers[i]}: ${first.headers[i + 1]}`);
  }
  client.write(Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1'));
  if (first.head.length > 0) server.write(first.head);
  for (const [from, to] of [
    [client, server],
    [server, client],
  ]) {
    from.pipe(to);
    from.on('error', () => {
      to.destroy();
    });
    from.once('close', () => {
      to.destroy();
    });
  }
}
