// One request from its head to the end of its answer: the order of decisions, and the three ways it can go.

import type { IncomingMessage, ServerResponse } from 'node:http';
import { Readable, type Duplex } from 'node:stream';
import type { Logger } from 'pino';
import { formatHostPort, isSameAddress } from '../params/address.js';
import type { PeerAddress } from '../params/types.js';
import type { AllowList } from './allow-list.js';
import { answerError, answerText } from './answers.js';
import { hasBody, isChunked, readBody } from './body.js';
import { ClientParamsFault, clientEdits } from './client-params.js';
import {
  choosePrefiller,
  DATA_PARALLEL_HEADER,
  ENCODERS_HEADER,
  headerLines,
  isEndpoint,
  originOf,
  readSource,
  requestHeaders,
  type PrefillerTarget,
} from './headers.js';
import type { Decision, SidecarHooks } from './hooks.js';
import { editJson, type JsonEdits } from './json-edit.js';
import { hintedSource } from './hinted-source.js';
import { JsonFault, scanJsonObject, type JsonObject } from './json-scan.js';
import { runLeg, type LegSink } from './leg-run.js';
import { SIGNATURE_HEADER, type LegSigner } from './leg-signature.js';
import {
  decodeEdits,
  isAlwaysRewritten,
  noParamsEdits,
  p2pPortOf,
  pairParams,
  prefillEdits,
  pullParams,
  statelessEdits,
} from './legs.js';
import type { Outcome, RequestKind, SidecarMetrics } from './metrics.js';
import { ParamsFilter, ParamsFilterStream, UnreadableBody } from './params-filter.js';
import { Relay } from './relay.js';
import { inferenceApiOf, readTarget, type InferenceApi, type Profile } from './routes.js';
import { tokenIdsOf } from './token-ids.js';
import { join, responseOn } from './upgrade.js';
import { isRefused, type LegRequest, type Upstreams } from './upstream.js';

export interface HandlerOptions {
  readonly profile: Profile;
  /** Base port of the sidecar: rank r listens on port + r. */
  readonly port: number;
  readonly modelServerPort: number;
  readonly dataParallelSize: number;
  readonly p2pConnectorPort: number;
  /** POD_IP: tells a source that is this pod itself. */
  readonly podIp: string | undefined;
  readonly isPrefillerSampled: boolean;
  readonly isPrefillerTls: boolean;
  readonly isDecoderTls: boolean;
  readonly trustsClientParams: boolean;
  /** `kv_hints` of a request may name a source; they go no further than here. */
  readonly readsHints: boolean;
}

export interface HandlerParts {
  readonly options: HandlerOptions;
  readonly allowList: AllowList;
  readonly prefillers: Upstreams;
  readonly decoders: Upstreams;
  readonly metrics: SidecarMetrics;
  readonly hooks: SidecarHooks;
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
  /** Prefill legs of profile A outlive their request. */
  readonly #detached = new Set<Promise<unknown>>();
  #runningCount = 0;

  constructor(parts: HandlerParts) {
    this.#parts = parts;
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
    metrics.running = ++this.#runningCount;
    try {
      const done = await this.#route(request, response, rank, ending.signal);
      if (done !== undefined)
        metrics.request(done.kind, done.outcome, (performance.now() - startedAt) / 1000);
    } catch (error) {
      this.#fail(error, response, ending.signal, log);
    } finally {
      metrics.running = --this.#runningCount;
      // A client that is still sending may read its answer only afterwards.
      if (!request.complete) request.unpipe().resume();
    }
  }

