// A worker that matches what it is asked to through piscina.run: the same work as a ring's record, without the ring.

import { workerData } from 'piscina';

import type { ControlHandle, Native } from '../../native/index.js';
import { loadNative } from '../../native/index.js';

let attached: { readonly native: Native; readonly control: ControlHandle } | undefined;

function attach(): { readonly native: Native; readonly control: ControlHandle } {
  const native = loadNative();
  const { control } = workerData as { readonly control: SharedArrayBuffer };
  return { native, control: native.attachControl(control) };
}

/** @returns the counts, packed */
export default function match(extent: number): number {
  attached ??= attach();
  return attached.native.match(attached.control, extent, 0, -1, 0, -1);
}
