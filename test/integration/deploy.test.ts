// The manifests under deploy/, rendered by a real client, agree with themselves and with the options of the programs.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { describe, expect, onTestFinished, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { z } from 'zod';

import {
  flagOf,
  OPTION_NAMES,
  resolveOptions,
  type OptionName,
  type ResolvedOptions,
} from '../../src/main/options.js';
import { topicOf } from '../../src/main/events/start.js';
import {
  resolveSidecarOptions,
  SIDECAR_OPTION_NAMES,
  sidecarFlagOf,
} from '../../src/main/sidecar/options.js';
import { packageRoot } from '../../src/shared/nixl-dir.js';
import { freePort } from '../helpers/free-port.js';

const DEPLOY = join(packageRoot, 'deploy');

/** The first client that is there, as the words before the folder's name. */
const CLIENT = [
  ['kubectl', 'kustomize'],
  ['kustomize', 'build'],
  [join(packageRoot, '.cache/bin/kustomize'), 'build'],
].find(([command]) => spawnSync(command, ['--help'], { stdio: 'ignore' }).status === 0);

if (CLIENT === undefined) console.warn('deploy: neither kubectl nor kustomize is here: nothing is rendered');

const Quantities = z.record(z.string(), z.string());
const Probe = z.object({
  httpGet: z.object({ path: z.string(), port: z.number() }),
  periodSeconds: z.number().optional(),
  failureThreshold: z.number().optional(),
  initialDelaySeconds: z.number().optional(),
});
const Container = z.object({
  name: z.string(),
  image: z.string(),
  restartPolicy: z.string().optional(),
  command: z.array(z.string()).optional(),
  args: z.array(z.string()),
  env: z.array(
    z.object({
      name: z.string(),
      value: z.string().optional(),
      valueFrom: z
        .object({ configMapKeyRef: z.object({ name: z.string(), key: z.string() }).optional() })
        .loose()
        .optional(),
    }),
  ),
  ports: z.array(z.object({ name: z.string(), containerPort: z.number() })),
  startupProbe: Probe,
  livenessProbe: Probe,
  readinessProbe: Probe,
  lifecycle: z.object({ preStop: z.object({ sleep: z.object({ seconds: z.number() }) }) }).optional(),
  resources: z.object({ requests: Quantities, limits: Quantities }),
  volumeMounts: z.array(z.object({ name: z.string(), mountPath: z.string() })).default([]),
  securityContext: z
    .object({
      runAsNonRoot: z.boolean().optional(),
      runAsUser: z.number().optional(),
      allowPrivilegeEscalation: z.boolean().optional(),
      readOnlyRootFilesystem: z.boolean().optional(),
      capabilities: z.object({ add: z.array(z.string()).default([]), drop: z.array(z.string()).default([]) }),
    })
    .optional(),
});
type Container = z.infer<typeof Container>;
const Deployment = z.object({
  kind: z.literal('Deployment'),
  spec: z.object({
    selector: z.object({ matchLabels: Quantities }),
    template: z.object({
      metadata: z.object({ labels: Quantities }),
      spec: z.object({
        serviceAccountName: z.string(),
        automountServiceAccountToken: z.boolean(),
        terminationGracePeriodSeconds: z.number(),
        initContainers: z.array(Container),
        containers: z.array(Container),
        volumes: z.array(
          z.object({
            name: z.string(),
            emptyDir: z.object({ medium: z.string(), sizeLimit: z.string() }).optional(),
          }),
        ),
      }),
    }),
  }),
});
const KvTransferConfig = z.object({
  kv_connector: z.literal('OffloadingConnector'),
  kv_connector_extra_config: z.object({
    cpu_bytes_to_use: z.number(),
    offload_prompt_only: z.literal(false),
    self_describing_kv_events: z.literal(true),
    secondary_tiers: z.tuple([z.object({ type: z.literal('p2p'), host: z.string(), port: z.number() })]),
  }),
});
const KvEventsConfig = z.object({ endpoint: z.string(), topic: z.string() });
const Role = z.object({
  rules: z.array(
    z.object({ apiGroups: z.array(z.string()), resources: z.array(z.string()), verbs: z.array(z.string()) }),
  ),
});
const Dated = z.looseObject({ kind: z.string(), metadata: z.object({ name: z.string() }) });

