'use strict';
// The address map: what lies where over time, and at one moment, with the holes coloured by why the next request cannot use them.

const extent_of = trace => trace.regions.length ? d3.max(trace.regions, region => region[2] + region[1]) : 1;

// Colours as the four bytes of a canvas pixel.
function pixel_of(text) {
  const {r, g, b} = Object.fromEntries(Object.entries(d3.rgb(text)).map(([name, value]) => [name, Math.max(0, Math.min(255, Math.round(value)))]));
  return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
}

function draw_addresses(trace) {
  const began = performance.now();
  const frame = make_frame('address-chart', window.innerWidth < 640 ? 260 : 340, {left: 66, right: 14, top: 8, bottom: 24});
  const view = page.view, x = d3.scaleLinear(view, [0, frame.width]), most = extent_of(trace);
  const y = d3.scaleLinear([0, most], [frame.height, 0]);
  const note = document.getElementById('addresses-note');
  drawn.addresses = {blocks: 0, exact: is_exact(trace, view)};
  draw_axes(frame, x, y, byte_ticks(most, 5), bytes_text);
  if (!drawn.addresses.exact) {
    note.textContent = 'Blocks are drawn where each event is known; zoom into one of the parts named above, or take another part with --from and --to.';
    frame.context.fillStyle = css('--reserved');
    for (const w of trace.windows) {
      const [a, z] = (page.axis === 'time' ? [w.first_ns, w.end_ns] : [w.first, w.end - 1]).map(x);
      frame.context.fillRect(a, 0, Math.max(2, z - a), frame.height);
    }
    frame.canvas.onclick = () => { const w = trace.windows[0]; set_view(page.axis === 'time' ? [w.first_ns, w.end_ns] : [w.first, w.end - 1]); };
    return;
  }
  const wide = frame.canvas.width, high = frame.canvas.height, image = frame.context.createImageData(wide, high), pixels = new Uint32Array(image.data.buffer);
  const sx = wide / (view[1] - view[0] || 1), sy = high / most;
  const paint = (begin, end, position, bytes, pixel) => {
    const left = Math.max(0, Math.floor((begin - view[0]) * sx)), right = Math.min(wide, Math.max(left + 1, Math.ceil((Math.min(end, view[1]) - view[0]) * sx)));
    const bottom = high - Math.floor(position * sy), top = Math.max(0, Math.min(bottom - 1, high - Math.ceil((position + bytes) * sy)));
    for (let row = top; row < bottom && row < high; ++row) pixels.fill(pixel, row * wide + left, row * wide + right);
  };
  const s = trace.s, [sb, se] = page.axis === 'time' ? [s.begin_ns, s.end_ns] : [s.begin_event, s.end_event], reserved = pixel_of(css('--reserved'));
  for (let n = 0; n < s.count; ++n) if (sb[n] <= view[1] && se[n] >= view[0]) paint(sb[n], se[n], s.position[n], s.bytes[n], reserved);
  const b = trace.b, [bb, be] = page.axis === 'time' ? [b.begin_ns, b.end_ns] : [b.begin_event, b.end_event];
  const of = group_column(trace), last = last_group(trace);
  // Blocks of one group still show where one ends and the next begins: neighbours differ a little.
  const shades = d3.range(last + 1).map(g => { const c = colour(g === last && page.group !== 'kind' ? 7 : g); return [pixel_of(c), pixel_of(d3.rgb(c).brighter(0.35)), pixel_of(d3.rgb(c).darker(0.35))]; });
  const ink = pixel_of(css('--ink'));
  let count = 0;
  for (let n = 0; n < trace.count; ++n) {
    if (bb[n] > view[1] || be[n] < view[0]) continue;
    ++count;
    paint(bb[n], be[n], b.position[n], b.bytes[n], page.site === b.site[n] ? ink : shades[Math.min(of[n], last)][n % 3]);
  }
  frame.context.putImageData(image, 0, 0);
  draw_cursor(frame, trace, x, view);
  note.textContent = `${count_text(count)} blocks in view; gaps over 2 MiB that no block used are left out` + (s.count ? '; grey is reserved and free.' : '. The recording does not say what was reserved.');
  listen(frame, trace, x, (px, event) => {
    const position = y.invert(event.clientY - frame.canvas.getBoundingClientRect().top), value = x.invert(px);
    for (let n = 0; n < trace.count; ++n) {
      if (bb[n] <= value && be[n] > value && b.position[n] <= position && position < b.position[n] + b.bytes[n]) return block_text(trace, n);
    }
    return `${x_text(value)}\n${address_at(trace, position)}: no live block`;
  });
  drawn.addresses = {blocks: count, exact: true, ms: performance.now() - began};
}

