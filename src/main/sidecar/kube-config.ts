// Whether there is a cluster to ask, found out before the client library is loaded: loading it takes a second or more.

import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { KvpeerError } from '../errors.js';

const SERVICE_ACCOUNT_TOKEN = '/var/run/secrets/kubernetes.io/serviceaccount/token';

/** The places where the library looks: KUBECONFIG, ~/.kube/config, the service account of this pod. */
export function hasKubeConfig(env: NodeJS.ProcessEnv = process.env): boolean {
  const { KUBECONFIG: named = '', HOME: home = homedir() } = env;
  return named !== '' || existsSync(join(home, '.kube/config')) || existsSync(SERVICE_ACCOUNT_TOKEN);
}

export function noCluster(reason: string, cause?: unknown): KvpeerError {
  const remedy = 'set KUBECONFIG, or run in a pod with a service account';
  const message = `no Kubernetes cluster to watch the InferencePool in: ${reason}; ${remedy}`;
  return new KvpeerError('KVPEER_KUBERNETES', message, { cause });
}