class Rendered {
  readonly objects: readonly z.infer<typeof Dated>[];
  readonly pod: z.infer<typeof Deployment>['spec']['template']['spec'];
  readonly deployment: z.infer<typeof Deployment>['spec'];

  constructor(folder: string) {
    const [command, ...words] = CLIENT ?? [];
    const { status, stdout, stderr } = spawnSync(command, [...words, join(DEPLOY, folder)], {
      encoding: 'utf8',
    });
    if (status !== 0) throw new Error(stderr);
    this.objects = parseAllDocuments(stdout).map((document) => Dated.parse(document.toJS()));
    this.deployment = Deployment.parse(this.one('Deployment')).spec;
    this.pod = this.deployment.template.spec;
  }

  one(kind: string): z.infer<typeof Dated> {
    const found = this.objects.filter((object) => object.kind === kind);
    if (found.length !== 1) throw new Error(`${found.length} objects of kind ${kind}`);
    return found[0];
  }

  get containers(): readonly Container[] {
    return [...this.pod.initContainers, ...this.pod.containers];
  }

  container(name: string): Container {
    const found = this.containers.find((container) => container.name === name);
    if (found === undefined) throw new Error(`no container ${name}`);
    return found;
  }
}

/** `--name=value` words as a map, `$(NAME)` put in as the kubelet does. */
function flagsOf(container: Container, values: Readonly<Record<string, string>>): Map<string, string> {
  const flags = new Map<string, string>();
  for (const word of container.args) {
    const match = /^(--[a-z0-9-]+)(?:=(.*))?$/s.exec(word);
    if (match !== null) flags.set(match[1], substitute(match.at(2) ?? 'true', values));
  }
  return flags;
}

function substitute(text: string, values: Readonly<Record<string, string>>): string {
  return text.replaceAll(/\$\(([A-Z_]+)\)/g, (_, name: string) => values[name] ?? `$(${name})`);
}

function argAfter(container: Container, flag: string): string {
  return container.args[container.args.indexOf(flag) + 1];
}

function bytesOf(quantity: string): number {
  const match = /^(\d+)(Ki|Mi|Gi|Ti)?$/.exec(quantity);
  if (match === null) throw new Error(`${quantity} is no quantity of memory`);
  const powers: Readonly<Record<string, number>> = { Ki: 10, Mi: 20, Gi: 30, Ti: 40 };
  const unit = match.at(2);
  return Number(match[1]) * (unit === undefined ? 1 : 2 ** powers[unit]);
}

function portOf(container: Container, name: string): number | undefined {
  return container.ports.find((port) => port.name === name)?.containerPort;
}

/** Flags of the peer's options among the arguments, by option name; those of the sidecar have `--peer-` in front. */
function peerOptionsIn(flags: ReadonlyMap<string, string>, prefix: string): ResolvedOptions {
  const given = Object.fromEntries(
    OPTION_NAMES.map((name): [OptionName, string | undefined] => [
      name,
      flags.get(flagOf(name).replace('--', prefix)),
    ]).filter(([, value]) => value !== undefined),
  );
  const { options, warnings } = resolveOptions({ flags: given, flagPrefix: prefix, env: {} });
  expect(warnings).toEqual([]);
  return options;
}

/** Of the peer, wherever it runs: its events go to ports of their own, and are booked under a name of their own. */
function expectEvents(options: ResolvedOptions, container: Container, engine: Container): void {
  expect(options.kvEventsPort).toBe(portOf(container, 'peer-events'));
  expect(options.kvEventsReplayPort).toBe(portOf(container, 'peer-replays'));
  expect(options.kvEventsModel).toBe(POD.MODEL);
  expect(topicOf(options)).toBe(`kv@${POD.POD_IP}:${portOf(container, 'peer')}@${POD.MODEL}`);
  const events = KvEventsConfig.parse(JSON.parse(substitute(argAfter(engine, '--kv-events-config'), POD)));
  expect(topicOf(options)).not.toBe(events.topic);
}

