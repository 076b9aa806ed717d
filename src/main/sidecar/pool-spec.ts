// What an InferencePool and its pods say, read from objects of the Kubernetes API as they come.

import { KvpeerError } from '../errors.js';
import { isPort } from '../params/address.js';
import type { PoolAddress } from './cluster.js';
import type { KubeObject } from './list-watch.js';

/** The API groups of InferencePool with the version that is watched: final, and before it was final. */
const GROUP_VERSIONS: ReadonlyMap<string, string> = new Map([
  ['inference.networking.k8s.io', 'v1'],
  ['inference.networking.x-k8s.io', 'v1alpha2'],
]);
const DEFAULT_GROUP = 'inference.networking.k8s.io';
/** A name of the API: it becomes a part of the request's path. */
const KUBE_NAME = /^[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?$/;

/**
 * Reads `--inference-pool` and `--pool-group`.
 *
 * @throws KVPEER_INVALID_OPTION
 */
export function parsePoolAddress(text: string, group: string = DEFAULT_GROUP): PoolAddress {
  const parts = text.split('/');
  const [namespace, name] = parts.length === 1 ? ['default', parts[0]] : parts;
  if (parts.length > 2 || !KUBE_NAME.test(namespace) || !KUBE_NAME.test(name)) {
    const message = `--inference-pool ${JSON.stringify(text)} names no InferencePool; write NAME or NAMESPACE/NAME`;
    throw new KvpeerError('KVPEER_INVALID_OPTION', message);
  }
  const version = GROUP_VERSIONS.get(group);
  if (version === undefined) {
    const known = [...GROUP_VERSIONS.keys()].join(' or ');
    const message = `--pool-group ${JSON.stringify(group)} is not known; give ${known}`;
    throw new KvpeerError('KVPEER_INVALID_OPTION', message);
  }
  return { group, version, namespace, name };
}

export interface PoolSpec {
  /** Label selector of the pods, as the API takes it. */
  readonly selector: string;
  readonly ports: readonly number[];
}

/** Both forms: `selector.matchLabels` with `targetPorts`, and the flat `selector` with `targetPortNumber`. */
export function readPoolSpec(pool: KubeObject): PoolSpec | { readonly reason: string } {
  const spec = fieldsOf(fieldsOf(pool).spec);
  const selectorFields = fieldsOf(spec.selector);
  const labels = 'matchLabels' in selectorFields ? fieldsOf(selectorFields.matchLabels) : selectorFields;
  const selector = selectorOf(labels);
  // An empty selector would select, and so allow, every pod of the namespace.
  if (selector === undefined) return { reason: 'spec.selector.matchLabels has no labels, or a wrong one' };
  const ports = Array.isArray(spec.targetPorts)
    ? spec.targetPorts.map((target) => fieldsOf(target).number)
    : [spec.targetPortNumber];
  if (ports.length === 0 || !ports.every(isPort)) {
    return { reason: 'spec.targetPorts has no ports, or a wrong one' };
  }
  return { selector, ports };
}

const LABEL = /^[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,316}[A-Za-z0-9])?$/;

function selectorOf(labels: Fields): string | undefined {
  const terms: string[] = [];
  for (const [key, value] of Object.entries(labels)) {
    if (!LABEL.test(key) || typeof value !== 'string' || !(value === '' || LABEL.test(value)))
      return undefined;
    terms.push(`${key}=${value}`);
  }
  return terms.length === 0 ? undefined : terms.sort().join(',');
}

/**
 * Every address of the pod, and its name, as upstream. A pod that has ended keeps its address in the API while another
 * pod may have it already: it has none here.
 */
export function podHosts(pod: KubeObject): readonly string[] {
  const status = fieldsOf(fieldsOf(pod).status);
  if (status.phase === 'Succeeded' || status.phase === 'Failed') return [];
  const listed: readonly unknown[] = Array.isArray(status.podIPs) ? status.podIPs : [];
  const addresses = new Set([status.podIP, ...listed.map((each) => fieldsOf(each).ip)].filter(isText));
  const name = pod.metadata?.name;
  if (addresses.size === 0) return [];
  return name === undefined ? [...addresses] : [...addresses, name];
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value !== '';
}

type Fields = Readonly<Record<string, unknown>>;

function fieldsOf(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {};
}