  #fail(error: unknown, response: ServerResponse, signal: AbortSignal, log: Logger): void {
    if (signal.aborted) return;
    if (error instanceof JsonFault || error instanceof ClientParamsFault) {
      answerError(response, 400, error.message);
      return;
    }
    log.error({ err: error }, 'a request could not be handled');
    if (response.headersSent) response.destroy();
    else answerError(response, 502, 'the sidecar could not handle the request');
  }

  async #route(
    request: IncomingMessage,
    response: ServerResponse,
    rank: number,
    signal: AbortSignal,
  ): Promise<Done | undefined> {
    const hostCount = headerLines(request.rawHeaders, 'host').length;
    if (hostCount > 1 || (hostCount === 0 && request.httpVersion !== '1.0')) {
      answerError(response, 400, 'the request must have one host header');
      return undefined;
    }
    const target = readTarget(request.url ?? '/');
    if (target === undefined) {
      answerError(response, 400, 'the request target is no path');
      return undefined;
    }
    const method = request.method ?? 'GET';
    if (target.route === '/health' && (method === 'GET' || method === 'HEAD')) {
      answerText(response, 200, '');
      return undefined;
    }
    const { profile } = this.#parts.options;
    const found = inferenceApiOf(method, target, profile);
    const headers = requestHeaders(request.rawHeaders, request.socket.remoteAddress);
    const exchange = { request, response, rank, headers, signal, path: found?.path ?? target.path };
    if (found === undefined) return this.#straight(exchange, undefined);
    return this.#inference({ ...exchange, api: found.api });
  }

  /** A WebSocket, to the model server as it is. */
  upgrade(request: IncomingMessage, socket: Duplex, head: Buffer, rank: number): void {
    const response = responseOn(request, socket);
    const target = readTarget(request.url ?? '/');
    if (target === undefined) {
      answerError(response, 400, 'the request target is no path');
      return;
    }
    const ending = new AbortController();
    socket.once('close', () => {
      ending.abort();
    });
    socket.on('error', () => undefined);
    const headers = requestHeaders(request.rawHeaders, request.socket.remoteAddress);
    const { decoders, metrics, isDraining } = this.#parts;
    const relay = new DecodeRelay(response, isDraining, ending.signal, (status, answered, server) => {
      response.detachSocket(request.socket);
      join(socket, server, { head, status, headers: answered });
    });
    const leg = this.#legOf({ request, path: target.path, headers }, this.#decoderOrigin(rank));
    const context = { name: 'decode', metrics, signal: ending.signal } as const;
    void runLeg(decoders, { ...leg, body: null, upgrade: request.headers.upgrade }, relay, context);
  }

  /** The order of decisions of the contract, section 1.3. */
  async #inference(exchange: InferenceExchange): Promise<Done | undefined> {
    const { options, allowList, metrics, log } = this.#parts;
    const { request, response, api } = exchange;
    const choice = choosePrefiller(request.rawHeaders, {
      isTls: options.isPrefillerTls,
      pick: options.isPrefillerSampled ? (count) => Math.floor(Math.random() * count) : undefined,
    });
    if (choice.kind === 'fault') {
      answerError(response, 400, choice.message);
      return undefined;
    }
    if (choice.kind === 'target' && !allowList.allows(choice.target.host, choice.target.port)) {
      log.warn(
        { prefiller: formatHostPort(choice.target) },
        'SSRF protection: prefill target not in allowlist',
      );
      answerText(response, 403, 'Forbidden: prefill target not allowed by SSRF protection');
      return undefined;
    }
    const source = this.#sourceOf(request);
    if (headerLines(request.rawHeaders, ENCODERS_HEADER).length > 0) metrics.ignored('encoders');
    if (choice.kind === 'target') return this.#prefillDecode(exchange, choice.target, source);

    const rankText = headerLines(request.rawHeaders, DATA_PARALLEL_HEADER).at(0);
    if (rankText !== undefined && rankText.trim() !== '') {
      const rank = this.#rankOf(rankText);
      if (rank === undefined) {
        answerText(response, 400, '');
        return undefined;
      }
      return this.#straight({ ...exchange, rank }, api);
    }
    if (source === undefined) return this.#straight(exchange, api, 'used');
    if (this.#isSelf(source, exchange.rank)) {
      metrics.ignored('source-self');
      return this.#straight(exchange, api);
    }
    return this.#pull(exchange, source);
  }

  #sourceOf(request: IncomingMessage): PeerAddress | undefined {
    const { allowList, metrics, log } = this.#parts;
    const choice = readSource(request.rawHeaders);
    if (choice.kind === 'none') return undefined;
    if (choice.kind === 'malformed') {
      log.debug({ reason: choice.reason }, 'ignoring malformed KV cache source header');
      metrics.ignored('source-malformed');
      return undefined;
    }
    const { host, port } = choice.address;
    if (allowList.allows(host, port)) return choice.address;
    log.warn({ source: formatHostPort(choice.address) }, 'SSRF protection: KV cache source not in allowlist');
    metrics.ignored('source-denied');
    return undefined;
  }

  /** Another port of the same pod is another rank, and a legal source. */
  #isSelf(source: PeerAddress, rank: number): boolean {
    const { podIp, port } = this.#parts.options;
    return podIp !== undefined && isEndpoint(formatHostPort(source), { host: podIp, port: port + rank });
  }

  #rankOf(text: string): number | undefined {
    const { podIp, port, dataParallelSize } = this.#parts.options;
    if (podIp === undefined) return undefined;
    for (let rank = 0; rank < dataParallelSize; rank++) {
      if (isEndpoint(text, { host: podIp, port: port + rank })) return rank;
    }
    return undefined;
  }

  /** The P2P address that belongs to a serving endpoint. */
  #p2pAddress({ host, port }: PeerAddress): PeerAddress {
    const { port: servingPort, p2pConnectorPort: p2pPort, dataParallelSize: count } = this.#parts.options;
    return { host, port: p2pPortOf(port, { servingPort, p2pPort, count }) };
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
    const body = await readBody(exchange.request);
    const isStateless = isAlwaysRewritten(api, options.profile);
    const object = isStateless ? scanJsonObject(body) : scanIfJson(body);
    if (object === undefined) {
      // Engines read more than JSON (NaN, for one), so what is no JSON to us may still carry params: nobody checked them.
      return this.#decode(exchange, 'plain', this.#bodyOf(exchange, withoutParams(body)));
    }
    const params = this.#paramsEdits(exchange, body, object);
    const hasSay = hints === 'used' && !params.areKept;
    const hinted = this.#hintedSource(body, object, hasSay ? this.#selfAt(exchange.rank) : undefined);
    if (hinted !== undefined) return this.#pullFrom(exchange, hinted, body, object);
    const edits = new Map(isStateless ? statelessEdits(api, options.profile) : []);
    for (const [key, edit] of params.edits) edits.set(key, edit);
    return this.#decode(exchange, 'plain', this.#bodyOf(exchange, this.#edited(body, object, edits)));
  }

  /** What becomes of the params that came with the request: kept, made canonical, or taken out. */
  #paramsEdits(exchange: InferenceExchange, body: Buffer, object: JsonObject): ParamsFate {
    const { options, signer } = this.#parts;
    const signature = signatureOf(exchange.request);
    if (signature !== undefined && signer.isSigned(body, object, signature)) {
      return { edits: new Map(), areKept: true };
    }
    if (options.trustsClientParams) {
      const { edits, params } = clientEdits(body, object, exchange.api);
      if (params !== undefined) this.#decided(exchange, 'pull', params, body, object);
      return { edits, areKept: params !== undefined };
    }
    if (object.members.some(({ key }) => key === 'kv_transfer_params')) this.#clientParamsRemoved(exchange);
    return { edits: noParamsEdits(exchange.api), areKept: false };
  }

  #clientParamsRemoved({ path }: Exchange): void {
    this.#parts.metrics.ignored('client-params');
    this.#parts.log.debug({ path }, 'kv_transfer_params of a client were taken out');
  }

  /** Decoder only, with a source to pull from. */
  async #pull(exchange: InferenceExchange, source: PeerAddress): Promise<Done> {
    const body = await readBody(exchange.request);
    const object = scanJsonObject(body);
    this.#hintedSource(body, object, undefined);
    return this.#pullFrom(exchange, this.#p2pAddress(source), body, object);
  }

  async #pullFrom(
    exchange: InferenceExchange,
    source: PeerAddress,
    body: Buffer,
    object: JsonObject,
  ): Promise<Done> {
    const { options, log } = this.#parts;
    const params = pullParams(source);
    log.debug({ path: exchange.path, source: formatHostPort(source) }, 'running P2P source protocol');
    this.#decided(exchange, 'pull', params, body, object);
    const edited = this.#edited(body, object, decodeEdits(exchange.api, options.profile, params));
    return this.#decode(exchange, 'pull', this.#bodyOf(exchange, edited));
  }

  /**
   * The P2P address of the source that the request's hints name.
   *
   * @param self the engine that will pull; undefined when header or params have said who pulls from whom: they win
   */
  #hintedSource(
    body: Buffer,
    object: JsonObject,
    self: readonly PeerAddress[] | undefined,
  ): PeerAddress | undefined {
    const { options, allowList, metrics } = this.#parts;
    const member = object.members.findLast(({ key }) => key === HINTS);
    if (!options.readsHints || member === undefined) return undefined;
    const hints = body.subarray(member.valueStart, member.valueEnd);
    if (hints.equals(NULL)) return undefined;
    if (self === undefined) {
      metrics.hintIgnored('params-win');
      return undefined;
    }
    const { port, p2pConnectorPort, dataParallelSize } = options;
    const ignored = metrics.hintIgnored.bind(metrics);
    const source = hintedSource(hints, self, {
      allowList,
      port,
      p2pConnectorPort,
      dataParallelSize,
      ignored,
    });
    return source === undefined ? undefined : { host: source.host, port: source.port };
  }

  /** The P2P address of the engine of a rank, as far as it is known. */
  #selfAt(rank: number): readonly PeerAddress[] {
    const { podIp, p2pConnectorPort } = this.#parts.options;
    return podIp === undefined ? [] : [{ host: podIp, port: p2pConnectorPort + rank }];
  }

  /** Hints that are read here are taken out: nobody behind this sidecar acts on what it has judged. */
  #edited(body: Buffer, object: JsonObject, edits: JsonEdits): Buffer {
    const { readsHints } = this.#parts.options;
    return editJson(body, object, readsHints ? new Map([...edits, [HINTS, { kind: 'remove' }]]) : edits);
  }

  /** Profile B computes the prompt first; in profile A both legs leave at once and the prefill's end is not awaited. */
  async #prefillDecode(
    exchange: InferenceExchange,
    prefiller: PrefillerTarget,
    source: PeerAddress | undefined,
  ): Promise<Done> {
    const { options, log } = this.#parts;
    const { api, response, signal } = exchange;
    const body = await readBody(exchange.request);
    const object = scanJsonObject(body);
    const isOtherSource = source !== undefined && !isSameAddress(source, prefiller);
    const prefillerAt = this.#p2pAddress(prefiller);
    const hinted = this.#hintedSource(body, object, source === undefined ? [prefillerAt] : undefined);
    const params = pairParams(prefillerAt, isOtherSource ? this.#p2pAddress(source) : hinted);
    log.debug({ path: exchange.path, prefiller: formatHostPort(prefiller) }, 'running P2P protocol');
    this.#decided(exchange, 'decode', params.decode, body, object);
    const toPrefiller: LegRequest = {
      ...this.#legOf(exchange, originOf(prefiller)),
      headers: [
        ...exchange.headers,
        SIGNATURE_HEADER,
        this.#parts.signer.sign(JSON.stringify(params.prefill)),
      ],
      body: this.#bodyOf(
        exchange,
        this.#edited(body, object, prefillEdits(api, options.profile, params.prefill)),
      ),
    };
    const decodeBody = this.#edited(body, object, decodeEdits(api, options.profile, params.decode));
    if (options.profile === 'A') {
      const prefill = this.#runPrefill(toPrefiller, DISCARD, new AbortController().signal);
      this.#detached.add(prefill);
      void prefill.finally(() => this.#detached.delete(prefill));
    } else {
      const relay = new PrefillRelay(response, this.#parts.isDraining);
      const outcome = await this.#runPrefill(toPrefiller, relay, signal);
      if (!relay.isPassed) return { kind: 'prefill-decode', outcome };
    }
    return this.#decode(exchange, 'prefill-decode', this.#bodyOf(exchange, decodeBody));
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
    const request = { ...this.#legOf(exchange, this.#decoderOrigin(rank)), body, contentLength };
    const outcome = await runLeg(decoders, request, sink, { name: 'decode', metrics, signal });
    return { kind, outcome };
  }

  #decoderOrigin(rank: number): string {
    const { isDecoderTls, modelServerPort } = this.#parts.options;
    return `${isDecoderTls ? 'https' : 'http'}://localhost:${modelServerPort + rank}`;
  }

  #legOf(
    { request, path, headers }: Pick<Exchange, 'request' | 'path' | 'headers'>,
    origin: string,
  ): Omit<LegRequest, 'body'> {
    return { origin, method: request.method ?? 'POST', path, headers };
  }

  #bodyOf({ request }: Exchange, body: Buffer): Buffer | Readable {
    return isChunked(request) ? Readable.from([body]) : body;
  }

  #decided(
    exchange: InferenceExchange,
    kind: Decision['kind'],
    params: Record<string, unknown>,
    body: Buffer,
    object: JsonObject,
  ): void {
    const { api, path, rank, signal } = exchange;
    const tokenIds = (): Uint32Array | undefined =>
      api === 'generate' ? tokenIdsOf(body, object) : undefined;
    this.#parts.hooks.onDecision?.({ api, path, kind, params, rank, tokenIds, signal });
  }
}