const POD = { POD_IP: '127.0.0.1', HASH_SEED: '0', MODEL: 'm' };

describe.skipIf(CLIENT === undefined).each(['base', 'overlays/tcp', 'overlays/rdma'])(
  'deploy/%s',
  (folder) => {
    const rendered = CLIENT === undefined ? undefined : new Rendered(folder);
    const all = (): Rendered => {
      if (rendered === undefined) throw new Error('no client');
      return rendered;
    };

    test('has every container, volume, setting and account that it refers to', () => {
      const { pod, deployment, containers, objects } = all();
      expect(deployment.template.metadata.labels).toMatchObject(deployment.selector.matchLabels);
      expect(
        objects.some(
          ({ kind, metadata }) => kind === 'ServiceAccount' && metadata.name === pod.serviceAccountName,
        ),
      ).toBe(true);
      const settings = z.object({ data: Quantities }).parse(all().one('ConfigMap')).data;
      for (const { env, args, volumeMounts } of containers) {
        const names = env.map(({ name }) => name);
        const used = [...args.join(' ').matchAll(/\$\(([A-Z_]+)\)/g)].map(([, name]) => name);
        expect(names).toEqual(expect.arrayContaining(used));
        for (const { valueFrom } of env) {
          if (valueFrom?.configMapKeyRef === undefined) continue;
          expect(valueFrom.configMapKeyRef.name).toBe(all().one('ConfigMap').metadata.name);
          expect(settings).toHaveProperty([valueFrom.configMapKeyRef.key]);
        }
        const volumes = pod.volumes.map(({ name }) => name);
        expect(volumes).toEqual(expect.arrayContaining(volumeMounts.map(({ name }) => name)));
      }
    });

    test('gives each port to one container, and probes ports that the container has', () => {
      const ports = all().containers.flatMap((container) =>
        container.ports.map((port) => port.containerPort),
      );
      expect(new Set(ports).size).toBe(ports.length);
      for (const container of all().containers) {
        const own = container.ports.map((port) => port.containerPort);
        for (const probe of [container.startupProbe, container.livenessProbe, container.readinessProbe]) {
          expect(own).toContain(probe.httpGet.port);
        }
      }
    });

    test('starts the peer with options that the product takes', () => {
      const peer = all().container('peer');
      expect(peer.args[0]).toBe('serve');
      const flags = flagsOf(peer, POD);
      const given = Object.fromEntries(
        OPTION_NAMES.filter((name) => flags.has(flagOf(name))).map(
          (name): [OptionName, string | undefined] => [name, flags.get(flagOf(name))],
        ),
      );
      expect(Object.keys(given)).toHaveLength(flags.size);
      const options = peerOptionsIn(flags, '--');
      expectEvents(options, peer, all().container('engine'));
      expect(options.kvEventsUnknown).toBe(true);
      expect(String(options.kvEventsBlockTokens)).toBe(
        flagsOf(all().container('engine'), POD).get('--block-size'),
      );
      expect(options.port).toBe(portOf(peer, 'peer'));
      expect(options.adminPort).toBe(portOf(peer, 'admin'));
      expect(peer.startupProbe.httpGet).toEqual({ path: '/readyz', port: options.adminPort });
      expect(peer.readinessProbe.httpGet).toEqual({ path: '/readyz', port: options.adminPort });
      expect(peer.livenessProbe.httpGet).toEqual({ path: '/healthz', port: options.adminPort });
      // The kubelet asks the pod's address, not loopback.
      expect(peer.args).toContain('--admin-host=$(POD_IP)');
      expect(options.poolBytes % options.blockBytes).toBe(0);
      expect(bytesOf(peer.resources.limits.memory)).toBeGreaterThanOrEqual(options.poolBytes + 2 * 2 ** 30);
      expect(bytesOf(peer.resources.requests.memory)).toBe(bytesOf(peer.resources.limits.memory));
      const graceSeconds = all().pod.terminationGracePeriodSeconds;
      expect(graceSeconds).toBeGreaterThan(
        (peer.lifecycle?.preStop.sleep.seconds ?? 0) + options.drainMs / 1000 + 10,
      );
    });

    test('gives engine and peer the same seed and the same blocks', () => {
      const { engine, peer } = { engine: all().container('engine'), peer: all().container('peer') };
      const seedOf = (container: Container, name: string): unknown =>
        container.env.find((variable) => variable.name === name)?.valueFrom?.configMapKeyRef;
      expect(seedOf(engine, 'PYTHONHASHSEED')).toEqual(seedOf(peer, 'HASH_SEED'));
      expect(flagsOf(peer, POD).get('--hash-seed')).toBe('0');
      // Llama 3.1 8B: keys and values of 32 layers with 8 heads of 128 numbers of 2 bytes.
      const tokenBytes = 2 * 32 * 8 * 128 * 2;
      const { options } = resolveOptions({
        flags: { blockBytes: flagsOf(peer, POD).get('--block-bytes') },
        env: {},
      });
      expect(options.blockBytes).toBe(Number(flagsOf(engine, POD).get('--block-size')) * tokenBytes);
    });

    test('starts the engine with its tier, its events and its memory as the contract has them', () => {
      const engine = all().container('engine');
      const transfer = KvTransferConfig.parse(
        JSON.parse(substitute(argAfter(engine, '--kv-transfer-config'), POD)),
      );
      const { cpu_bytes_to_use: cpuBytes, secondary_tiers: tiers } = transfer.kv_connector_extra_config;
      expect(tiers[0]).toEqual({ type: 'p2p', host: POD.POD_IP, port: portOf(engine, 'engine-p2p') });
      const events = KvEventsConfig.parse(
        JSON.parse(substitute(argAfter(engine, '--kv-events-config'), POD)),
      );
      expect(events.endpoint).toBe(`tcp://*:${portOf(engine, 'kv-events')}`);
      const sidecarPort = portOf(all().container('sidecar'), 'http');
      expect(events.topic).toBe(`kv@${POD.POD_IP}:${sidecarPort}@${POD.MODEL}`);
      const shm = all().pod.volumes.find(({ name }) => name === 'shm')?.emptyDir;
      expect(shm?.medium).toBe('Memory');
      expect(engine.volumeMounts).toContainEqual({ name: 'shm', mountPath: '/dev/shm' });
      const shmBytes = bytesOf(shm?.sizeLimit ?? '');
      expect(shmBytes).toBeGreaterThanOrEqual(
        cpuBytes * Number(flagsOf(engine, POD).get('--data-parallel-size') ?? 1),
      );
      expect(bytesOf(engine.resources.limits.memory)).toBeGreaterThan(shmBytes);
      expect(Number(flagsOf(engine, POD).get('--port'))).toBe(portOf(engine, 'api'));
      expect(engine.startupProbe).toMatchObject({
        initialDelaySeconds: 15,
        periodSeconds: 30,
        failureThreshold: 60,
      });
      expect(engine.startupProbe.httpGet.path).toBe('/v1/models');
      expect(engine.readinessProbe).toMatchObject({
        httpGet: { path: '/v1/models' },
        periodSeconds: 5,
        failureThreshold: 3,
      });
      expect(engine.livenessProbe).toMatchObject({
        httpGet: { path: '/health' },
        periodSeconds: 10,
        failureThreshold: 3,
      });
    });

    test('puts the sidecar in front of the engine, as a native sidecar without rights', () => {
      const sidecar = all().container('sidecar');
      const engine = all().container('engine');
      expect(all().pod.initContainers).toContain(sidecar);
      expect(sidecar.restartPolicy).toBe('Always');
      expect(sidecar.args[0]).toBe('sidecar');
      const flags = flagsOf(sidecar, POD);
      const given = Object.fromEntries(
        SIDECAR_OPTION_NAMES.map((name) => [name, flags.get(sidecarFlagOf(name))] as const).filter(
          ([, value]) => value !== undefined,
        ),
      );
      expect(Object.keys(given)).toHaveLength(flags.size);
      const options = resolveSidecarOptions({ flags: given, env: {} });
      expect(options.metricsPort).toBe(portOf(sidecar, 'metrics'));
      const keyFolder = sidecar.volumeMounts.find(({ name }) => name === 'leg-key')?.mountPath;
      expect(options.legKeyFile).toBe(`${keyFolder}/key`);
      const preStop = engine.lifecycle?.preStop.sleep.seconds ?? 0;
      expect(all().pod.terminationGracePeriodSeconds).toBeGreaterThan(preStop + 40 + options.drainMs / 1000);
      expect(flags.get('--port')).toBe(String(portOf(sidecar, 'http')));
      expect(flags.get('--model-server-port')).toBe(String(portOf(engine, 'api')));
      expect(flags.get('--p2p-connector-port')).toBe(String(portOf(engine, 'engine-p2p')));
      expect(flags.get('--kv-connector')).toBe('offloading');
      expect(flags.get('--secure-serving')).toBe('false');
      expect(sidecar.env.map(({ name }) => name)).toContain('POD_IP');
      expect(sidecar.securityContext).toMatchObject({
        runAsNonRoot: true,
        allowPrivilegeEscalation: false,
        capabilities: { add: [], drop: ['ALL'] },
      });
    });

    test('gives the API server only to a sidecar that asks it, with the rights it needs', () => {
      const isProtected = flagsOf(all().container('sidecar'), POD).has('--enable-ssrf-protection');
      expect(isProtected).toBe(folder !== 'base');
      expect(all().pod.automountServiceAccountToken).toBe(isProtected);
      if (!isProtected) return;
      const { rules } = Role.parse(all().one('Role'));
      for (const [group, resource] of [
        ['inference.networking.k8s.io', 'inferencepools'],
        ['', 'pods'],
      ]) {
        const rule = rules.find(
          ({ apiGroups, resources }) => apiGroups.includes(group) && resources.includes(resource),
        );
        expect(rule?.verbs).toEqual(['list', 'watch']);
      }
      const pool = all()
        .container('sidecar')
        .env.find(({ name }) => name === 'INFERENCE_POOL');
      expect(pool?.value).toMatch(/^\$\(POD_NAMESPACE\)\/[a-z0-9-]+$/);
      const names = all()
        .container('sidecar')
        .env.map(({ name }) => name);
      expect(names.indexOf('POD_NAMESPACE')).toBeLessThan(names.indexOf('INFERENCE_POOL'));
    });

    test('moves blocks by the transport of its name', () => {
      for (const container of [all().container('engine'), all().container('peer')]) {
        const transports = container.env.find(({ name }) => name === 'UCX_TLS')?.value;
        const { requests, limits } = container.resources;
        const hasRdma = folder === 'overlays/rdma';
        expect(transports).toBe(folder === 'overlays/tcp' ? 'tcp,self' : undefined);
        expect([requests['rdma/ib'], limits['rdma/ib']]).toEqual(
          hasRdma ? ['1', '1'] : [undefined, undefined],
        );
        expect(container.securityContext?.capabilities.add ?? []).toEqual(hasRdma ? ['IPC_LOCK'] : []);
      }
    });
  },
);

