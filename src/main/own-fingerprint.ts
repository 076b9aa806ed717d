// The fingerprint that this node stands for: the configured one, or the first peer's when told to trust it.

import type { Logger } from 'pino';

import { TRUST_FIRST } from './options/fingerprint.js';
import type { ConnectMessage } from './protocol/messages.js';

export class OwnFingerprint {
  /** Empty: no opinion (yet). */
  value: string;
  readonly #isLearning: boolean;
  readonly #log: Logger;
  #learnedFrom: ConnectMessage | undefined;

  constructor(configured: string, log: Logger) {
    this.#isLearning = configured === TRUST_FIRST;
    this.value = this.#isLearning ? '' : configured;
    this.#log = log;
  }

  /** A `connect` was accepted: at once, so that a second peer is compared with the first. */
  onAccepted(connect: ConnectMessage): void {
    if (!this.#isLearning || this.value !== '' || connect.configFingerprint === '') return;
    this.value = connect.configFingerprint;
    this.#learnedFrom = connect;
  }

  /** The data plane took the peer or did not; one that it refuses is not trusted either. */
  onRegistered(connect: ConnectMessage, isRegistered: boolean): void {
    if (this.#learnedFrom !== connect) return;
    this.#learnedFrom = undefined;
    if (isRegistered) {
      this.#log.info(
        { peerId: connect.peerId, fingerprint: this.value },
        'the fingerprint of this peer is the one of this node from now on',
      );
    } else {
      this.value = '';
    }
  }
}
