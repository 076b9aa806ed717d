// One request from its head to the end of its answer: the order of decisions, and the three ways it can go.

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import { formatHostPort, isSameAddress } from '../params/address.js';
import type { PeerAddress } from '../params/types.js';
import type { AllowList } from './allow-list.js';
import { answerError, answerText } from './answers.js';
import { ClientLeft, hasBody, readAny, readJson, type JsonBody } from './body.js';
import { ClientParamsFault, clientEdits } from './client-params.js';
import {
  choosePrefiller,
  DATA_PARALLEL_HEADER,
  ENCODERS_HEADER,
  headerLines,
  hopCount,
  originOf,
  requestHeaders,
  type PrefillerTarget,
} from './headers.js';
import type { Decision, SidecarHooks } from './hooks.js';
import type { JsonEdits } from './json-edit.js';
import { JsonFault } from './json-scan.js';
import { bodyWithoutParams, editedBody, type LegBody } from './leg-body.js';
import { runLeg, type LegSink } from './leg-run.js';
import { SIGNATURE_HEADER, type LegSigner } from './leg-signature.js';
import { DecodeRelay, DISCARD, PrefillRelay } from './leg-sinks.js';
import {
  decodeEdits,
  isAlwaysRewritten,
  noParamsEdits,
  pairParams,
  prefillEdits,
  pullParams,
  statelessEdits,
} from './legs.js';
import { linger } from './linger.js';
import type { Outcome, RequestKind, SidecarMetrics } from './metrics.js';
import { ParamsFilterStream } from './params-filter.js';
import { inferenceApiOf, readTarget, type InferenceApi, type Profile, type Target } from './routes.js';
import { HINTS, Sources, type SourceOptions } from './sources.js';
import { promptOf, type Prompt, type PromptFault } from './prompt.js';
import { tokenIdsOf } from './token-ids.js';
import { join, responseOn } from './upgrade.js';
import type { LegRequest, Upstreams } from './upstream.js';

export interface HandlerOptions extends SourceOptions {
  readonly profile: Profile;
  readonly modelServerPort: number;
  readonly isPrefillerSampled: boolean;
  readonly isPrefillerTls: boolean;
  readonly isDecoderTls: boolean;
  readonly trustsClientParams: boolean;
}

export interface HandlerParts {
  readonly options: HandlerOptions;
  readonly allowList: AllowList;
  readonly prefillers: Upstreams;
  readonly decoders: Upstreams;
  readonly metrics: SidecarMetrics;
  readonly hooks: SidecarHooks;
  /**
   * An embedded peer begins to pull what a request will need.
   *
   * @returns where the engine is to pull from instead; undefined: from the source
   */
  readonly pullAhead?: ((decision: Decision) => Promise<PeerAddress | undefined> | undefined) | undefined;
  readonly signer: LegSigner;
  readonly log: Logger;
  /** True once the sidecar drains: connections end with the answer they wait for. */
  readonly isDraining: () => boolean;
}

/** A request that is on its way. */
interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly rank: number;
  readonly path: string;
  readonly headers: string[];
  /** Fires when the client leaves or the answer is done. */
  readonly signal: AbortSignal;
}

interface InferenceExchange extends Exchange {
  readonly api: InferenceApi;
}

export class RequestHandler {
  readonly #parts: HandlerParts;
  readonly #sources: Sources;
  /** Prefill legs of profile A outlive their request. */
  readonly #detached = new Set<Promise<unknown>>();
  #runningCount = 0;

  constructor(parts: HandlerParts) {
    this.#parts = parts;
    this.#sources = new Sources(parts);
  }

  /** Legs that run without a client: a drain waits for them too. */
  get detached(): ReadonlySet<Promise<unknown>> {
    return this.#detached;
  }

  /** Answers one request of the listener of a rank. Never rejects. */
  async handle(request: IncomingMessage, response: ServerResponse, rank: number): Promise<void> {
    const { metrics, log } = this.#parts;
    const startedAt = performance.now();
    const ending = new AbortController();
    response.once('close', () => {
      ending.abort();
    });
    // The client's failures show themselves by 'close'.
    request.on('error', () => undefined);
    linger(request, response);
    metrics.running = ++this.#runningCount;
    let done: Done | undefined;
    try {
      done = await this.#route(request, response, rank, ending.signal);
    } catch (error) {
      done = this.#fail(error, response, ending.signal, log);
    } finally {
      metrics.running = --this.#runningCount;
    }
    if (done !== undefined) metrics.request(done.kind, done.outcome, (performance.now() - startedAt) / 1000);
  }