describe.skipIf(CLIENT === undefined)('deploy/overlays/embedded', () => {
  const rendered = CLIENT === undefined ? undefined : new Rendered('overlays/embedded');
  const all = (): Rendered => {
    if (rendered === undefined) throw new Error('no client');
    return rendered;
  };

  test('has the peer in the sidecar, with options that both programs take', () => {
    expect(all().containers.map(({ name }) => name)).toEqual(['sidecar', 'engine']);
    const [sidecar, engine] = [all().container('sidecar'), all().container('engine')];
    const flags = flagsOf(sidecar, POD);
    expect(flags.get('--peer')).toBe('true');
    const options = peerOptionsIn(flags, '--peer-');
    const own = Object.fromEntries(
      SIDECAR_OPTION_NAMES.map((name) => [name, flags.get(sidecarFlagOf(name))] as const).filter(
        ([, value]) => value !== undefined,
      ),
    );
    const ofPeer = OPTION_NAMES.filter((name) => flags.has(flagOf(name).replace('--', '--peer-')));
    expect(Object.keys(own).length + ofPeer.length + 1).toBe(flags.size);
    const { pullBlockTokens, metricsPort, p2pConnectorPort } = resolveSidecarOptions({ flags: own, env: {} });
    expectEvents(options, sidecar, engine);
    expect(options.host).toBe(POD.POD_IP);
    expect(options.port).toBe(portOf(sidecar, 'peer'));
    expect(options.port).not.toBe(p2pConnectorPort);
    // What decides the keys: block size, algorithm, seed.
    const engineFlags = flagsOf(engine, POD);
    expect(String(pullBlockTokens)).toBe(engineFlags.get('--block-size'));
    expect(engineFlags.get('--prefix-caching-hash-algo')).toBe('sha256_cbor');
    expect(options.keyBytes).toBe(36);
    expect(options.hashSeed).toBe(POD.HASH_SEED);
    expect(options.blockBytes).toBe(pullBlockTokens * 2 * 32 * 8 * 128 * 2);
    expect(bytesOf(sidecar.resources.limits.memory)).toBeGreaterThanOrEqual(options.poolBytes + 4 * 2 ** 30);
    expect(sidecar.readinessProbe.httpGet).toEqual({ path: '/readyz', port: metricsPort });
    expect(sidecar.startupProbe.httpGet).toEqual({ path: '/health', port: portOf(sidecar, 'http') });
    expect(sidecar.startupProbe.failureThreshold).toBeGreaterThanOrEqual(600);
    const names = sidecar.env.map(({ name }) => name);
    const used = [...sidecar.args.join(' ').matchAll(/\$\(([A-Z_]+)\)/g)].map(([, name]) => name);
    expect(names).toEqual(expect.arrayContaining(used));
  });

  test('gives each port to one container, the transport to both, and time for both ends', () => {
    const ports = all().containers.flatMap(({ ports: own }) => own.map(({ containerPort }) => containerPort));
    expect(new Set(ports).size).toBe(ports.length);
    for (const name of ['sidecar', 'engine']) {
      expect(all().container(name).env).toContainEqual({ name: 'UCX_TLS', value: 'tcp,self' });
    }
    const preStop = all().container('engine').lifecycle?.preStop.sleep.seconds ?? 0;
    const { drainMs } = resolveSidecarOptions({ flags: {}, env: {} });
    const { options } = resolveOptions({ flags: {}, env: {} });
    expect(all().pod.terminationGracePeriodSeconds).toBeGreaterThan(
      preStop + 30 + drainMs / 1000 + options.drainMs / 1000,
    );
  });
});

