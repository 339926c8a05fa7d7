// Runs under node: one TF.js kernel call (or a forward and gradient pair) per task, run and timed on request over pipes.
'use strict';
const fs = require('fs');
const tf = require('@tensorflow/tfjs-core');
require('@tensorflow/tfjs-backend-cpu');

function readBytes(count) {
  const bytes = Buffer.alloc(count);
  for (let done = 0; done < count;) {
    const got = fs.readSync(0, bytes, done, count - done, null);
    if (got === 0) process.exit(0);
    done += got;
  }
  return bytes;
}

function readMessage() {
  let line = '';
  for (let char = readBytes(1).toString(); char !== '\n'; char = readBytes(1).toString()) line += char;
  const message = JSON.parse(line);
  message.tensors = {};
  for (const {name, shape} of message.arrays) {
    const bytes = readBytes(4 * shape.reduce((a, b) => a * b, 1));
    message.tensors[name] = tf.tensor(new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4), shape, 'float32');
  }
  return message;
}

function writeAll(bytes) {
  for (let done = 0; done < bytes.length;) done += fs.writeSync(1, bytes, done, bytes.length - done);
}

function reply(header, tensors) {
  const values = tensors.map((tensor) => Float32Array.from(tensor.dataSync()));
  header.arrays = tensors.map((tensor) => ({dtype: 'float32', shape: tensor.shape}));
  writeAll(Buffer.from(JSON.stringify(header) + '\n'));
  for (const v of values) writeAll(Buffer.from(v.buffer, v.byteOffset, v.byteLength));
}

// The kernel calls of an op, as a function that returns the list of its result tensors.
function calls({op, case: c, tensors: {x, dy, filter}}) {
  const volume = c.size.length === 3;
  const kernel = (name, inputs, attrs) => {
    const out = tf.engine().runKernel(name, inputs, attrs);
    return Array.isArray(out) ? out : [out];
  };
  const planarPad = [[0, 0], ...c.padding, [0, 0]];
  const pad = volume ? c.padding[0][0] : planarPad;
  const strides = c.stride;
  const d = volume ? '3D' : '';
  const pool = {filterSize: c.kernel, strides, pad};
  const avg = () => kernel('AvgPool' + d, {x}, pool);
  const avgGrad = () => kernel(`AvgPool${d}Grad`, {dy, input: x}, pool);
  const max = () => kernel('MaxPool' + d, {x}, pool);
  const maxGrad = (output) => kernel(`MaxPool${d}Grad`, {dy, input: x, output}, pool);
  if (op.startsWith('max_pool_grad')) {
    const [y] = max();
    return () => maxGrad(y);
  }
  const maxPair = () => {
    const [y] = max();
    return [y, ...maxGrad(y)];
  };
  const conv = {strides, pad, dataFormat: volume ? 'NDHWC' : 'NHWC', dilations: c.dilation};
  const inputShape = x.shape;
  const filterShape = filter && filter.shape;
  const [forward, gradInput, gradFilter] = volume ?
      ['Conv3D', 'Conv3DBackpropInputV2', 'Conv3DBackpropFilterV2'] :
      c.groups > 1 ?
      ['DepthwiseConv2dNative', 'DepthwiseConv2dNativeBackpropInput', 'DepthwiseConv2dNativeBackpropFilter'] :
      ['Conv2D', 'Conv2DBackpropInput', 'Conv2DBackpropFilter'];
  const ops = {
    max_pool: max,
    max_pool_with_indices: () => kernel('MaxPoolWithArgmax', {x}, {...pool, includeBatchInIndex: false}),
    max_pair: maxPair,
    avg_pool: avg,
    avg_pool_grad: avgGrad,
    avg_pair: () => [...avg(), ...avgGrad()],
    conv: () => kernel(forward, {x, filter}, conv),
    conv_grad_input: () => kernel(gradInput, {dy, filter}, {...conv, inputShape}),
    conv_grad_filter: () => kernel(gradFilter, {x, dy}, {...conv, filterShape}),
  };
  if (volume && op === 'max_pool_with_indices') return null;
  return ops[op];
}

function runOnce(task) {
  const start = performance.now();
  const tensors = task();
  return {tensors, seconds: (performance.now() - start) / 1000};
}

let task = null;
let held = {};
for (;;) {
  const message = readMessage();
  const header = {};
  let tensors = [];
  try {
    if (message.command === 'prepare') {
      tf.dispose(held);
      held = message.tensors;
      task = calls(message);
      if (!task) header.unsupported = `no ${message.op} in this rank`;
    } else if (message.command === 'time') {
      let total = 0;
      for (let call = 0; call < message.calls; call++) {
        const run = runOnce(task);
        total += run.seconds;
        run.tensors.forEach((tensor) => tensor.dispose());
      }
      header.seconds = total / message.calls;
    } else {
      tensors = runOnce(task).tensors;
    }
  } catch (error) {
    header.error = String(error).split('\n')[0];
  }
  reply(header, tensors);
  tensors.forEach((tensor) => tensor.dispose());
}
