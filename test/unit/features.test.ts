// Which extensions are announced, and which are used with a peer.

import { describe, expect, it } from 'vitest';

import { announcedFeatures, commonFeatures } from '../../src/main/protocol/features.js';
import { FEATURES, type Feature, type KvpeerAnnouncement } from '../../src/main/protocol/messages.js';

const INCARNATION = { id: 'run', pid: 1, startTime: 1, bootId: 'boot' };

function announcing(...features: Feature[]): KvpeerAnnouncement {
  return { version: 1, incarnation: INCARNATION, features };
}

describe('a node announces', () => {
  it('every extension that it can offer', () => {
    expect(announcedFeatures({ hasDataPlane: true, keepsChecksums: true })).toEqual(FEATURES);
  });

  it('no scratch page without a data plane and no checksums where none are kept', () => {
    const announced = announcedFeatures({ hasDataPlane: false, keepsChecksums: false });
    expect(announced).not.toContain('scratch_page');
    expect(announced).not.toContain('checksums');
    expect(announced).toContain('lookup_seq');
  });

  it('only what it is allowed to, whatever it can', () => {
    const sources = { hasDataPlane: false, keepsChecksums: false };
    expect(announcedFeatures({ ...sources, allowed: ['checksums', 'ttl_ms', 'round_seq'] })).toEqual([
      'round_seq',
      'ttl_ms',
    ]);
    expect(announcedFeatures({ ...sources, allowed: [] })).toEqual([]);
  });
});

describe('with a peer are used', () => {
  it('the extensions that both sides announced', () => {
    const own = announcing('ttl_ms', 'lookup_seq');
    expect([...commonFeatures(own, announcing('lookup_seq', 'checksums'))]).toEqual(['lookup_seq']);
  });

  it('none when the peer is a plain one', () => {
    expect(commonFeatures(announcing(...FEATURES), undefined).size).toBe(0);
  });

  it('packed keys only between keys of one length that both said', () => {
    const of = (keyBytes?: number): KvpeerAnnouncement => ({ ...announcing('packed_keys'), keyBytes });
    expect(commonFeatures(of(36), of(36)).has('packed_keys')).toBe(true);
    expect(commonFeatures(of(36), of(20)).has('packed_keys')).toBe(false);
    expect(commonFeatures(of(36), of()).has('packed_keys')).toBe(false);
    expect(commonFeatures(of(), of(36)).has('packed_keys')).toBe(false);
    expect(commonFeatures(of(), of()).has('packed_keys')).toBe(false);
  });
});
