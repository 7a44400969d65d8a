'use strict';
// Memory over time: stacked by kind, stream or call site, exact where every event is known.

const groups_of = trace => {
  if (page.group === 'kind') return trace.kinds;
  const names = page.group === 'stream' ? trace.streams : trace.sites.map(site => site.label);
  return names.length > 7 ? [...names.slice(0, 7), 'all others'] : [...names, 'all others'].slice(0, names.length + 1);
};
const group_column = trace => trace.b[page.group];
const last_group = trace => page.group === 'kind' ? 4 : Math.min(7, (page.group === 'stream' ? trace.streams : trace.sites).length);
const op_x = trace => page.axis === 'time' ? trace.op_ns : trace.op_event;
const span_of = trace => page.axis === 'time' ? [0, Math.max(1, trace.duration_ns)] : [0, Math.max(1, trace.events - 1)];

// Is every event of the view known?
function is_exact(trace, view) {
  if (trace.events_shown >= trace.events) return true;
  return trace.windows.some(each => page.axis === 'time' ? each.first_ns <= view[0] && each.end_ns >= view[1] : each.first <= view[0] && each.end - 1 >= view[1]);
}
// Between axis and events: through the operations where they are known, else through the bins.
function event_at(trace, x) {
  if (page.axis === 'event') return x;
  if (trace.events_shown >= trace.events) return trace.op_event[Math.max(0, not_over(trace.op_ns, x) - 1)] || 0;
  const bin = trace.bins[Math.max(0, not_over(trace.bin_ns, x) - 1)];
  return bin ? bin.event : 0;
}
function x_of_event(trace, event) {
  if (page.axis === 'event') return event;
  const at = not_over(trace.op_event, event) - 1;
  if (at >= 0 && (trace.events_shown >= trace.events || event - trace.op_event[at] < 1000)) return trace.op_ns[at];
  const bin = trace.bins[Math.max(0, not_over(trace.bin_first, event) - 1)];
  return bin ? bin.ns : 0;
}

// For each column of pixels the moment at which most was live: values[column * groups + group].
function stack_columns(trace, view, columns) {
  const groups = last_group(trace) + 1, values = new Float64Array(columns * groups), total = new Float64Array(columns).fill(-1);
  const now = new Float64Array(groups), scale = columns / (view[1] - view[0] || 1);
  let live = 0, column = 0, operations = 0;
  const put = () => {
    total[column] = live;
    values.set(now, column * groups);
  };
  const exact = is_exact(trace, view);
  if (exact) {
    const xs = op_x(trace), of = group_column(trace), b = trace.b, most = groups - 1;
    put();
    for (let n = 0; n < trace.ops.length; ++n) {
      const x = xs[n];
      if (x > view[1]) break;
      const id = trace.ops[n] >> 1, change = trace.ops[n] & 1 ? -b.bytes[id] : b.bytes[id];
      if (x >= view[0]) {
        const at = Math.min(columns - 1, Math.floor((x - view[0]) * scale));
        while (column < at) ++column, put();
        ++operations;
      }
      now[Math.min(of[id], most)] += change;
      live += change;
      if (x < view[0] ? column === 0 : live > total[column]) put();
    }
    while (column < columns - 1) ++column, put();
  } else {
    const key = page.axis === 'time' ? 'ns' : 'event';
    put();
    for (const bin of trace.bins) {
      if (bin[key] > view[1]) break;
      const at = Math.max(0, Math.min(columns - 1, Math.floor((bin[key] - view[0]) * scale)));
      while (column < at) ++column, put();
      now.set(bin[page.group].slice(0, groups));
      live = bin.live;
      if (bin[key] < view[0] || live > total[column]) put();
      operations += bin.allocations + bin.frees;
    }
    while (column < columns - 1) ++column, put();
  }
  return {groups, values, total, exact, operations};
}

// Reserved bytes for each column: the most in it.
function reserved_columns(trace, view, columns) {
  const s = trace.s, made = new Float64Array(columns), scale = columns / (view[1] - view[0] || 1);
  const change = [];
  const [begins, ends] = page.axis === 'time' ? [s.begin_ns, s.end_ns] : [s.begin_event, s.end_event];
  for (let n = 0; n < s.count; ++n) {
    change.push([begins[n], s.begin_event[n], s.bytes[n]]);
    if (ends[n] !== Infinity) change.push([ends[n], s.end_event[n], -s.bytes[n]]);
  }
  change.sort((one, two) => one[1] - two[1] || one[2] - two[2]);
  let now = 0, column = 0;
  for (const [x, , bytes] of change) {
    if (x > view[1]) break;
    const at = Math.max(0, Math.min(columns - 1, Math.floor((x - view[0]) * scale)));
    while (column < at) made[++column] = now;
    now += bytes;
    if (x < view[0]) made[column] = now; else made[column] = Math.max(made[column], now);
  }
  while (column < columns - 1) made[++column] = now;
  return made;
}

