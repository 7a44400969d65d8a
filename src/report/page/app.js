'use strict';
// The page's state, and what changes it.

const page = {trace: 0, group: 'kind', axis: 'time', view: [0, 1], cursor: null, site: -1, finding: -1, flame: 'peak_bytes', flame_path: [], latency: 'allocate', reserved: true};
let report = null;
const current = () => report.traces[page.trace];

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; draw_all(); });
}
function draw_all() {
  const trace = current(), began = performance.now();
  draw_memory(trace);
  draw_overview(trace);
  draw_addresses(trace);
  draw_layout(trace);
  draw_fragmentation(trace);
  draw_flame(trace);
  draw_lifetimes(trace);
  draw_latency(trace);
  draw_compare();
  draw_moment(trace);
  drawn.ms = performance.now() - began;
}

function draw_moment(trace) {
  const box = document.getElementById('moment');
  if (page.cursor === null) { box.textContent = ''; return; }
  const at = not_over(trace.op_event, page.cursor) - 1;
  let text = `Event ${count_text(page.cursor)}`;
  if (at >= 0 && trace.op_event[at] === page.cursor) {
    const n = trace.ops[at] >> 1;
    text = operation_text(trace, at) + `. ${trace.sites[trace.b.site[n]].label}`;
  } else {
    const mark = not_over(trace.m.event, page.cursor) - 1;
    if (mark >= 0 && trace.m.event[mark] === page.cursor) text += `: ${trace.marks.actions[trace.m.what[mark]]} ${trace.marks.texts[trace.m.text[mark]]}` + (trace.m.bytes[mark] ? ` of ${bytes_text(trace.m.bytes[mark])}` : '') + ` on ${trace.streams[trace.m.stream[mark]]}`;
  }
  box.textContent = text;
  say(text);
}

function set_view(view) {
  const whole = span_of(current()), least = page.axis === 'time' ? 100 : 4;
  let [from, to] = view;
  if (to - from < least) { const middle = (from + to) / 2; from = middle - least / 2; to = middle + least / 2; }
  if (to - from >= whole[1] - whole[0]) [from, to] = whole;
  if (from < whole[0]) [from, to] = [whole[0], whole[0] + to - from];
  if (to > whole[1]) [from, to] = [whole[1] - (to - from), whole[1]];
  page.view = [from, to];
  redraw();
}
function zoom_by(factor, round) {
  const [from, to] = page.view, middle = round === undefined ? page.cursor === null ? (from + to) / 2 : Math.max(from, Math.min(to, x_of_event(current(), page.cursor))) : round;
  set_view([middle - (middle - from) * factor, middle + (to - middle) * factor]);
}
function set_cursor(event) {
  page.cursor = Math.max(0, Math.min(current().events - 1, event));
  const x = x_of_event(current(), page.cursor), [from, to] = page.view;
  if (x < from || x > to) set_view([x - (to - from) / 2, x + (to - from) / 2]);
  redraw();
}
// One event so near that its neighbours are marks of their own.
function look_at(event) {
  const trace = current();
  page.cursor = event;
  const x = x_of_event(trace, event), n = not_over(trace.op_event, event), xs = op_x(trace);
  const from = xs[Math.max(0, n - 60)] || 0, to = xs[Math.min(xs.length - 1, n + 60)] || x;
  set_view(trace.events_shown >= trace.events || is_exact(trace, [from, to]) ? [Math.min(from, x), Math.max(to, x)] : [x, x]);
  document.getElementById('memory').scrollIntoView();
}
function step(by) {
  const trace = current(), at = page.cursor === null ? trace.peak_event : page.cursor, n = not_over(trace.op_event, at);
  const next = by > 0 ? n : trace.op_event[n - 1] === at ? n - 2 : n - 1;
  set_cursor(trace.op_event[Math.max(0, Math.min(trace.ops.length - 1, next))]);
}
function highlight_site(site) { page.site = site; redraw(); say(site < 0 ? 'no call site marked' : `marked ${current().sites[site].label}`); }
function set_axis(axis) {
  const trace = current();
  page.axis = axis === 'time' && !trace.times_known ? 'event' : axis;
  document.getElementById('axis').value = page.axis;
  set_view(span_of(trace));
}
function set_group(group) { page.group = group; document.getElementById('group').value = group; redraw(); }
function set_theme(theme) {
  const system = window.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  document.documentElement.dataset.theme = theme || system;
  if (report) redraw();
}
function set_trace(index) {
  if (!report.traces[index]) return;
  Object.assign(page, {trace: index, cursor: null, site: -1, finding: -1, flame_path: []});
  const trace = current();
  const name = trace.name.split('/').pop();
  document.getElementById('title').textContent = name;
  document.title = `${name} - millpond report`;
  for (const [n, tab] of [...document.querySelectorAll('#tabs button')].entries()) tab.setAttribute('aria-pressed', n === index);
  draw_tiles(trace);
  draw_findings(trace);
  set_axis(page.axis);
  // A part that was asked for is what one wants to see first.
  if (trace.windows.length === 1 && trace.events_shown < trace.events && !trace.windows[0].why.startsWith('round')) {
    const [only] = trace.windows;
    set_view(page.axis === 'time' ? [only.first_ns, only.end_ns] : [only.first, only.end - 1]);
  }
}

