// The same work as piscina-match.ts over a bare message port.

import { parentPort, workerData } from 'node:worker_threads';

import { loadNative } from '../../native/index.js';

const native = loadNative();
const control = native.attachControl((workerData as { readonly control: SharedArrayBuffer }).control);
parentPort?.on('message', (extent: number) => {
  parentPort?.postMessage(native.match(control, extent, 0, -1, 0, -1));
});
