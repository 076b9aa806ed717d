// What must hold between options: each rule names its options, and says reason and remedy.

import type { ResolvedOptions } from '../options.js';
import { formatBytes } from './kinds.js';
import type { OptionName } from './table.js';

export interface CrossFault {
  /** The options of the rule, at most two. */
  readonly names: readonly OptionName[];
  /** The sentence, given how the user wrote the names. */
  readonly text: (name: string, other: string) => string;
}

/** Slot numbers are int32 and the last two values are kept free (design section 3). */
const MAX_SLOTS = 2 ** 31 - 2;

/** All rules that these options break. */
export function crossChecks(options: ResolvedOptions): readonly CrossFault[] {
  return [
    ...orderFaults(options),
    ...poolFaults(options),
    ...messageFaults(options),
    ...addressFaults(options),
    ...kvEventFaults(options),
  ];
}

/** `[greater, smaller, may be equal, why]` */
const ORDERS: readonly (readonly [OptionName, OptionName, boolean, string])[] = [
  ['lookupMs', 'holdMs', false, 'a producer may hold an answer that long'],
  ['heartbeatTimeoutMs', 'heartbeatMs', false, 'a peer would be dead before it could speak'],
  ['plainStopMs', 'plainPostMs', false, 'a write started last would have no time'],
  ['handshakeMs', 'redialMs', false, 'the second dial would come too late'],
  ['handshakeMs', 'suspectedHandshakeMs', true, 'a suspected host gets less time, not more'],
  ['backoffMaxMs', 'backoffMinMs', true, 'the back-off grows from one to the other'],
  ['allPeersPinShare', 'peerPinShare', true, 'one peer cannot have more than all of them'],
];

function orderFaults(options: ResolvedOptions): readonly CrossFault[] {
  return ORDERS.filter(([greater, smaller, mayBeEqual]) => {
    const difference = Number(options[greater]) - Number(options[smaller]);
    return mayBeEqual ? difference < 0 : difference <= 0;
  }).map(([greater, smaller, mayBeEqual, why]) => ({
    names: [greater, smaller],
    text: (name, other) =>
      `${name} is ${Number(options[greater])} and ${other} is ${Number(options[smaller])}; the first must be ` +
      `${mayBeEqual ? 'at least' : 'more than'} the second, because ${why}`,
  }));
}

function poolFaults({ poolBytes, blockBytes, shards }: ResolvedOptions): readonly CrossFault[] {
  const slots = Math.floor(poolBytes / blockBytes);
  const faults: CrossFault[] = [];
  if (slots < shards) {
    faults.push({
      names: ['poolBytes', 'blockBytes'],
      text: (name, other) =>
        `${name} is ${formatBytes(poolBytes)} and ${other} is ${formatBytes(blockBytes)}: ${slots} slots for ` +
        `${shards} shards; give at least ${formatBytes(shards * blockBytes)} or fewer shards`,
    });
  }
  if (slots > MAX_SLOTS) {
    faults.push({
      names: ['poolBytes', 'blockBytes'],
      text: (name, other) =>
        `${name} is ${formatBytes(poolBytes)} and ${other} is ${formatBytes(blockBytes)}: more than ${MAX_SLOTS} ` +
        'slots; give larger blocks or a smaller pool',
    });
  }
  return faults;
}

/** What else stands in a `connect` beside the metadata, at most. */
const CONNECT_BYTES = 2048;

function messageFaults(options: ResolvedOptions): readonly CrossFault[] {
  const faults: CrossFault[] = [];
  if (options.maxMessageBytes < options.maxMetadataBytes + CONNECT_BYTES) {
    faults.push({
      names: ['maxMessageBytes', 'maxMetadataBytes'],
      text: (name, other) =>
        `${name} is ${options.maxMessageBytes} and ${other} is ${options.maxMetadataBytes}; a message must have ` +
        `room for the metadata and ${CONNECT_BYTES} bytes more`,
    });
  }
  for (const name of ['hashSeed', 'fingerprint'] as const) {
    if (Buffer.byteLength(options[name]) <= options.maxStringBytes) continue;
    faults.push({
      names: [name, 'maxStringBytes'],
      text: (label, other) => `${label} is longer than ${other}, ${options.maxStringBytes}; shorten it`,
    });
  }
  return faults;
}

function addressFaults({ host, advertise }: ResolvedOptions): readonly CrossFault[] {
  if ((host !== '0.0.0.0' && host !== '::') || advertise !== '') return [];
  return [
    {
      names: ['host', 'advertise'],
      text: (name) =>
        `${name} is ${host}, which no other node can dial; give an address of this host in advertise ` +
        '(--advertise HOST or HOST:PORT), or bind one',
    },
  ];
}

/** Hashes are the keys without their group of four bytes, and routers look at eight bytes. */
const MIN_EVENT_KEY_BYTES = 12;

function kvEventFaults(options: ResolvedOptions): readonly CrossFault[] {
  const { kvEventsPort, kvEventsReplayPort, kvEventsModel, keyBytes } = options;
  const faults: CrossFault[] = [];
  if (kvEventsPort === 'off') {
    if (kvEventsReplayPort === 'off') return [];
    return [
      {
        names: ['kvEventsReplayPort', 'kvEventsPort'],
        text: (name, other) => `${name} is ${kvEventsReplayPort} but ${other} is off; give both ports`,
      },
    ];
  }
  if (kvEventsModel === '' || kvEventsModel.includes('@')) {
    faults.push({
      names: ['kvEventsPort', 'kvEventsModel'],
      text: (name, other) =>
        `${name} is given and ${other} is ${JSON.stringify(kvEventsModel)}; give the model's name as the router ` +
        'knows it, without @, which separates the parts of the topic',
    });
  }
  if (kvEventsReplayPort === kvEventsPort && kvEventsPort !== 0) {
    faults.push({
      names: ['kvEventsReplayPort', 'kvEventsPort'],
      text: (name, other) => `${name} and ${other} are both ${kvEventsPort}; give two ports`,
    });
  }
  if (keyBytes < MIN_EVENT_KEY_BYTES) {
    faults.push({
      names: ['kvEventsPort', 'keyBytes'],
      text: (name, other) =>
        `${name} needs ${other} of at least ${MIN_EVENT_KEY_BYTES}, a hash of eight bytes and its group; it is ${keyBytes}`,
    });
  }
  return faults;
}
