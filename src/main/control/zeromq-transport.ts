// The control transport over ZeroMQ: puts the receiving and the sending half together. The contract is transport.ts.

// Brings libzmq into the process: native/zmq calls it there.
import 'zeromq';
import { loadZmq } from '../../../native/zmq.js';
import { KvpeerError } from '../errors.js';
import { formatAddress, isLegalHost, isWildcard, parseAddress } from './address.js';
import { DealerConnection } from './dealer.js';
import { Receiver } from './router.js';
import {
  DEFAULT_CONTROL_OPTIONS,
  type ControlHandlers,
  type ControlOptions,
  type ControlTransport,
  type DealerEvents,
  type DealerHandle,
  type PeerAddress,
} from './transport.js';

/** The settings that have no default, and any others. */
export type ControlSettings = Pick<ControlOptions, 'bindHost' | 'bindPort'> & Partial<ControlOptions>;

/**
 * @throws KVPEER_INVALID_OPTION when the address that others would get cannot be called back
 */
export function createControlTransport(
  settings: ControlSettings,
  handlers: ControlHandlers,
): ControlTransport {
  const options = { ...DEFAULT_CONTROL_OPTIONS, ...settings };
  const advertiseHost = options.advertiseHost ?? options.bindHost;
  if (isWildcard(advertiseHost) || !isLegalHost(advertiseHost)) {
    throw new KvpeerError(
      'KVPEER_INVALID_OPTION',
      `${JSON.stringify(advertiseHost)} cannot be advertised: other peers could not call it back; ` +
        'give --advertise an address or name of this host that they can reach',
    );
  }
  return new ZeromqTransport(options, advertiseHost, handlers);
}

class ZeromqTransport implements ControlTransport {
  // A context of its own: its sockets and its I/O thread end with it, whatever else in the process uses ZeroMQ.
  private readonly context = loadZmq().createContext();
  private readonly receiver: Receiver;
  private readonly dealers = new Set<DealerConnection>();
  private bound: PeerAddress | undefined;
  private hasRouter = true;
  private closing: Promise<void> | undefined;

  constructor(
    private readonly options: ControlOptions,
    private readonly advertiseHost: string,
    handlers: ControlHandlers,
  ) {
    this.receiver = new Receiver(this.context, options, handlers);
  }

  get localAddress(): string {
    if (this.bound === undefined)
      throw new KvpeerError('KVPEER_INVALID_ARGUMENT', 'the transport is not bound yet');
    return formatAddress({ host: this.advertiseHost, port: this.options.advertisePort ?? this.bound.port });
  }

  get reportsPeerGone(): boolean {
    return this.receiver.reportsPeerGone;
  }

  get socketCount(): number {
    let count = this.hasRouter ? 1 : 0;
    for (const dealer of this.dealers) if (dealer.hasSocket) count++;
    return count;
  }

  async bind(): Promise<PeerAddress> {
    this.bound = await this.receiver.bind();
    return this.bound;
  }

  openDealer(address: string, events: DealerEvents): DealerHandle {
    if (this.closing !== undefined)
      throw new KvpeerError('KVPEER_CLOSED', 'the control transport was closed');
    const parsed = parseAddress(address);
    if (!parsed.ok) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `${JSON.stringify(address)} is no address of a peer (${parsed.reason}); it has the form host:port`,
      );
    }
    const dealer = new DealerConnection(
      parsed.address,
      parsed.text,
      {
        context: this.context,
        options: this.options,
        localAddress: this.localAddress,
        localHost: this.advertiseHost,
        predecessorsGone: Promise.all(this.leaving(parsed.text)),
        onGone: (dealer) => this.dealers.delete(dealer),
      },
      events,
    );
    this.dealers.add(dealer);
    return dealer;
  }

  close(): Promise<void> {
    this.closing ??= this.closeAll();
    return this.closing;
  }

  private leaving(address: string): Promise<void>[] {
    return [...this.dealers]
      .filter((dealer) => dealer.address === address && dealer.isLeaving)
      .map((dealer) => dealer.gone);
  }

  private async closeAll(): Promise<void> {
    this.receiver.mute();
    await Promise.all([...this.dealers].map((dealer) => dealer.close()));
    this.receiver.close();
    loadZmq().closeContext(this.context);
    this.hasRouter = false;
  }
}
