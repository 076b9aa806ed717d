// Changes members of a JSON object in its bytes: whatever is not named stays as it was, byte for byte.

import type { Body } from './body.js';
import type { JsonMember, JsonObject } from './json-scan.js';

/** What happens to the members of one key. */
export type JsonEdit =
  /** Gives it this value, JSON as text; a member that is absent is added at the end. */
  | { readonly kind: 'set'; readonly json: string }
  /** As `set`, only where the key is there. */
  | { readonly kind: 'replace'; readonly json: string }
  | { readonly kind: 'remove' }
  /** Edits the object that is its value, one that the scan looks into. A missing one (or null) is made when `isMade`. */
  | { readonly kind: 'inside'; readonly edits: JsonEdits; readonly isMade: boolean };

/** By key. All members of a repeated key are edited: parsers differ in which of them counts. */
export type JsonEdits = ReadonlyMap<string, JsonEdit>;

/** @param object as the scan found it in `body` @returns the new text, in pieces that are borrowed from `body` or new */
export function editJson(body: Body, object: JsonObject, edits: JsonEdits): Buffer[] {
  const pieces = body.pieces(0, object.start);
  editObject(body, object, edits, pieces);
  for (const piece of body.pieces(object.end)) pieces.push(piece);
  return pieces;
}

function editObject(body: Body, object: JsonObject, edits: JsonEdits, pieces: Buffer[]): void {
  const { members } = object;
  const absent = new Map(edits);
  let cursor = object.start;
  let hasKept = false;
  const copyTo = (end: number, next: number): void => {
    for (const piece of body.pieces(cursor, end)) pieces.push(piece);
    cursor = next;
  };
  for (const [i, member] of members.entries()) {
    const edit = edits.get(member.key);
    absent.delete(member.key);
    if (edit?.kind === 'remove') {
      const before = members.at(i - 1);
      const after = members.at(i + 1);
      // With its comma: the one before it, or after it when nothing is left before it.
      if (hasKept && before !== undefined) copyTo(before.valueEnd, member.valueEnd);
      else copyTo(member.keyStart, after?.keyStart ?? member.valueEnd);
      continue;
    }
    hasKept = true;
    if (edit === undefined) continue;
    copyTo(member.valueStart, member.valueEnd);
    if (edit.kind === 'inside') editInside(body, member, edit, pieces);
    else pieces.push(Buffer.from(edit.json));
  }
  const added = addedMembers(absent);
  copyTo(object.end - 1, object.end - 1);
  if (added !== '') pieces.push(Buffer.from(hasKept ? `,${added}` : added));
  copyTo(object.end, object.end);
}

function editInside(
  body: Body,
  member: JsonMember,
  edit: JsonEdit & { readonly kind: 'inside' },
  pieces: Buffer[],
): void {
  const { object, valueStart, valueEnd } = member;
  if (object !== undefined) {
    editObject(body, object, edit.edits, pieces);
    return;
  }
  const isNull = valueEnd - valueStart === NULL.length && body.text(valueStart, valueEnd) === NULL;
  if (isNull && edit.isMade) pieces.push(Buffer.from(`{${addedMembers(edit.edits)}}`));
  else for (const piece of body.pieces(valueStart, valueEnd)) pieces.push(piece);
}

const NULL = 'null';

function addedMembers(edits: JsonEdits): string {
  const added: string[] = [];
  for (const [key, edit] of edits) {
    if (edit.kind === 'set') added.push(`${JSON.stringify(key)}:${edit.json}`);
    else if (edit.kind === 'inside' && edit.isMade) {
      added.push(`${JSON.stringify(key)}:{${addedMembers(edit.edits)}}`);
    }
  }
  return added.join(',');
}