function block_text(trace, n) {
  const b = trace.b, site = trace.sites[b.site[n]];
  const life = b.end_event[n] === Infinity ? 'never freed' : `freed at event ${count_text(b.end_event[n])}` + (trace.times_known ? `, lived ${time_text(b.end_ns[n] - b.begin_ns[n])}` : '');
  return `${bytes_text(b.bytes[n])} at ${address_at(trace, b.position[n])}\n${trace.kinds[b.kind[n]]}, ${trace.streams[b.stream[n]]}\nallocated at event ${count_text(b.begin_event[n])}, ${life}\n${site.label}`;
}

// What lies where behind event `event`, and what of it the largest of the requests that follow could have.
function layout_at(trace, event) {
  const b = trace.b, live = [], held = [];
  for (let n = 0; n < trace.count && b.begin_event[n] <= event; ++n) {
    if (b.end_event[n] > event) live.push(n);
    else if (b.held_events[n] > 0 && b.end_event[n] + b.held_events[n] > event) held.push(n);
  }
  const by_position = (one, two) => b.position[one] - b.position[two];
  live.sort(by_position);
  let request = null;
  for (let n = not_over(trace.op_event, event), seen = 0; n < trace.ops.length && seen < 100; ++n) {
    if (trace.ops[n] & 1) continue;
    ++seen;
    const id = trace.ops[n] >> 1;
    if (request === null || b.bytes[id] > b.bytes[request]) request = id;
  }
  let spaces = [];
  const s = trace.s;
  if (s.count) {
    for (let n = 0; n < s.count; ++n) if (s.begin_event[n] <= event && s.end_event[n] > event) spaces.push([s.position[n], s.position[n] + s.bytes[n]]);
    // A block that no recorded segment holds stands for its own memory.
    for (const n of live.concat(held)) spaces.push([b.position[n], b.position[n] + b.bytes[n]]);
    spaces.sort((one, two) => one[0] - two[0]);
    const joined = [];
    for (const each of spaces) {
      const before = joined[joined.length - 1];
      if (before && before[1] >= each[0]) before[1] = Math.max(before[1], each[1]); else joined.push(each.slice());
    }
    spaces = joined;
  } else {
    // Both in the order of their positions: a program of many small allocations has as many regions as blocks.
    let at = 0;
    for (const [, bytes, start] of trace.regions) {
      while (at < live.length && b.position[live[at]] < start) ++at;
      const first = at;
      let end = 0;
      for (; at < live.length && b.position[live[at]] < start + bytes; ++at) end = Math.max(end, b.position[live[at]] + b.bytes[live[at]]);
      if (at > first) spaces.push([b.position[live[first]], end]);
    }
  }
  const taken = live.concat(held).sort(by_position), holes = [];
  let next = 0;
  for (const [begin, end] of spaces) {
    let at = begin;
    while (next < taken.length && b.position[taken[next]] + b.bytes[taken[next]] <= begin) ++next;
    for (; next < taken.length && b.position[taken[next]] < end; ++next) {
      if (b.position[taken[next]] > at) holes.push({begin: at, bytes: b.position[taken[next]] - at});
      at = Math.max(at, b.position[taken[next]] + b.bytes[taken[next]]);
    }
    if (end > at) holes.push({begin: at, bytes: end - at});
  }
  // Who freed each hole last.
  const starts = holes.map(hole => hole.begin);
  for (let n = 0; n < trace.count && b.begin_event[n] <= event; ++n) {
    if (b.end_event[n] > event) continue;
    for (let h = Math.max(0, not_over(starts, b.position[n]) - 1); h < holes.length && holes[h].begin < b.position[n] + b.bytes[n]; ++h) {
      if (holes[h].begin + holes[h].bytes <= b.position[n]) continue;
      if (holes[h].freed === undefined || b.end_event[n] > b.end_event[holes[h].freed]) holes[h].freed = n;
    }
  }
  for (const hole of holes) {
    hole.why = request !== null && hole.bytes < b.bytes[request] ? 'small'
      : request !== null && hole.freed !== undefined && b.stream[hole.freed] !== b.stream[request] ? 'stream' : 'usable';
  }
  for (const n of held) holes.push({begin: b.position[n], bytes: b.bytes[n], freed: n, why: 'held'});
  return {live, holes, spaces, request};
}

const why_text = {
  usable: 'could serve it', small: 'too small', stream: 'freed on another stream: a wait is needed', held: 'freed, but kept back for other streams’ use',
};