  #fail(error: unknown, response: ServerResponse, signal: AbortSignal, log: Logger): Done {
    if (signal.aborted || error instanceof ClientLeft) return { kind: 'local', outcome: 'left' };
    if (error instanceof JsonFault || error instanceof ClientParamsFault) {
      return refuse(response, error.message);
    }
    log.error({ err: error }, 'a request could not be handled');
    if (response.headersSent) response.destroy();
    else answerError(response, 502, 'the sidecar could not handle the request');
    return { kind: 'local', outcome: 'server-error' };
  }

  async #route(
    request: IncomingMessage,
    response: ServerResponse,
    rank: number,
    signal: AbortSignal,
  ): Promise<Done | undefined> {
    const target = targetOf(request);
    if (typeof target === 'string') return refuse(response, target);
    const method = request.method ?? 'GET';
    if (target.route === '/health' && (method === 'GET' || method === 'HEAD')) {
      answerText(response, 200, '');
      return undefined;
    }
    if (hopCount(request.rawHeaders) >= MAX_HOPS) return this.#refuseCircling(response);
    const found = inferenceApiOf(method, target, this.#parts.options.profile);
    const headers = requestHeaders(request.rawHeaders, request.socket.remoteAddress);
    const exchange = { request, response, rank, headers, signal, path: found?.path ?? target.path };
    if (found === undefined) return this.#straight(exchange, undefined);
    return this.#inference({ ...exchange, api: found.api });
  }

  /** A WebSocket, to the model server as it is. Settles when that has answered, never rejects. */
  async upgrade(request: IncomingMessage, socket: Duplex, head: Buffer, rank: number): Promise<void> {
    const startedAt = performance.now();
    let done: Done;
    try {
      done = await this.#upgrade(request, socket, head, rank);
    } catch (error) {
      this.#parts.log.error({ err: error }, 'a WebSocket could not be handled');
      socket.destroy();
      done = { kind: 'upgrade', outcome: 'server-error' };
    }
    this.#parts.metrics.request(done.kind, done.outcome, (performance.now() - startedAt) / 1000);
  }

  async #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer, rank: number): Promise<Done> {
    // Node has taken its own listener away; a client may be gone before even a refusal reaches it.
    socket.on('error', () => undefined);
    const response = responseOn(request, socket);
    const target = targetOf(request);
    if (typeof target === 'string') return refuse(response, target);
    if (hopCount(request.rawHeaders) >= MAX_HOPS) return this.#refuseCircling(response);
    const ending = new AbortController();
    socket.once('close', () => {
      ending.abort();
    });
    const headers = requestHeaders(request.rawHeaders, request.socket.remoteAddress);
    const { decoders, metrics, isDraining } = this.#parts;
    const relay = new DecodeRelay(response, isDraining, ending.signal, (status, answered, server) => {
      response.detachSocket(request.socket);
      join(socket, server, { head, status, headers: answered });
    });
    const leg = this.#legOf({ request, path: target.path, headers }, this.decoderOrigin(rank));
    const context = { name: 'decode', metrics, signal: ending.signal } as const;
    const toModel = { ...leg, body: null, upgrade: request.headers.upgrade };
    return { kind: 'upgrade', outcome: await runLeg(decoders, toModel, relay, context) };
  }

  #refuseCircling(response: ServerResponse): Done {
    const remedy = `port ${this.#parts.options.modelServerPort} may lead back here; correct --model-server-port`;
    answerError(response, 502, `the request has come through ${MAX_HOPS} proxies; ${remedy}`);
    return { kind: 'local', outcome: 'server-error' };
  }

  /** The order of decisions of the contract, section 1.3. */
  async #inference(exchange: InferenceExchange): Promise<Done> {
    const { options, allowList, metrics, log } = this.#parts;
    const { request, response, api } = exchange;
    const choice = choosePrefiller(request.rawHeaders, {
      isTls: options.isPrefillerTls,
      pick: options.isPrefillerSampled ? (count) => Math.floor(Math.random() * count) : undefined,
    });
    if (choice.kind === 'fault') return refuse(response, choice.message);
    if (choice.kind === 'target' && !allowList.allows(choice.target.host, choice.target.port)) {
      log.warn(
        { prefiller: formatHostPort(choice.target) },
        'SSRF protection: prefill target not in allowlist',
      );
      answerText(response, 403, 'Forbidden: prefill target not allowed by SSRF protection');
      return REFUSED;
    }
    const source = this.#sources.named(request);
    if (headerLines(request.rawHeaders, ENCODERS_HEADER).length > 0) metrics.ignored('encoders');
    if (choice.kind === 'target') return this.#prefillDecode(exchange, choice.target, source);

    const rankText = headerLines(request.rawHeaders, DATA_PARALLEL_HEADER).at(0);
    if (rankText !== undefined && rankText.trim() !== '') {
      const rank = this.#sources.rankOf(rankText);
      if (rank === undefined) {
        answerText(response, 400, '');
        return REFUSED;
      }
      return this.#straight({ ...exchange, rank }, api);
    }
    if (source === undefined) return this.#straight(exchange, api, 'used');
    if (this.#sources.isSelf(source, exchange.rank)) {
      metrics.ignored('source-self');
      return this.#straight(exchange, api);
    }
    return this.#pull(exchange, source);
  }

  /** To the model server as it is; only what a client wrote into kv_transfer_params is taken out or checked. */
  async #straight(
    exchange: Exchange,
    api: InferenceApi | undefined,
    hints: 'used' | 'dropped' = 'dropped',
  ): Promise<Done> {
    const { options } = this.#parts;
    const { request } = exchange;
    const isWhole =
      options.trustsClientParams ||
      options.readsHints ||
      signatureOf(request) !== undefined ||
      (api !== undefined && isAlwaysRewritten(api, options.profile));
    if (api !== undefined && isWhole) {
      return this.#rewritten({ ...exchange, api }, hints);
    }
    if (!hasBody(request)) return this.#decode(exchange, 'plain', null);
    // Params are checked on the inference routes only, so on others nobody's pass.
    const body = new ParamsFilterStream(api === undefined && !isReadAsJson(request));
    request.pipe(body);
    request.once('close', () => {
      if (!request.complete) body.destroy(new Error('the client left'));
    });
    const done = await this.#decode(exchange, 'plain', body, request.headers['content-length']);
    if (body.removedCount > 0) this.#clientParamsRemoved(exchange);
    return done;
  }

  /** Decoder only, without a source header, for an API or a setting that needs the body as a whole. */
  async #rewritten(exchange: InferenceExchange, hints: 'used' | 'dropped'): Promise<Done> {
    const { options } = this.#parts;
    const { api } = exchange;
    const isStateless = isAlwaysRewritten(api, options.profile);
    const { body, object } = isStateless ? await readJson(exchange.request) : await readAny(exchange.request);
    if (object === undefined) {
      // Engines read more than JSON (NaN, for one), so what is no JSON to us may still carry params: nobody checked them.
      return this.#decode(exchange, 'plain', ...bodyWithoutParams(exchange.request, body));
    }
    const json = { body, object };
    const params = this.#paramsEdits(exchange, json);
    const hasSay = hints === 'used' && !params.areKept;
    const hinted = this.#sources.hinted(json, hasSay ? this.#sources.selfAt(exchange.rank) : undefined);
    if (hinted !== undefined) return this.#pullFrom(exchange, hinted, json);
    const edits = new Map(isStateless ? statelessEdits(api, options.profile) : []);
    for (const [key, edit] of params.edits) edits.set(key, edit);
    if (params.isSigned)
      for (const [key, edit] of await this.#pullForLeg(exchange, json)) edits.set(key, edit);
    return this.#decode(exchange, 'plain', ...this.#edited(exchange, json, edits));
  }

  /** What becomes of the params that came with the request: kept, made canonical, or taken out. */
  #paramsEdits(exchange: InferenceExchange, json: JsonBody): ParamsFate {
    const { body, object } = json;
    const { options, signer } = this.#parts;
    const signature = signatureOf(exchange.request);
    if (signature !== undefined && signer.isSigned(body, object, signature)) {
      return { edits: new Map(), areKept: true, isSigned: true };
    }
    if (options.trustsClientParams) {
      const { edits, params } = clientEdits(body, object, exchange.api);
      // What a trusted client wrote is the engine's as it stands.
      if (params !== undefined) void this.#decided(exchange, 'pull', params, json);
      return { edits, areKept: params !== undefined, isSigned: false };
    }
    if (object.members.some(({ key }) => key === 'kv_transfer_params')) this.#clientParamsRemoved(exchange);
    return { edits: noParamsEdits(exchange.api), areKept: false, isSigned: false };
  }

  /** Another sidecar's prefill leg may name a source too: an embedded peer pulls from it, and the engine from the peer. */
  async #pullForLeg(exchange: InferenceExchange, json: JsonBody): Promise<JsonEdits> {
    const { options, pullAhead } = this.#parts;
    const params = pullAhead === undefined ? undefined : paramsOf(json);
    const source = params?.remote_kv_source;
    if (params === undefined || typeof source !== 'object' || source === null) return new Map();
    const peer = await this.#decided(exchange, 'pull', params, json);
    if (peer === undefined) return new Map();
    const { host: remote_host, port: remote_port } = peer;
    const instead = { ...params, remote_kv_source: { ...source, remote_host, remote_port } };
    return decodeEdits(exchange.api, options.profile, instead);
  }

  #clientParamsRemoved({ path }: Exchange): void {
    this.#parts.metrics.ignored('client-params');
    this.#parts.log.debug({ path }, 'kv_transfer_params of a client were taken out');
  }

  /** Decoder only, with a source to pull from. */
  async #pull(exchange: InferenceExchange, source: PeerAddress): Promise<Done> {
    const json = await readJson(exchange.request);
    this.#sources.hinted(json, undefined);
    return this.#pullFrom(exchange, this.#sources.p2pAddress(source), json);
  }

  async #pullFrom(exchange: InferenceExchange, source: PeerAddress, json: JsonBody): Promise<Done> {
    const { options, log } = this.#parts;
    const decided = pullParams(source);
    log.debug({ path: exchange.path, source: formatHostPort(source) }, 'running P2P source protocol');
    const peer = await this.#decided(exchange, 'pull', decided, json);
    const params = peer === undefined ? decided : pullParams(peer);
    const edits = decodeEdits(exchange.api, options.profile, params);
    return this.#decode(exchange, 'pull', ...this.#edited(exchange, json, edits));
  }

  /** Hints that are read here are taken out: nobody behind this sidecar acts on what it has judged. */
  #edited({ request }: Exchange, json: JsonBody, edits: JsonEdits): LegBody {
    const { readsHints } = this.#parts.options;
    return editedBody(request, json, readsHints ? new Map([...edits, [HINTS, { kind: 'remove' }]]) : edits);
  }

  /** Profile B computes the prompt first; in profile A both legs leave at once and the prefill's end is not awaited. */
  async #prefillDecode(
    exchange: InferenceExchange,
    prefiller: PrefillerTarget,
    source: PeerAddress | undefined,
  ): Promise<Done> {
    const { options, log } = this.#parts;
    const { api, response, signal } = exchange;
    const json = await readJson(exchange.request);
    const isOtherSource = source !== undefined && !isSameAddress(source, prefiller);
    const prefillerAt = this.#sources.p2pAddress(prefiller);
    const hinted = this.#sources.hinted(json, source === undefined ? [prefillerAt] : undefined);
    const params = pairParams(prefillerAt, isOtherSource ? this.#sources.p2pAddress(source) : hinted);
    log.debug({ path: exchange.path, prefiller: formatHostPort(prefiller) }, 'running P2P protocol');
    void this.#decided(exchange, 'decode', params.decode, json);
    const signature = this.#parts.signer.sign(JSON.stringify(params.prefill));
    const [prefillBody, contentLength] = this.#edited(
      exchange,
      json,
      prefillEdits(api, options.profile, params.prefill),
    );
    const toPrefiller: LegRequest = {
      ...this.#legOf(exchange, originOf(prefiller)),
      headers: [...exchange.headers, SIGNATURE_HEADER, signature],
      body: prefillBody,
      contentLength,
    };
    const decodeBody = this.#edited(exchange, json, decodeEdits(api, options.profile, params.decode));
    if (options.profile === 'A') {
      const prefill = this.#runPrefill(toPrefiller, DISCARD, new AbortController().signal);
      this.#detached.add(prefill);
      void prefill.finally(() => this.#detached.delete(prefill));
    } else {
      const relay = new PrefillRelay(response, this.#parts.isDraining);
      const outcome = await this.#runPrefill(toPrefiller, relay, signal);
      if (!relay.isPassed) return { kind: 'prefill-decode', outcome };
    }
    return this.#decode(exchange, 'prefill-decode', ...decodeBody);
  }

  #runPrefill(request: LegRequest, sink: LegSink, signal: AbortSignal): Promise<Outcome> {
    const { prefillers, metrics } = this.#parts;
    return runLeg(prefillers, request, sink, { name: 'prefill', metrics, signal });
  }

  /** The leg whose answer the client gets. */
  async #decode(
    exchange: Exchange,
    kind: RequestKind,
    body: LegRequest['body'],
    contentLength?: string,
  ): Promise<Done> {
    const { decoders, metrics, isDraining } = this.#parts;
    const { response, signal, rank } = exchange;
    const sink = new DecodeRelay(response, isDraining, signal);
    const request = { ...this.#legOf(exchange, this.decoderOrigin(rank)), body, contentLength };
    const outcome = await runLeg(decoders, request, sink, { name: 'decode', metrics, signal });
    return { kind, outcome };
  }

  /** Where the model server of a rank is. */
  decoderOrigin(rank: number): string {
    const { isDecoderTls, modelServerPort } = this.#parts.options;
    return `${isDecoderTls ? 'https' : 'http'}://localhost:${modelServerPort + rank}`;
  }

  #legOf(
    { request, path, headers }: Pick<Exchange, 'request' | 'path' | 'headers'>,
    origin: string,
  ): Omit<LegRequest, 'body'> {
    return { origin, method: request.method ?? 'POST', path, headers };
  }

  #decided(
    exchange: InferenceExchange,
    kind: Decision['kind'],
    params: Record<string, unknown>,
    { body, object }: JsonBody,
  ): Promise<PeerAddress | undefined> | undefined {
    const { api, path, rank, signal } = exchange;
    const isGenerate = api === 'generate';
    const tokenIds = (): Uint32Array | undefined => (isGenerate ? tokenIdsOf(body, object) : undefined);
    const prompt = (): Prompt | PromptFault | undefined => (isGenerate ? promptOf(body, object) : undefined);
    const decision: Decision = { api, path, kind, params, rank, tokenIds, prompt, signal };
    const ahead = this.#parts.pullAhead?.(decision);
    this.#parts.hooks.onDecision?.(decision);
    return ahead;
  }
}

