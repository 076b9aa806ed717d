// The sidecar's view of JSON: edits that change nothing else, and a filter that cuts a body anywhere and finds the same.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Body } from '../../src/main/sidecar/body.js';
import { editJson, type JsonEdit } from '../../src/main/sidecar/json-edit.js';
import { JsonFault, JsonScan, scanJsonObject, type JsonObject } from '../../src/main/sidecar/json-scan.js';
import { ParamsFilter, UnreadableBody } from '../../src/main/sidecar/params-filter.js';

const REMOVE: JsonEdit = { kind: 'remove' };

function edited(text: string, edits: readonly (readonly [string, JsonEdit])[]): string {
  const bytes = Buffer.from(text);
  return Buffer.concat(editJson(Body.of(bytes), scanJsonObject(bytes), new Map(edits))).toString();
}

function filtered(text: string, cuts: readonly number[] = []): string {
  const filter = new ParamsFilter();
  const bytes = Buffer.from(text);
  const ends = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  const out: Buffer[] = [];
  let from = 0;
  for (const end of [...ends, bytes.length]) {
    out.push(...filter.push(Buffer.from(bytes.subarray(from, end))));
    from = end;
  }
  return Buffer.concat([...out, ...filter.end()]).toString();
}

function isJsonObject(text: string): boolean {
  try {
    return /^\s*\{/.test(text) && JSON.parse(text) !== null;
  } catch {
    return false;
  }
}

const object = fc.dictionary(fc.string(), fc.jsonValue());
const spaces = fc.constantFrom(undefined, 1, '\t');

describe('edits', () => {
  it.each([
    ['{"k":1}', '{}'],
    ['{"k":1,"a":2}', '{"a":2}'],
    ['{"a":2 , "k":1}', '{"a":2}'],
    ['{"k":1,"k":2, "a":3,"k":4 ,"b":5}', '{"a":3 ,"b":5}'],
    ['{"a":1,"\\u006b":2}', '{"a":1}'],
  ])('take a member out of %s with one comma', (before, after) => {
    expect(edited(before, [['k', REMOVE]])).toBe(after);
  });

  it('agree with an edit of the parsed value, whatever the object', () => {
    fc.assert(
      fc.property(object, spaces, fc.jsonValue(), (value, space, added) => {
        const text = JSON.stringify({ ...value, gone: 1, set: 2 }, null, space);
        const wanted = { ...(JSON.parse(text) as object), set: added, fresh: added };
        const result = edited(text, [
          ['gone', REMOVE],
          ['set', { kind: 'set', json: JSON.stringify(added) }],
          ['fresh', { kind: 'set', json: JSON.stringify(added) }],
        ]);
        const { gone, ...rest } = wanted as Record<string, unknown>;
        expect(gone).toBe(1);
        expect(JSON.parse(result)).toEqual(JSON.parse(JSON.stringify(rest)));
      }),
    );
  });

  it('refuse what JSON.parse refuses and numbers that no double can hold, and nothing else', () => {
    fc.assert(
      fc.property(
        object,
        fc.nat(),
        fc.constantFrom(...'{}[]",:\\0-e.tn \u0001'.split(/(?:)/u)),
        (value, at, character) => {
          const text = JSON.stringify({ a: value });
          const i = at % (text.length + 1);
          const broken = text.slice(0, i) + character + text.slice(i + 1);
          // The character may have been the point of a number with an exponent of 296.
          const numbers = broken.replace(/"(?:[^"\\]|\\.)*"/g, '').match(/-?\d[\d.eE+-]*/g) ?? [];
          const isJson =
            isJsonObject(broken) && !numbers.some((number) => Math.abs(Number(number)) === Infinity);
          const scan = (): unknown => scanJsonObject(Buffer.from(broken));
          if (isJson) scan();
          else expect(scan).toThrow(JsonFault);
        },
      ),
    );
  });
});

/** The same text in pieces: what is found, or what is said to be wrong. */
function scanned(text: string, cuts: readonly number[]): JsonObject | string {
  const bytes = Buffer.from(text);
  const ends = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  const scan = new JsonScan();
  let from = 0;
  try {
    for (const end of [...ends, bytes.length]) {
      scan.push(bytes.subarray(from, end));
      from = end;
    }
    return scan.end();
  } catch (error) {
    return error instanceof JsonFault ? error.message : String(error);
  }
}

