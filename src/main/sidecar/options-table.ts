// The table of the sidecar's options: one row each, with its check, its default and what it means.

import { z } from 'zod';
import { bindHost, bytes, count, milliseconds, onOff, oneOf, type OptionKind } from '../options/kinds.js';

export const SIDECAR_OPTION_GROUPS = [
  'Ports and profile',
  'Peers',
  'Embedded peer',
  'What clients and headers may do',
  'TLS',
  'Operation',
  'Taken from the reference',
] as const;

export interface SidecarOptionSpec<T, In = T> extends OptionKind<T, In> {
  readonly group: (typeof SIDECAR_OPTION_GROUPS)[number];
  readonly help: string;
  readonly defaultValue: T;
  /** An environment variable of the reference. */
  readonly variable: string | undefined;
  /** The reference ignores a variable that is no number. */
  readonly isVariableLenient: boolean;
  /** The flag may be given several times. */
  readonly isRepeatable: boolean;
}

interface Extras {
  readonly variable?: string;
  readonly isVariableLenient?: boolean;
  readonly isRepeatable?: boolean;
}

function in_(group: SidecarOptionSpec<unknown>['group']) {
  return <T, In>(kind: OptionKind<T, In>, defaultValue: T, help: string, extras: Extras = {}) =>
    ({
      ...kind,
      group,
      help,
      defaultValue,
      variable: extras.variable,
      isVariableLenient: extras.isVariableLenient ?? false,
      isRepeatable: extras.isRepeatable ?? false,
    }) satisfies SidecarOptionSpec<T, In>;
}

/** Absent unless given. */
function optional<T, In>(kind: OptionKind<T, In>): OptionKind<T | undefined, In | undefined> {
  return { ...kind, schema: z.union([z.undefined(), kind.schema]) };
}

function text(placeholder: string, allowed: string): OptionKind<string> {
  return { schema: z.string().min(1), fromText: (value) => value, allowed, placeholder };
}

/** A list, written with commas on the command line. */
function list(allowed: string, placeholder: string): OptionKind<readonly string[]> {
  return {
    schema: z.array(z.string().min(1)).readonly(),
    fromText: (value) => value.split(',').map((item) => item.trim()),
    allowed,
    placeholder,
  };
}

/** The legs that TLS settings can name. There is no encoder leg here; naming it has no effect. */
function stages(): OptionKind<readonly ('prefiller' | 'decoder' | 'encoder')[]> {
  const words = ['prefiller', 'decoder', 'encoder'] as const;
  return {
    schema: z.array(z.enum(words)).readonly(),
    fromText: (value) => (value === '' ? [] : value.split(',').map((item) => item.trim())),
    allowed: `a list of ${words.join(', ')}`,
    placeholder: 'STAGES',
  };
}

/** Only the value that asks for nothing: the feature is not here, and a deployment that needs it must be told. */
function only<T extends string | number>(value: T, reason: string, placeholder: string): OptionKind<T> {
  return {
    schema: z.literal(value),
    fromText: (given) => (typeof value === 'number' ? Number(given) : given),
    allowed: `${JSON.stringify(value)}: ${reason}`,
    placeholder,
  };
}

/** A time as Go writes it: `200ms`, `1.5s`, `2m`. Milliseconds here. */
function goDuration(): OptionKind<number, number | string> {
  const parsed = z.string().transform((value, context) => {
    const match = /^(\d+(?:\.\d+)?)(ms|s|m|h)$/.exec(value);
    if (match !== null) return Number(match[1]) * GO_UNITS[match[2]];
    if (value === '0') return 0;
    context.addIssue({ code: 'custom', message: 'no duration' });
    return z.NEVER;
  });
  return {
    schema: z.union([z.number().min(0), parsed]),
    fromText: (value) => value,
    allowed: 'a time like 200ms or 1.5s',
    placeholder: 'TIME',
  };
}

const GO_UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };

const ports = in_('Ports and profile');
const peers = in_('Peers');
const embedded = in_('Embedded peer');
const trust = in_('What clients and headers may do');
const tls = in_('TLS');
const operation = in_('Operation');
const reference = in_('Taken from the reference');