const keys = {
  ArrowLeft: () => move(-0.1), ArrowRight: () => move(0.1), '+': () => zoom_by(1 / 1.5), '=': () => zoom_by(1 / 1.5), '-': () => zoom_by(1.5),
  '0': () => set_view(span_of(current())), ',': () => step(-1), '.': () => step(1), p: () => set_cursor(current().peak_event),
  f: () => next_finding(1), F: () => next_finding(-1), t: () => set_theme(is_dark() ? 'light' : 'dark'), x: () => set_axis(page.axis === 'time' ? 'event' : 'time'),
  r: () => { page.reserved = !page.reserved; redraw(); },
  g: () => set_group({kind: 'stream', stream: 'site', site: 'kind'}[page.group]), '?': () => document.getElementById('keys').click(), Escape: () => { page.cursor = null; page.site = -1; hide_tip(); redraw(); },
};
const move = share => { const [from, to] = page.view; set_view([from + (to - from) * share, to + (to - from) * share]); };
const next_finding = by => { const count = current().findings.length; if (count) open_finding((Math.max(-1, page.finding) + by + count + (page.finding < 0 && by < 0 ? 1 : 0)) % count); };

function attach() {
  const on = (id, event, act) => document.getElementById(id).addEventListener(event, act);
  on('group', 'change', event => set_group(event.target.value));
  on('axis', 'change', event => set_axis(event.target.value));
  on('flame-by', 'change', event => { page.flame = event.target.value; page.flame_path = []; redraw(); });
  on('flame-out', 'click', () => { page.flame_path = []; redraw(); });
  on('latency-of', 'change', event => { page.latency = event.target.value; redraw(); });
  on('out', 'click', () => set_view(span_of(current())));
  on('theme', 'click', () => set_theme(is_dark() ? 'light' : 'dark'));
  on('keys', 'click', () => { const help = document.getElementById('help'); help.hidden = !help.hidden; document.getElementById('keys').setAttribute('aria-expanded', !help.hidden); });
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
    const act = /^[1-4]$/.test(event.key) && report.traces.length > 1 ? () => set_trace(Number(event.key) - 1) : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  window.addEventListener('resize', redraw);
  window.matchMedia('(prefers-color-scheme: dark)').addListener(() => set_theme());
  let before = null;
  window.addEventListener('beforeprint', () => { before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = 'light'; for (const one of document.querySelectorAll('details')) one.open = true; draw_all(); });
  window.addEventListener('afterprint', () => { document.documentElement.dataset.theme = before; redraw(); });
}

async function start() {
  set_theme();
  if (typeof DecompressionStream === 'undefined') {
    document.getElementById('about').textContent = 'This browser cannot unpack the page (DecompressionStream): Chrome 80, Firefox 113 and Safari 16.4 or later can.';
    return;
  }
  const element = document.getElementById('millpond-data');
  report = JSON.parse(element.textContent);
  element.remove();
  for (const trace of report.traces) {
    await unpack_trace(trace);
    trace.bin_ns = trace.bins.map(bin => bin.ns);
    trace.bin_first = trace.bins.map(bin => bin.first);
  }
  document.getElementById('made-by').textContent = `${report.made_by}; drawn with D3 ${d3.version}`;
  const tabs = document.getElementById('tabs');
  if (report.traces.length > 1) {
    report.traces.forEach((trace, n) => { const tab = tabs.appendChild(document.createElement('button')); tab.textContent = `${n + 1} ${trace.name.split('/').pop()}`; tab.onclick = () => set_trace(n); });
  }
  // Colours that tell something: with one kind, streams; with one stream, call sites.
  const first = report.traces[0];
  if (new Set(first.b.kind).size < 2) set_group(first.streams.length > 1 ? 'stream' : 'site');
  attach();
  set_trace(0);
  draw_all();
  window.millpond = {page, drawn, report, ready_ms: performance.now()};
}
start().catch(failure => {
  document.getElementById('about').textContent = `The page could not be drawn: ${failure.message}`;
  throw failure;
});