describe('deploy/Dockerfile', () => {
  const lines = readFileSync(join(DEPLOY, 'Dockerfile'), 'utf8').split('\n');

  test('copies what the package needs to run, and starts the program of package.json', () => {
    const manifest = z
      .object({ bin: z.object({ kvpeer: z.string() }) })
      .parse(JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')));
    const entry = lines.find((line) => line.startsWith('ENTRYPOINT')) ?? '';
    expect(JSON.parse(entry.replace('ENTRYPOINT ', ''))).toEqual(['node', manifest.bin.kvpeer]);
    const copied = lines.filter((line) => line.startsWith('COPY --from=build')).join('\n');
    for (const path of ['package.json', 'node_modules', 'native/build', 'dist', '.cache']) {
      expect(copied).toContain(`/src/${path}`);
    }
    const ignored = readFileSync(join(DEPLOY, 'Dockerfile.dockerignore'), 'utf8').split('\n');
    for (const path of ['src', 'native', 'scripts', 'package.json', 'package-lock.json', 'LICENSE']) {
      expect(ignored).not.toContain(path);
      expect(existsSync(join(packageRoot, path))).toBe(true);
    }
  });

  test('runs as a user that Kubernetes can see is not root, and exposes the default ports', () => {
    expect(lines).toContain('USER 1000:1000');
    const { options } = resolveOptions({ flags: {}, env: {} });
    expect(lines).toContain(`EXPOSE ${options.port} ${options.adminPort} 8000`);
  });

  /** Instructions in their order, continued lines joined, comments left out. */
  const instructions = lines
    .filter((line) => !line.startsWith('#'))
    .join('\n')
    .replaceAll('\\\n', ' ')
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => {
      const [word, ...rest] = line.trim().split(/\s+/);
      return { word, rest };
    });

  test('has instructions that there are, in two stages, each with what it stands on', () => {
    const known = ['FROM', 'RUN', 'WORKDIR', 'COPY', 'ENV', 'USER', 'EXPOSE', 'ENTRYPOINT', 'CMD'];
    expect(instructions.map(({ word }) => word).filter((word) => !known.includes(word))).toEqual([]);
    expect(instructions[0].word).toBe('FROM');
    const stages = instructions.filter(({ word }) => word === 'FROM');
    expect(stages).toHaveLength(2);
    expect(stages[0].rest.slice(-2)).toEqual(['AS', 'build']);
    // What it runs beside apt is there.
    const runs = instructions.filter(({ word, rest }) => word === 'RUN' && rest[0] !== 'apt-get');
    expect(runs.map(({ rest }) => rest.join(' '))).toEqual([
      'node scripts/setup.mjs --nixl required',
      'npm prune --omit=dev --ignore-scripts',
    ]);
    expect(existsSync(join(packageRoot, 'scripts/setup.mjs'))).toBe(true);
  });

  test('leaves a folder in which both programs run, with the packages of production alone', async () => {
    // On the file system of the checkout, so that files are linked and not copied.
    mkdirSync(join(packageRoot, '.cache'), { recursive: true });
    const folder = mkdtempSync(join(packageRoot, '.cache/image-'));
    onTestFinished(() => {
      rmSync(folder, { recursive: true });
    });
    const link = (from: string, to: string): void => {
      mkdirSync(dirname(to), { recursive: true });
      expect(spawnSync('cp', ['-al', from, to]).status).toBe(0);
    };
    const second = instructions.slice(instructions.findLastIndex(({ word }) => word === 'FROM'));
    for (const { word, rest } of second) {
      if (word !== 'COPY') continue;
      const [, ...paths] = rest;
      const target = paths.pop() ?? '';
      for (const path of paths) {
        const name = path.replace('/src/', '');
        // The library has a test of its own; packages are picked below as `npm prune` does.
        if (name === '.cache' || name === 'node_modules') continue;
        link(join(packageRoot, name), join(folder, target === './' ? name : target));
      }
    }
    const lock = z
      .object({ packages: z.record(z.string(), z.object({ dev: z.boolean().optional() }).loose()) })
      .parse(JSON.parse(readFileSync(join(packageRoot, 'package-lock.json'), 'utf8')));
    for (const [path, { dev }] of Object.entries(lock.packages)) {
      const isTop = /^node_modules\/(?:@[^/]+\/)?[^/]+$/.test(path);
      if (isTop && dev !== true && existsSync(join(packageRoot, path))) {
        link(join(packageRoot, path), join(folder, path));
      }
    }
    const last = (word: string): string[] =>
      JSON.parse(instructions.findLast((one) => one.word === word)?.rest.join(' ') ?? '[]') as string[];
    const [command, ...words] = last('ENTRYPOINT');
    expect(command).toBe('node');
    const env = { PATH: process.env.PATH, HOME: '/nonexistent', NODE_ENV: 'production' };
    const small = ['--data-plane', 'none', '--pool-bytes', '4MiB', '--admin-port', 'off', '--port', '0'];
    const port = String(await freePort());
    for (const args of [
      [...last('CMD'), ...small],
      [
        ...['sidecar', '--port', port, '--host', '127.0.0.1', '--secure-serving=false'],
        ...small.map((word) => word.replace('--', '--peer-')),
      ],
    ]) {
      const run = spawn(process.execPath, [...words, ...args], { cwd: folder, env, stdio: 'pipe' });
      let output = '';
      run.stderr.on('data', (data: Buffer) => (output += data.toString()));
      run.stdout.on('data', (data: Buffer) => {
        output += data.toString();
        if (!run.killed && output.includes('"msg":"ready"')) run.kill('SIGTERM');
      });
      const [status] = (await once(run, 'close')) as [number | null];
      expect(output).toContain('"msg":"closed"');
      expect(status).toBe(0);
    }
    // Every file of the packages is linked, on a disk that may be slow and cold.
  }, 180_000);
});