export const SIDECAR_OPTIONS = {
  profile: ports(oneOf(['A', 'B']), 'B', 'A: the reference of August 2026; B: its main branch since'),
  port: ports(count(0, 65_535, 'PORT'), 8000, 'port that is served; rank r at port + r'),
  host: ports(optional(bindHost()), undefined, 'address that is bound (default: all)'),
  modelServerPort: ports(
    count(1, 65_535, 'PORT'),
    8200,
    'port of the model server on this host; rank r at port + r',
  ),
  dataParallelSize: ports(count(1, 1024), 1, 'local data-parallel ranks'),

  kvConnector: peers(
    only(
      'offloading',
      "other connectors have no place in this sidecar; keep llm-d's own in front of engines that use them",
      'NAME',
    ),
    'offloading',
    'the connector of the engines: vLLM with the P2P tier',
  ),
  p2pConnectorPort: peers(
    count(1, 65_535, 'PORT'),
    7777,
    "base port of the engines' P2P tier (vLLM's own default is 5710)",
    { variable: 'P2P_CONNECTOR_PORT', isVariableLenient: true },
  ),
  enablePrefillerSampling: peers(onOff(), false, 'choose among several prefillers at random', {
    variable: 'ENABLE_PREFILLER_SAMPLING',
  }),
  podIp: peers(
    optional(text('HOST', 'a host')),
    undefined,
    'address of this pod, so that it is not told to pull from itself',
    { variable: 'POD_IP' },
  ),

  pullBlockTokens: embedded(
    count(1, 65_536),
    16,
    "tokens of a block of the engine's prefix cache, of which its hash is made",
  ),
  pullHashesPerBlock: embedded(
    count(1, 4096),
    1,
    "hashes in one block of the peer (vLLM's offloading block size by its block size)",
  ),
  pullMaxMs: embedded(milliseconds(), 2_000, 'a pull ahead of the engine that takes longer is given up'),
  pullMaxBytes: embedded(
    bytes(4096, 2 ** 46),
    256 * 2 ** 20,
    'leading blocks of a prompt are pulled ahead up to this size',
  ),
  enginePullsFrom: embedded(
    oneOf(['source', 'peer']),
    'peer',
    "whom the engine's tier asks for a prompt that is pulled ahead",
  ),
  pullWaitMs: embedded(
    milliseconds(),
    20,
    'time for the source to say what it has, before the engine is told to ask it itself',
  ),
  pullMaxRunning: embedded(count(0, 65_536), 32, 'pulls ahead at the same time, 0 for none'),

  trustClientParams: trust(
    onOff(),
    false,
    'check and pass on kv_transfer_params of clients; else they are removed',
  ),
  kvHints: trust(
    onOff(),
    false,
    'pull from the source that kv_hints of a request name, unless a header or params name one',
  ),
  legKeyFile: trust(
    optional(text('FILE', 'a file')),
    undefined,
    'key that sidecars share, so that the params of a prefill leg pass the sidecar of its prefiller',
  ),
  enableSsrfProtection: trust(onOff(), false, 'follow routing headers to allowed endpoints only'),
  ssrfAllow: trust(
    list('HOST:PORT', 'HOST:PORT'),
    [],
    'an allowed endpoint; may be repeated; turns the protection on',
    { isRepeatable: true },
  ),
  ssrfAllowFile: trust(
    optional(text('FILE', 'a file')),
    undefined,
    'allowed endpoints, one per line; watched; turns the protection on',
  ),
  inferencePool: trust(
    optional(text('POOL', 'NAME or NAMESPACE/NAME')),
    undefined,
    'InferencePool whose pods are allowed, watched in Kubernetes',
    { variable: 'INFERENCE_POOL' },
  ),
  poolGroup: trust(
    optional(text('GROUP', 'an API group')),
    undefined,
    'API group of the InferencePool (default: inference.networking.k8s.io)',
  ),

  secureServing: tls(onOff(), true, 'serve over TLS; profile A knows --secure-proxy only, as the reference'),
  secureProxy: tls(optional(onOff()), undefined, 'older name of --secure-serving, in both profiles'),
  certPath: tls(
    optional(text('DIR', 'a directory')),
    undefined,
    'directory of tls.crt and tls.key, read again when they change (default: a self-signed certificate)',
  ),
  tlsMinVersion: tls(
    optional(text('VERSION', 'VersionTLS12 or VersionTLS13')),
    undefined,
    'lowest version that is served (default: VersionTLS12)',
  ),
  tlsCipherSuites: tls(
    optional(list('names of cipher suites', 'SUITES')),
    undefined,
    'cipher suites of TLS 1.2 (default: six with ECDHE)',
  ),
  enableTls: tls(stages(), [], 'legs that are sent over TLS'),
  tlsInsecureSkipVerify: tls(stages(), [], 'legs whose certificate is not verified'),

  drainMs: operation(milliseconds(0), 60_000, 'time for running answers when the sidecar ends'),
  metricsPort: operation(count(0, 65_535, 'PORT'), 0, 'port of /metrics, 0 for none'),
  logLevel: operation(
    oneOf(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']),
    'info',
    'lowest level that is logged',
  ),

  ecConnector: reference(
    only('', "there is no encoder leg; leave it out, or keep llm-d's own sidecar", 'NAME'),
    '',
    'must be empty: there is no encoder leg',
  ),
  decodeChunkSize: reference(
    only(0, "there is no chunked decode; leave it out, or keep llm-d's own sidecar", 'N'),
    0,
    'must be 0: there is no chunked decode',
  ),
  enableP2pPull: reference(onOff(), false, 'refused: for the connector nixlv2 only'),
  prefillMaxRetries: reference(count(0, 1000), 0, 'no effect with the connector offloading'),
  prefillRetryBackoff: reference(goDuration(), 200, 'no effect with the connector offloading'),
  maxIdleConnsPerHost: reference(
    count(0, 65_535),
    1024,
    'connections to one model server that stay open after their answer, for 4 s; 0 for none',
  ),
  tracing: reference(
    onOff(),
    false,
    'no effect: trace context is passed to both legs, spans are not exported',
  ),
} as const;

export type SidecarOptionName = keyof typeof SIDECAR_OPTIONS;
