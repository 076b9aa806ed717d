// What `kvpeer pull` says: the report as an object, and as text.

export interface PulledKey {
  /** In hexadecimal. */
  readonly key: string;
  /** The peer said that it holds the block, or was expected to. */
  readonly promised: boolean;
  /** 0 when the block did not come. */
  readonly bytes: number;
  /** Of the block; absent when it did not come. */
  readonly sha256?: string;
}

export interface PullReport {
  readonly from: string;
  readonly mode: string;
  readonly kvRequestId: string;
  readonly blockBytes: number;
  /** The peer answered, and everything that it promised arrived. */
  readonly ok: boolean;
  /** Why not, or why keys were misses without the peer's word. */
  readonly reason?: string;
  /** Lines of the input, duplicates included. */
  readonly keyCount: number;
  readonly promised: number;
  readonly loaded: number;
  readonly bytes: number;
  readonly handshakeMs: number;
  readonly lookupMs?: number;
  readonly loadMs?: number;
  readonly keys: readonly PulledKey[];
}

export function renderPull(report: PullReport): string {
  const { from, ok, reason, promised, loaded, bytes, keyCount } = report;
  const lines = report.keys.map(({ key, promised: isHit, sha256 }) => {
    if (sha256 !== undefined) return `${key}  hit   ${sha256}`;
    return `${key}  ${isHit ? 'lost' : 'miss'}`;
  });
  const times = [
    `handshake ${report.handshakeMs} ms`,
    ...(report.lookupMs === undefined ? [] : [`lookup ${report.lookupMs} ms`]),
    ...(report.loadMs === undefined ? [] : [`load ${report.loadMs} ms`]),
  ].join(', ');
  lines.push(
    `${from}: ${keyCount} keys, ${promised} promised, ${loaded} came, ${bytes} bytes; ${times}`,
    ...(reason === undefined ? [] : [`reason: ${reason}`]),
    ok ? 'ok' : 'failed',
  );
  return `${lines.join('\n')}\n`;
}
