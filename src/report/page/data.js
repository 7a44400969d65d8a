'use strict';
// What the page carries: columns of whole numbers, packed by src/report/columns.cpp, become typed arrays.

async function unpack_bytes(text) {
  const raw = atob(text), packed = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; ++at) packed[at] = raw.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Seven bits a byte, low ones first. A difference has its sign in the lowest bit and adds to the number before.
function unpack_numbers(bytes, count, form, into) {
  let at = 0, last = 0;
  for (let n = 0; n < count; ++n) {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    if (form === 'difference') {
      last += value % 2 === 1 ? -(value + 1) / 2 : value / 2;
      value = last;
    }
    into[n] = value;
  }
  return into;
}

async function unpack_table(table) {
  const made = {count: table.count};
  await Promise.all(Object.entries(table.columns || {}).map(async ([name, column]) => {
    const bytes = await unpack_bytes(column.data);
    made[name] = unpack_numbers(bytes, table.count, column.form, new Float64Array(table.count));
  }));
  return made;
}

// Blocks with both ends as events and as times, and the order in which they begin and end.
async function unpack_trace(trace) {
  const [blocks, marks, segments] = await Promise.all([trace.blocks, trace.marks, trace.segments].map(unpack_table));
  const ends = (table, begin, length) => {
    const made = new Float64Array(table.count);
    for (let n = 0; n < table.count; ++n) made[n] = table.events[n] === 0 ? Infinity : table[begin][n] + table[length][n];
    return made;
  };
  for (const table of [blocks, segments]) {
    if (table.count === 0) table.begin_event = table.begin_ns = table.position = table.bytes = table.events = new Float64Array(0);
    table.end_event = ends(table, 'begin_event', 'events');
    table.end_ns = ends(table, 'begin_ns', 'ns');
  }
  const count = blocks.count;
  blocks.kind = new Uint8Array(count);
  blocks.stream = new Uint32Array(count);
  for (let n = 0; n < count; ++n) {
    blocks.kind[n] = blocks.kind_and_stream[n] % 8;
    blocks.stream[n] = Math.floor(blocks.kind_and_stream[n] / 8);
  }
  trace.count = count;
  trace.b = blocks;
  trace.m = marks.count ? marks : {count: 0, event: [], ns: [], what: [], stream: [], bytes: [], text: []};
  trace.s = segments;
  order_operations(trace);
  for (const each of trace.windows) {
    const last = not_over(trace.op_event, each.end - 1) - 1;
    each.first_ns = each.first === 0 ? 0 : trace.op_ns[Math.min(trace.ops.length - 1, not_over(trace.op_event, each.first - 1))] || 0;
    each.end_ns = each.end >= trace.events ? trace.duration_ns : trace.op_ns[Math.max(0, last)] || 0;
  }
  return trace;
}

// trace.ops[i] is 2 * block, plus 1 where the block ends; in the order of events, ends before beginnings of the same event.
function order_operations(trace) {
  const b = trace.b, count = b.count;
  const scale = Math.pow(2, Math.ceil(Math.log2(Math.max(2, count))));
  let ended = 0;
  for (let n = 0; n < count; ++n) if (b.end_event[n] !== Infinity) ++ended;
  let ends = new Float64Array(ended), at = 0;
  if (trace.events * scale < Number.MAX_SAFE_INTEGER) {
    for (let n = 0; n < count; ++n) if (b.end_event[n] !== Infinity) ends[at++] = b.end_event[n] * scale + n;
    ends.sort();
    ends = ends.map(key => key % scale);
  } else {
    for (let n = 0; n < count; ++n) if (b.end_event[n] !== Infinity) ends[at++] = n;
    ends.sort((one, two) => b.end_event[one] - b.end_event[two]);
  }
  const ops = new Uint32Array(count + ended), event = new Float64Array(ops.length), time = new Float64Array(ops.length);
  let next = 0, out = 0;
  const put_end = () => {
    const id = ends[next++];
    ops[out] = 2 * id + 1;
    event[out] = b.end_event[id];
    time[out++] = b.end_ns[id];
  };
  for (let id = 0; id < count; ++id) {
    while (next < ended && b.end_event[ends[next]] <= b.begin_event[id]) put_end();
    ops[out] = 2 * id;
    event[out] = b.begin_event[id];
    time[out++] = b.begin_ns[id];
  }
  while (next < ended) put_end();
  trace.ops = ops;
  trace.op_event = event;
  trace.op_ns = time;
}

// How many of the sorted numbers are not over `value`.
function not_over(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1; else high = middle;
  }
  return low;
}

// The address of a call site on the compacted axis, as text.
function address_at(trace, position) {
  for (const [begin, bytes, start] of trace.regions) {
    if (position >= start && position < start + bytes) return '0x' + (BigInt(begin) + BigInt(Math.round(position - start))).toString(16);
  }
  return '?';
}