function paint_stack(frame, stack, y) {
  const {context} = frame, columns = stack.total.length, floor = new Float64Array(columns);
  for (let group = 0; group < stack.groups; ++group) {
    let any = false;
    context.beginPath();
    const step = frame.width / columns;
    context.moveTo(0, y(floor[0]));
    for (let c = 0; c < columns; ++c) {
      const high = floor[c] + stack.values[c * stack.groups + group];
      if (stack.values[c * stack.groups + group] > 0) any = true;
      context.lineTo(c * step, y(high));
      context.lineTo((c + 1) * step, y(high));
    }
    for (let c = columns - 1; c >= 0; --c) {
      context.lineTo((c + 1) * step, y(floor[c]));
      context.lineTo(c * step, y(floor[c]));
      floor[c] += stack.values[c * stack.groups + group];
    }
    if (!any) continue;
    context.fillStyle = colour(group === stack.groups - 1 && page.group !== 'kind' ? 7 : group);
    context.fill();
  }
}
function paint_line(frame, values, y, stroke, dash) {
  const {context} = frame, step = frame.width / values.length;
  context.beginPath();
  for (let c = 0; c < values.length; ++c) {
    context.lineTo(c * step, y(values[c]));
    context.lineTo((c + 1) * step, y(values[c]));
  }
  context.strokeStyle = stroke;
  context.lineWidth = 1.5;
  context.setLineDash(dash || []);
  context.stroke();
  context.setLineDash([]);
}

const memory_margin = () => ({left: 66, right: 14, top: 14, bottom: 24});

function draw_memory(trace) {
  const began = performance.now(), frame = make_frame('memory-chart', window.innerWidth < 640 ? 240 : 320, memory_margin());
  const view = page.view, columns = Math.max(50, Math.floor(frame.width * Math.min(2, frame.ratio)));
  const stack = stack_columns(trace, view, columns), reserved = trace.s.count && page.reserved ? reserved_columns(trace, view, columns) : null;
  const most = Math.max(1, d3.max(stack.total), reserved ? d3.max(reserved) : 0);
  const x = d3.scaleLinear(view, [0, frame.width]), y = d3.scaleLinear([0, most * 1.05], [frame.height, 0]);
  if (reserved) {
    frame.context.fillStyle = css('--reserved');
    frame.context.beginPath();
    frame.context.moveTo(0, frame.height);
    reserved.forEach((value, c) => { frame.context.lineTo(c * frame.width / columns, y(value)); frame.context.lineTo((c + 1) * frame.width / columns, y(value)); });
    frame.context.lineTo(frame.width, frame.height);
    frame.context.fill();
    paint_line(frame, reserved, y, css('--quiet'), [5, 3]);
  }
  paint_stack(frame, stack, y);
  draw_axes(frame, x, y, byte_ticks(most, 5), bytes_text);
  const near = draw_events(frame, trace, x, y, view, stack);
  const marks = draw_finding_marks(frame, trace, x, view);
  draw_highlight(frame, trace, view, columns, y);
  draw_cursor(frame, trace, x, view);
  listen(frame, trace, x, (px, event) => memory_tip(trace, x.invert(px), stack, reserved, Math.floor(px / frame.width * columns), event));
  const names = groups_of(trace), sums = names.map((_, g) => stack.values[d3.scan(stack.total, (a, b) => b - a) * stack.groups + g]);
  const entries = names.map((label, g) => ({label: sums[g] > 0 ? `${label}: ${bytes_text(sums[g])}` : label, g, any: stack.values.some((v, at) => at % stack.groups === g && v > 0)}))
    .filter(entry => entry.any).map(({label, g}) => ({label, fill: colour(g === stack.groups - 1 && page.group !== 'kind' ? 7 : g),
      click: page.group === 'site' && g < trace.sites.length && g < 7 ? () => highlight_site(page.site === g ? -1 : g) : null}));
  if (trace.s.count) entries.push({label: reserved ? `reserved: ${bytes_text(d3.max(reserved))} (hide)` : 'show reserved', fill: css('--reserved'), click: () => { page.reserved = !page.reserved; redraw(); }});
  draw_legend('memory-legend', entries);
  document.getElementById('memory-note').textContent = stack.exact
    ? `${count_text(stack.operations)} allocations and frees in view, each of them here; a column of pixels shows the most that was live in it.`
    : `This view is summed up from ${count_text(trace.bins.length)} stretches. Each event is known ` + trace.windows.map(w => `from ${count_text(w.first)} to ${count_text(w.end)} (${w.why})`).join(', ') + '.';
  drawn.memory = {operations: stack.operations, exact: stack.exact, most: d3.max(stack.total), columns, events: near, findings: marks, ms: performance.now() - began,
    reserved: reserved ? d3.max(reserved) : 0, groups: sums};
}

