// Under which identity a peer may write into this node's slots: what the quarantine is keyed by.

import { createHash } from 'node:crypto';
import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';

import { isAlive, readBootId } from '../identity.js';
import type { ConnectMessage } from '../protocol/messages.js';
import { hostOf } from './backoff.js';
import type { WriterIdentity } from './roles.js';

/** See WriterIdentity. `process` is set only when the announced process is visible here now: pid namespaces differ. */
export function writerIdentity(address: string, connect: ConnectMessage): WriterIdentity {
  const incarnation = connect.kvpeer?.incarnation;
  const isOnThisHost = incarnation ? incarnation.bootId === readBootId() : isLocalHost(hostOf(address));
  const isVisible = incarnation !== undefined && isOnThisHost && isAlive(incarnation);
  return {
    address,
    incarnation: incarnation?.id,
    agentName: agentNameOf(connect.agentMetadata),
    isOnThisHost,
    process: isVisible ? { pid: incarnation.pid, startTime: incarnation.startTime } : undefined,
  };
}

/** A peer that acknowledged us before its own `connect` came: only its address is known. */
export function unknownWriter(address: string): WriterIdentity {
  return { address, incarnation: undefined, agentName: '', isOnThisHost: true, process: undefined };
}

/** A plain peer does not say where it runs; an address of this host, or a name (which may be one), counts as here. */
function isLocalHost(host: string): boolean {
  const bare = host.replace(/^\[|\]$/g, '');
  if (isIP(bare) === 0 || bare === '::1' || bare.startsWith('127.')) return true;
  return Object.values(networkInterfaces()).some(
    (list) => list?.some(({ address }) => address === bare) === true,
  );
}

const AGENT_TAG = Buffer.from('nixlSerDes|Agent');

/**
 * The agent name in NIXL metadata: behind the tag an 8-byte little-endian length and the name. Metadata of another
 * form (another NIXL version, or none) is named by its digest, which differs whenever the metadata does.
 */
export function agentNameOf(metadata: Buffer): string {
  if (metadata.subarray(0, AGENT_TAG.length).equals(AGENT_TAG) && metadata.length >= AGENT_TAG.length + 8) {
    const length = Number(metadata.readBigUInt64LE(AGENT_TAG.length));
    const start = AGENT_TAG.length + 8;
    if (length > 0 && length <= 256 && start + length <= metadata.length) {
      return metadata.toString('utf8', start, start + length);
    }
  }
  return createHash('sha256').update(metadata).digest('hex');
}