function draw_layout(trace) {
  const event = page.cursor === null ? trace.peak_event : page.cursor, box = document.getElementById('layout-chart');
  document.getElementById('layout-title').textContent = `Behind event ${count_text(event)}${page.cursor === null ? ' (the peak)' : ''}`;
  const note = document.getElementById('layout-note');
  const known = trace.events_shown >= trace.events || trace.windows.some(w => w.first <= event && w.end > event);
  if (!known) {
    note.textContent = 'This event is not among those that are on the page one by one.';
    box.style.height = 0;
    drawn.layout = {blocks: 0, holes: 0};
    return;
  }
  const layout = layout_at(trace, event), total = d3.sum(layout.spaces, space => space[1] - space[0]);
  const rows = Math.max(1, Math.min(window.innerWidth < 640 ? 16 : 10, layout.live.length)), high = 22;
  const frame = make_frame('layout-chart', rows * high + 8, {left: 0, right: 0, top: 2, bottom: 4}), {context} = frame;
  // Spaces one behind the other, as one ribbon that is broken into rows.
  const starts = [];
  let sum = 0;
  for (const [begin, end] of layout.spaces) starts.push(sum), sum += end - begin;
  const begins = layout.spaces.map(space => space[0]), a_row = Math.max(1, total / rows);
  const ribbon = position => { const at = Math.max(0, not_over(begins, position) - 1); return starts[at] + position - begins[at]; };
  const pieces = (begin, bytes, paint) => {
    for (let left = ribbon(begin), end = left + bytes; left < end - 1e-6;) {
      const row = Math.min(rows - 1, Math.floor(left / a_row)), stop = row === rows - 1 ? end : Math.min(end, (row + 1) * a_row);
      paint((left - row * a_row) / a_row * frame.width, row * high, (stop - left) / a_row * frame.width);
      if (stop <= left) break;
      left = stop;
    }
  };
  const b = trace.b, of = group_column(trace), last = last_group(trace), found = [];
  for (const n of layout.live) {
    pieces(b.position[n], b.bytes[n], (px, py, wide) => {
      context.fillStyle = page.site === b.site[n] ? css('--ink') : colour(of[n] >= last && page.group !== 'kind' ? 7 : Math.min(of[n], last));
      context.fillRect(px, py, Math.max(0.5, wide - (wide > 3 ? 1 : 0)), high - 4);
      found.push([px, py, wide, () => block_text(trace, n)]);
    });
  }
  const sums = {usable: 0, small: 0, stream: 0, held: 0};
  for (const hole of layout.holes) {
    sums[hole.why] += hole.bytes;
    pieces(hole.begin, hole.bytes, (px, py, wide) => {
      context.fillStyle = hole_colour(hole.why);
      context.fillRect(px, py, Math.max(0.5, wide - (wide > 3 ? 1 : 0)), high - 4);
      if (hole.why !== 'usable' && wide > 4) hatch(context, px, py, wide - 1, high - 4, hole.why);
      found.push([px, py, wide, () => `hole of ${bytes_text(hole.bytes)} at ${address_at(trace, hole.begin)}\n${why_text[hole.why]}` + (hole.freed === undefined ? '\nnever used' : `\nlast freed at event ${count_text(b.end_event[hole.freed])} on ${trace.streams[b.stream[hole.freed]]}`)]);
    });
  }
  frame.svg.style('pointer-events', 'none');
  frame.canvas.onmousemove = e => {
    const box = frame.canvas.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top;
    const hit = found.find(([left, top, wide]) => px >= left && px < left + Math.max(1, wide) && py >= top && py < top + high);
    if (hit) show_tip(hit[3](), e.clientX, e.clientY); else hide_tip();
  };
  frame.canvas.onmouseleave = hide_tip;
  note.textContent = (layout.request === null ? 'No request follows. ' : `Holes as the largest of the next 100 requests sees them: ${bytes_text(b.bytes[layout.request])} on ${trace.streams[b.stream[layout.request]]} at event ${count_text(b.begin_event[layout.request])}. `)
    + `${count_text(layout.live.length)} live blocks, ${count_text(layout.holes.length)} holes` + (trace.s.count ? '.' : ' between them (the recording does not say what was reserved).');
  draw_legend('layout-legend', Object.keys(sums).filter(why => sums[why] > 0).map(why => ({label: `${bytes_text(sums[why])} ${why_text[why]}`, fill: hole_colour(why)})));
  drawn.layout = {blocks: layout.live.length, holes: layout.holes.length, live_bytes: d3.sum(layout.live, n => b.bytes[n]), sums};
}

// A pattern beside the colour, so that holes are distinguished without it.
function hatch(context, left, top, wide, high, why) {
  context.save();
  context.beginPath();
  context.rect(left, top, wide, high);
  context.clip();
  context.strokeStyle = is_dark() ? '#ffffff66' : '#00000055';
  context.lineWidth = 1;
  context.beginPath();
  const step = why === 'small' ? 5 : 8;
  for (let at = left - high; at < left + wide; at += step) {
    if (why !== 'small') context.moveTo(at, top + high), context.lineTo(at + high, top);
    if (why === 'held') context.moveTo(at, top), context.lineTo(at + high, top + high);
    if (why === 'small') context.moveTo(at + high, top), context.lineTo(at + high, top + high);
  }
  context.stroke();
  context.restore();
}