// Down to one event: each allocation and free is a mark of its own when there is room.
function draw_events(frame, trace, x, y, view, stack) {
  if (!stack.exact || stack.operations > frame.width / 3) return 0;
  const xs = op_x(trace), first = not_over(xs, view[0] - 1e-9), last = not_over(xs, view[1]);
  const shown = d3.range(first, last);
  frame.g.append('g').selectAll('path').data(shown).enter().append('path').attr('class', 'op')
    .attr('d', n => trace.ops[n] & 1 ? 'M-4,-7h8l-4,7z' : 'M-4,0h8l-4,-7z')
    .attr('transform', n => `translate(${x(xs[n])},${frame.height})`)
    .attr('fill', n => trace.ops[n] & 1 ? css('--card') : css('--ink')).attr('stroke', css('--ink'));
  const m = trace.m, mx = page.axis === 'time' ? m.ns : m.event;
  const from = not_over(mx, view[0] - 1e-9), to = Math.min(not_over(mx, view[1]), from + 400);
  frame.g.append('g').selectAll('line').data(d3.range(from, to)).enter().append('line').attr('class', 'mark')
    .attr('x1', n => x(mx[n])).attr('x2', n => x(mx[n])).attr('y1', frame.height - 16).attr('y2', frame.height - 9).attr('stroke', css('--quiet'));
  return shown.length;
}

function draw_finding_marks(frame, trace, x, view) {
  const marks = [];
  trace.findings.forEach((finding, index) => {
    if (finding.events.length) marks.push({index, event: finding.events[0], x: x_of_event(trace, finding.events[0]), finding});
  });
  const inside = marks.filter(mark => mark.x >= view[0] && mark.x <= view[1]);
  frame.g.append('g').selectAll('path').data(inside).enter().append('path').attr('class', 'finding-mark').attr('d', 'M0,0l-6,-10h12z')
    .attr('transform', mark => `translate(${x(mark.x)},0)`).attr('fill', mark => mark.finding.severity === 'error' ? '#d55e00' : mark.finding.severity === 'waste' ? '#e69f00' : css('--quiet'))
    .attr('stroke', css('--card')).style('cursor', 'pointer').style('pointer-events', 'all')
    .on('mousemove', mark => show_tip(`${mark.finding.title}\n${mark.finding.summary}`, d3.event.clientX, d3.event.clientY)).on('mouseleave', hide_tip)
    .on('click', mark => { d3.event.stopPropagation(); open_finding(mark.index); });
  return inside.length;
}

function draw_highlight(frame, trace, view, columns, y) {
  if (page.site < 0 || !is_exact(trace, view)) return;
  const sites = trace.b.site, one = new Float64Array(columns), xs = op_x(trace), scale = columns / (view[1] - view[0] || 1);
  let live = 0, column = 0;
  for (let n = 0; n < trace.ops.length && xs[n] <= view[1]; ++n) {
    const id = trace.ops[n] >> 1;
    if (sites[id] !== page.site) continue;
    if (xs[n] >= view[0]) {
      const at = Math.min(columns - 1, Math.floor((xs[n] - view[0]) * scale));
      while (column < at) one[++column] = live;
    }
    live += trace.ops[n] & 1 ? -trace.b.bytes[id] : trace.b.bytes[id];
    one[column] = xs[n] < view[0] ? live : Math.max(one[column], live);
  }
  while (column < columns - 1) one[++column] = live;
  paint_line(frame, one, y, css('--card'));
  paint_line(frame, one, y, css('--ink'), [2, 2]);
}

