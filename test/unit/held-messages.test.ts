// Bounds on the bytes of messages that wait.

import { expect, it } from 'vitest';
import type { KeyList } from '../../src/main/protocol/messages.js';
import { HeldBudget, HeldMessages } from '../../src/main/session/held-messages.js';

const MIB = 1024 * 1024;

/** A list in a message of so many bytes; nothing reads them. */
function listOf(bytes: number): KeyList {
  const payload = { length: bytes } as Buffer;
  return { payload, bytes: payload } as KeyList;
}

it('a peer holds 64 MiB, one message of any size, and has room again for what it drops', () => {
  const held = new HeldMessages(new HeldBudget());
  expect(held.hasRoomFor(listOf(100 * MIB))).toBe(true);
  const owners = Array.from({ length: 8 }, () => ({ heldBytes: 0 }));
  for (const owner of owners) {
    expect(held.hasRoomFor(listOf(8 * MIB))).toBe(true);
    held.add(owner, listOf(8 * MIB));
  }
  expect(held.hasRoomFor(listOf(1))).toBe(false);
  held.drop(owners[0]);
  held.drop(owners[0]);
  expect(held.bytes).toBe(56 * MIB);
  expect(held.hasRoomFor(listOf(8 * MIB))).toBe(true);
});

it('all peers of a node hold 512 MiB together, and each of them still its first message', () => {
  const budget = new HeldBudget();
  const peers = Array.from({ length: 16 }, () => new HeldMessages(budget));
  const owners = peers.map(() => ({ heldBytes: 0 }));
  peers.forEach((held, i) => {
    held.add(owners[i], listOf(32 * MIB));
  });
  expect(budget.bytes).toBe(512 * MIB);
  expect(peers[0].hasRoomFor(listOf(1))).toBe(false);
  expect(new HeldMessages(budget).hasRoomFor(listOf(MIB))).toBe(true);
  peers.forEach((held, i) => {
    held.drop(owners[i]);
  });
  expect(budget.bytes).toBe(0);
  expect(peers[0].hasRoomFor(listOf(60 * MIB))).toBe(true);
});