const HINTS = 'kv_hints';
const NULL = Buffer.from('null');

/** What becomes of the params of a request, and whether some stay in it. */
interface ParamsFate {
  readonly edits: JsonEdits;
  readonly areKept: boolean;
}

interface Done {
  readonly kind: RequestKind;
  readonly outcome: Outcome;
}

/** As the model server's framework decides it: the case does not matter, and without a type it tries. */
function isReadAsJson(request: IncomingMessage): boolean {
  return (request.headers['content-type'] ?? 'json').toLowerCase().includes('json');
}

function signatureOf(request: IncomingMessage): string | undefined {
  return headerLines(request.rawHeaders, SIGNATURE_HEADER).at(0);
}

/** Undefined for what is no JSON object: the model server says what it thinks of it. */
function scanIfJson(body: Buffer): JsonObject | undefined {
  try {
    return scanJsonObject(body);
  } catch (error) {
    if (error instanceof JsonFault) return undefined;
    throw error;
  }
}

/** @throws JsonFault for an encoding in which params could hide */
function withoutParams(body: Buffer): Buffer {
  const filter = new ParamsFilter();
  try {
    return Buffer.concat([...filter.push(Buffer.from(body)), ...filter.end()]);
  } catch (error) {
    if (error instanceof UnreadableBody) throw new JsonFault(error.message);
    throw error;
  }
}