function draw_cursor(frame, trace, x, view) {
  if (page.cursor === null) return;
  const at = x_of_event(trace, page.cursor);
  if (at < view[0] || at > view[1]) return;
  frame.g.append('line').attr('class', 'cursor').attr('x1', x(at)).attr('x2', x(at)).attr('y1', 0).attr('y2', frame.height).attr('stroke', css('--ink')).attr('stroke-width', 1.2);
}

function memory_tip(trace, value, stack, reserved, column) {
  column = Math.max(0, Math.min(stack.total.length - 1, column));
  const names = groups_of(trace);
  let text = `${x_text(value)}\nlive ${bytes_text(stack.total[column])}`;
  if (reserved) text += `\nreserved ${bytes_text(reserved[column])}`;
  names.forEach((name, g) => {
    const bytes = stack.values[column * stack.groups + g];
    if (bytes > 0) text += `\n${bytes_text(bytes)}  ${name.length > 60 ? name.slice(0, 58) + '…' : name}`;
  });
  if (stack.exact && stack.operations < stack.total.length / 2) {
    const xs = op_x(trace), next = Math.min(xs.length - 1, Math.max(0, not_over(xs, value) - 1));
    text += '\n' + operation_text(trace, next);
  }
  return text;
}
function operation_text(trace, n) {
  const id = trace.ops[n] >> 1, b = trace.b;
  return `event ${count_text(trace.op_event[n])}: ${trace.ops[n] & 1 ? 'free' : 'allocate'} ${bytes_text(b.bytes[id])} (${trace.kinds[b.kind[id]]}, ${trace.streams[b.stream[id]]}) at ${address_at(trace, b.position[id])}`;
}

// The whole trace, with a brush for the part that the other charts show.
function draw_overview(trace) {
  const frame = make_frame('overview', 58, {left: 66, right: 14, top: 6, bottom: 4}), whole = span_of(trace);
  const columns = Math.floor(frame.width), stack = stack_columns(trace, whole, columns);
  const x = d3.scaleLinear(whole, [0, frame.width]), y = d3.scaleLinear([0, Math.max(1, d3.max(stack.total))], [frame.height, 2]);
  paint_line(frame, stack.total, y, css('--accent'));
  const brush = d3.brushX().extent([[0, 0], [frame.width, frame.height]]).on('end', () => {
    if (!d3.event.sourceEvent) return;
    set_view(d3.event.selection ? d3.event.selection.map(x.invert) : whole);
  });
  const layer = frame.g.append('g').attr('class', 'brush').call(brush);
  const full = page.view[0] <= whole[0] && page.view[1] >= whole[1];
  layer.call(brush.move, full ? null : page.view.map(x));
  drawn.overview = {most: d3.max(stack.total), exact: stack.exact};
}

// Drag to zoom, click for the moment, double-click for everything, wheel with Ctrl.
function listen(frame, trace, x, tip) {
  const shade = frame.g.append('rect').attr('height', frame.height).attr('fill', css('--accent')).attr('opacity', 0.18).attr('width', 0);
  let from = null;
  const cursor = event => event.clientX - frame.canvas.getBoundingClientRect().left;
  frame.svg.style('pointer-events', 'none');
  const canvas = frame.canvas;
  canvas.onmousedown = event => { if (event.button === 0) from = cursor(event); };
  canvas.onmousemove = event => {
    const at = cursor(event);
    if (from !== null && Math.abs(at - from) > 3) shade.attr('x', Math.min(at, from)).attr('width', Math.abs(at - from));
    show_tip(tip(at, event), event.clientX, event.clientY);
  };
  canvas.onmouseleave = () => { from = null; shade.attr('width', 0); hide_tip(); };
  canvas.onmouseup = event => {
    const at = cursor(event), begun = from;
    from = null;
    if (begun === null) return;
    if (Math.abs(at - begun) > 3) set_view([x.invert(Math.min(at, begun)), x.invert(Math.max(at, begun))]);
    else set_cursor(Math.round(nearest_event(trace, x.invert(at))));
  };
  canvas.ondblclick = () => set_view(span_of(trace));
  canvas.onwheel = event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom_by(event.deltaY > 0 ? 1.3 : 1 / 1.3, x.invert(cursor(event)));
  };
}
function nearest_event(trace, value) {
  if (!is_exact(trace, page.view)) return event_at(trace, value);
  return trace.op_event[Math.max(0, not_over(op_x(trace), value) - 1)] || 0;
}
