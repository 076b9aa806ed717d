// What /healthz and /readyz say about a node.

import type { AdminAnswer, AdminRoute } from './admin.js';

/** Whether a node can do its work now, and how it would move blocks. */
export interface Readiness {
  readonly isReady: boolean;
  /** Why not, one sentence each; empty when ready. */
  readonly reasons: readonly string[];
  /** Undefined until the node has started. */
  readonly dataPlane: DataPlaneStatus | undefined;
}

export interface DataPlaneStatus {
  readonly name: 'nixl' | 'none';
  readonly version: string;
  /** The lanes that UCX chose. */
  readonly transports: string;
}

/** /healthz: the event loop answers. That is all it says; a restart would cure nothing else. */
export function healthRoute(): AdminRoute {
  return () => json(200, { status: 'ok' });
}

/** /readyz: 200 when the node can do its work, 503 with the reasons when not. */
export function readyRoute(readiness: () => Readiness): AdminRoute {
  return () => {
    const { isReady, reasons, dataPlane } = readiness();
    return json(isReady ? 200 : 503, { status: isReady ? 'ready' : 'not ready', reasons, dataPlane });
  };
}

function json(status: number, body: unknown): AdminAnswer {
  return { status, contentType: 'application/json; charset=utf-8', body: `${JSON.stringify(body)}\n` };
}