const DISCARD: LegSink = {
  head: () => undefined,
  data: () => true,
  end: () => undefined,
  failed: () => undefined,
};

/** The model server's answer to the client, and what the client gets when there is none. */
class DecodeRelay implements LegSink {
  readonly #response: ServerResponse;
  readonly #relay: Relay;
  readonly #isDraining: () => boolean;
  readonly #signal: AbortSignal;
  readonly upgraded: LegSink['upgraded'];

  constructor(
    response: ServerResponse,
    isDraining: () => boolean,
    signal: AbortSignal,
    upgraded?: LegSink['upgraded'],
  ) {
    this.upgraded = upgraded;
    this.#response = response;
    this.#relay = new Relay(response);
    this.#isDraining = isDraining;
    this.#signal = signal;
  }

  head(status: number, headers: readonly string[], resume: () => void): void {
    this.#relay.head(status, headers, resume, this.#isDraining());
  }

  data(chunk: Buffer): boolean {
    return this.#relay.data(chunk);
  }

  end(trailers: readonly string[]): void {
    this.#relay.end(trailers);
  }

  failed(error: Error, status: number | undefined): void {
    if (this.#signal.aborted) return;
    if (this.#relay.hasBegun) this.#relay.cut();
    else if (error instanceof UnreadableBody) answerError(this.#response, 400, error.message);
    else if (isRefused(error))
      answerError(this.#response, 503, 'decode node is not ready: connection refused');
    else if (status !== undefined) answerError(this.#response, 502, 'the model server broke off its answer');
    else answerError(this.#response, 502, 'the model server could not be reached');
  }
}

/** Profile B: a prefill that went well is thrown away, any other answer is the client's. */
class PrefillRelay implements LegSink {
  readonly #response: ServerResponse;
  readonly #relay: Relay;
  readonly #isDraining: () => boolean;
  #isDiscarded = false;
  /** True when the prefill was computed to its end. */
  isPassed = false;

  constructor(response: ServerResponse, isDraining: () => boolean) {
    this.#response = response;
    this.#relay = new Relay(response);
    this.#isDraining = isDraining;
  }

  head(status: number, headers: readonly string[], resume: () => void): void {
    this.#isDiscarded = status >= 200 && status < 300;
    if (!this.#isDiscarded) this.#relay.head(status, headers, resume, this.#isDraining());
  }

  data(chunk: Buffer): boolean {
    return this.#isDiscarded || this.#relay.data(chunk);
  }

  end(trailers: readonly string[]): void {
    if (this.#isDiscarded) this.isPassed = true;
    else this.#relay.end(trailers);
  }

  failed(error: Error, status: number | undefined): void {
    if (this.#response.destroyed) return;
    if (this.#relay.hasBegun) this.#relay.cut();
    else if (status !== undefined) answerError(this.#response, 502, 'the prefill node broke off its answer');
    else if (isRefused(error))
      answerError(this.#response, 502, 'prefill node is not ready: connection refused');
    else answerError(this.#response, 502, 'the prefill node could not be reached');
  }
}