describe('a scan in pieces', () => {
  it('finds what a scan of the whole finds, or the same fault', () => {
    const cuts = fc.array(fc.nat(), { maxLength: 8 });
    fc.assert(
      fc.property(object, spaces, cuts, fc.nat(), fc.boolean(), (value, space, at, broken, isBroken) => {
        const whole = JSON.stringify(
          {
            ...value,
            sampling_params: { extra_args: value, n: [1e300, -0.5, 'x\\"\u2028'] },
            vllm_xargs: value,
          },
          null,
          space,
        );
        const i = broken % whole.length;
        const text = isBroken ? whole.slice(0, i) + whole.slice(i + 1) : whole;
        expect(scanned(text, at)).toEqual(scanned(text, []));
      }),
    );
  });

  it('finds the same wherever it is cut', () => {
    const text = String.raw`{"a\u0062":-1.5e+3,"sampling_params" :{ "extra_args":{"é":[true,null,"\ud800"]}},"":false}`;
    const whole = scanned(text, []);
    expect(whole).toMatchObject({ members: [{ key: 'ab' }, { object: { members: [{}] } }, { key: '' }] });
    for (let cut = 0; cut < Buffer.byteLength(text); cut++) expect(scanned(text, [cut])).toEqual(whole);
  });

  it('says where a text is wrong, counted from the beginning of the body', () => {
    expect(scanned('{"a":1,}', [3, 6])).toBe('byte 7 is wrong: a key in double quotes was expected');
    expect(scanned('{"a":', [3])).toBe('the text ends: a value was expected');
    expect(scanned(`{"a":${'9'.repeat(10_000)}}`, [500])).toBe(
      'a number at byte 5 is beyond what a double holds',
    );
  });
});

describe('the filter', () => {
  const params = '"kv_transfer_params" : {"a":[1,{"}":"\\""}]}';

  it.each([
    [`{${params}}`, {}],
    [`{${params},"b":1}`, { b: 1 }],
    [`{"b":1,${params}}`, { b: 1 }],
    [`{"b":1,${params},${params},"c":2}`, { b: 1, c: 2 }],
    [
      `{"kv\\u005ftransfer_params":1,"b":{${params}}}`,
      { b: { kv_transfer_params: { a: [1, { '}': '"' }] } } },
    ],
    [
      `{"sampling_params":{"extra_args":{"x":1,${params}},"n":[{}]}}`,
      { sampling_params: { extra_args: { x: 1 }, n: [{}] } },
    ],
    [`{"vllm_xargs":{${params},"y":2}}`, { vllm_xargs: { y: 2 } }],
  ])('keeps the length of %s, and the rest of it, wherever it is cut', (text, rest) => {
    for (let cut = 0; cut <= text.length; cut++) {
      const result = filtered(text, [cut, cut + 1]);
      expect(result).toHaveLength(text.length);
      expect(JSON.parse(result)).toEqual(rest);
    }
  });

  it('changes no byte of a body without them, wherever it is cut', () => {
    fc.assert(
      fc.property(object, spaces, fc.array(fc.nat(), { maxLength: 8 }), (value, space, cuts) => {
        const text = JSON.stringify(value, null, space);
        expect(filtered(text, cuts)).toBe(text);
      }),
    );
  });

  it('reads on over what Python takes for JSON, and passes what it does not', () => {
    expect(filtered(`\ufeff{"n":NaN,"m":-Infinity,${params}}`)).not.toContain('kv_transfer');
    for (const text of ['not json', '--boundary', `[}${params}`, '{"a" 1}'])
      expect(filtered(text)).toBe(text);
  });

  it('refuses nesting that nothing bounds, and takes what upstream takes', () => {
    expect(filtered(`${'['.repeat(10_000)}${']'.repeat(10_000)}`)).toHaveLength(20_000);
    expect(() => filtered('['.repeat(10_001))).toThrow(UnreadableBody);
    expect(() => filtered('{"a":'.repeat(10_001))).toThrow(UnreadableBody);
  });

  it('holds nothing back of a key that is too long to matter', () => {
    const filter = new ParamsFilter();
    filter.push(Buffer.from(`{${params},"`));
    filter.push(Buffer.alloc(1_000, 'a'));
    const chunk = Buffer.alloc(64, 'b');
    expect(filter.push(chunk)).toEqual([chunk]);
    const text = `{${params},"${'k'.repeat(1_000)}":1}`;
    expect(JSON.parse(filtered(text, [500, 600, 700]))).toEqual({ ['k'.repeat(1_000)]: 1 });
  });

  it('refuses encodings in which a parser would find them unseen', () => {
    for (const encoding of ['utf16le'] as const) {
      expect(() => new ParamsFilter().push(Buffer.from(`{${params}}`, encoding))).toThrow(UnreadableBody);
    }
    expect(() => new ParamsFilter().push(Buffer.from([0xff, 0xfe, 0x7b, 0x00]))).toThrow(UnreadableBody);
  });
});