/** What becomes of the params of a request, and whether some stay in it. */
interface ParamsFate {
  readonly edits: JsonEdits;
  readonly areKept: boolean;
  /** Kept because a sidecar wrote them. */
  readonly isSigned: boolean;
}

interface Done {
  readonly kind: RequestKind;
  readonly outcome: Outcome;
}

/** More than any way has: sidecars that are each other's model server would send a request round without end. */
const MAX_HOPS = 64;

/** Each costs time here and at the model server, and a head of 1 MiB has room for 260,000. */
const MAX_HEADER_LINES = 8192;

/** A 4xx of the sidecar's own. */
const REFUSED: Done = { kind: 'local', outcome: 'client-error' };

function refuse(response: ServerResponse, message: string): Done {
  answerError(response, 400, message);
  return REFUSED;
}

/** @returns what is wrong with the head as text */
function targetOf(request: IncomingMessage): Target | string {
  if (request.rawHeaders.length > 2 * MAX_HEADER_LINES) {
    return `the request has more than ${MAX_HEADER_LINES} header lines`;
  }
  const hostCount = headerLines(request.rawHeaders, 'host').length;
  if (hostCount > 1 || (hostCount === 0 && request.httpVersion !== '1.0')) {
    return 'the request must have one host header';
  }
  return readTarget(request.url ?? '/') ?? 'the request target is no path';
}

/** As the model server's framework decides it: the case does not matter, and without a type it tries. */
function isReadAsJson(request: IncomingMessage): boolean {
  return (request.headers['content-type'] ?? 'json').toLowerCase().includes('json');
}

/** kv_transfer_params at the top of a body, where they are an object. */
function paramsOf({ body, object }: JsonBody): Readonly<Record<string, unknown>> | undefined {
  const member = object.members.findLast(({ key }) => key === 'kv_transfer_params');
  if (member === undefined) return undefined;
  const value: unknown = JSON.parse(body.text(member.valueStart, member.valueEnd));
  return typeof value === 'object' && value !== null ? { ...value } : undefined;
}

function signatureOf(request: IncomingMessage): string | undefined {
  return headerLines(request.rawHeaders, SIGNATURE_HEADER).at(0);
}
