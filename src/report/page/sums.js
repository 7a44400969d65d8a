'use strict';
// Fragmentation, lifetimes and latency.

function draw_fragmentation(trace) {
  const note = text => { document.getElementById('fragmentation-note').textContent = text; }, view = page.view;
  const whose = trace.s.count ? 'Reserved memory that no block uses' : 'Gaps between live blocks; the recording does not say what was reserved';
  const empty = !trace.fragmentation.some(sample => sample[3] > 0);
  for (const id of ['fragmentation-chart', 'fragmentation-legend']) document.getElementById(id).hidden = empty;
  if (empty) {
    drawn.fragmentation = {samples: trace.fragmentation.length, shown: 0};
    return note(`${whose}: none at any of the ${count_text(trace.fragmentation.length)} moments that were measured.`);
  }
  const frame = make_frame('fragmentation-chart', 220, {left: 66, right: 14, top: 8, bottom: 24});
  const samples = trace.fragmentation.map(([event, ns, live, free, largest, holes]) => ({event, ns, live, free, largest, holes}));
  const key = page.axis === 'time' ? 'ns' : 'event';
  const inside = samples.filter(each => each[key] >= view[0] && each[key] <= view[1]), measured = inside.length;
  // The curve goes on from the moment before the view, and to its end.
  const before = samples.filter(each => each[key] < view[0]).pop();
  if (before) inside.unshift({...before, [key]: view[0]});
  if (inside.length) inside.push({...inside[inside.length - 1], [key]: view[1]});
  const most = Math.max(1, d3.max(inside, each => each.free) || 0);
  const x = d3.scaleLinear(view, [0, frame.width]), y = d3.scaleLinear([0, most * 1.05], [frame.height, 0]);
  draw_axes(frame, x, y, byte_ticks(most, 4), bytes_text);
  const line = field => d3.line().x(each => x(each[key])).y(each => y(each[field])).curve(d3.curveStepAfter);
  const area = (low, high) => d3.area().x(each => x(each[key])).y0(each => y(low(each))).y1(each => y(high(each))).curve(d3.curveStepAfter);
  frame.g.append('path').datum(inside).attr('d', area(() => 0, each => each.largest)).attr('fill', colour(2)).attr('opacity', 0.45);
  frame.g.append('path').datum(inside).attr('d', area(each => each.largest, each => each.free)).attr('fill', colour(1)).attr('opacity', 0.55);
  frame.g.append('path').datum(inside).attr('d', line('free')).attr('fill', 'none').attr('stroke', css('--ink')).attr('stroke-width', 1.2);
  draw_cursor(frame, trace, x, view);
  listen(frame, trace, x, px => {
    const each = inside[Math.max(0, not_over(inside.map(one => one[key]), x.invert(px)) - 1)];
    return each ? `event ${count_text(each.event)}\nlive ${bytes_text(each.live)}\nfree ${bytes_text(each.free)} in ${count_text(each.holes)} holes\nlargest ${bytes_text(each.largest)} (${each.free ? (100 * each.largest / each.free).toFixed(0) : 100}% of what is free)` : '';
  });
  draw_legend('fragmentation-legend', [{label: 'largest hole', fill: colour(2)}, {label: 'free in smaller holes', fill: colour(1)}]);
  note(`${whose}: a request larger than the largest hole needs new memory, however much is free. ${count_text(samples.length)} moments were measured.`);
  drawn.fragmentation = {samples: samples.length, shown: measured};
}

function draw_lifetimes(trace) {
  const cells = trace.lifetimes.map(([size, life, blocks, bytes]) => ({size, life, blocks, bytes}));
  const never = cells.some(cell => cell.life === 64), lives = cells.filter(cell => cell.life < 64);
  const sizes = d3.extent(cells, cell => cell.size), [low, high] = lives.length ? d3.extent(lives, cell => cell.life) : [0, 0];
  const rows = high - low + 1 + (never ? 1 : 0);
  const frame = make_frame('lifetime-chart', Math.min(460, Math.max(140, rows * 20 + 34)), {left: 84, right: 14, top: 8, bottom: 26});
  const x = d3.scaleLinear([sizes[0], sizes[1] + 1], [0, frame.width]), y = d3.scaleLinear([0, rows], [frame.height, 0]);
  const shade = d3.scaleSequential(is_dark() ? d3.interpolateCividis : t => d3.interpolateCividis(1 - t)).domain([0, Math.log2(1 + d3.max(cells, cell => cell.blocks))]);
  const row = cell => cell.life === 64 ? rows - 1 : cell.life - low, unit = value => trace.times_known ? time_text(value) : count_text(value) + ' ev';
  frame.g.selectAll('rect').data(cells).enter().append('rect').attr('class', 'cell')
    .attr('x', cell => x(cell.size) + 0.5).attr('y', cell => y(row(cell) + 1) + 0.5).attr('width', Math.max(1, x(1) - x(0) - 1)).attr('height', Math.max(1, y(0) - y(1) - 1))
    .attr('fill', cell => shade(Math.log2(1 + cell.blocks)))
    .on('mousemove', cell => show_tip(`${bytes_text(Math.pow(2, cell.size))} to ${bytes_text(Math.pow(2, cell.size + 1))}\n` + (cell.life === 64 ? 'never freed' : `lived ${unit(Math.pow(2, cell.life))} to ${unit(Math.pow(2, cell.life + 1))}`) + `\n${count_text(cell.blocks)} blocks, ${bytes_text(cell.bytes)}`, d3.event.clientX, d3.event.clientY))
    .on('mouseleave', hide_tip);
  const every = Math.ceil((sizes[1] - sizes[0] + 1) / Math.max(2, frame.width / 70));
  frame.g.append('g').attr('transform', `translate(0,${frame.height})`).call(d3.axisBottom(x).tickValues(d3.range(sizes[0], sizes[1] + 2, every)).tickFormat(n => bytes_text(Math.pow(2, n))));
  const ticks = d3.range(0, high - low + 2, Math.max(1, Math.ceil(rows / 8))).filter(n => !never || n < rows - 1);
  const axis = frame.g.append('g').call(d3.axisLeft(y).tickValues(ticks).tickFormat(n => unit(Math.pow(2, n + low))));
  if (never) axis.append('text').attr('x', -9).attr('y', y(rows - 0.5)).attr('dy', '0.32em').attr('text-anchor', 'end').text('never freed');
  document.getElementById('lifetimes-note').textContent = `All ${count_text(d3.sum(cells, cell => cell.blocks))} blocks by size (across) and by ${trace.times_known ? 'time' : 'events'} from allocation to free; the stronger the colour, the more blocks.`;
  drawn.lifetimes = {cells: cells.length, blocks: d3.sum(cells, cell => cell.blocks)};
}

function draw_latency(trace) {
  const which = page.latency, rows = trace.strategies.map(each => ({name: each.name, of: each[which], more: `${count_text(each.waits)} waits for the device, ${bytes_text(each.reserved)} reserved at most`}))
    .concat(trace.calls.map(each => ({name: each.name + ' (as recorded)', of: each.allocate, more: ''}))).filter(row => row.of.count > 0);
  document.getElementById('latency-row').hidden = trace.strategies.length === 0;
  document.getElementById('latency-note').textContent = trace.strategies.length ? `One call's time by strategy, replayed on ${trace.replayed_on}; logarithmic across, the bars of a row sum to all of its calls.`
    : trace.not_replayed ? `Not replayed: ${trace.not_replayed}` : trace.calls.length ? 'Times of the calls as recorded; --replay adds every strategy.' : 'The recording has no times of calls. `millpond report --replay` replays it through every strategy.';
  drawn.latency = {rows: rows.length, calls: rows.map(row => row.of.count)};
  if (!rows.length) {
    document.getElementById('latency-chart').innerHTML = '';
    document.getElementById('latency-chart').style.height = 0;
    return;
  }
  const narrow = window.innerWidth < 640, high = narrow ? 62 : 50;
  const frame = make_frame('latency-chart', rows.length * high + 26, {left: narrow ? 8 : 180, right: narrow ? 8 : 150, top: 2, bottom: 24});
  const low = d3.min(rows, row => d3.min(row.of.buckets, bucket => Math.max(1, bucket[0]))), most = d3.max(rows, row => Math.max(2, row.of.max));
  const x = d3.scaleLog([Math.max(1, low * 0.9), most * 1.1], [0, frame.width]), bars = Math.max(20, Math.floor(frame.width / 7));
  rows.forEach((row, index) => {
    const counts = new Float64Array(bars);
    for (const [ns, count] of row.of.buckets) counts[Math.max(0, Math.min(bars - 1, Math.floor(x(Math.max(1, ns)) / frame.width * bars)))] += count;
    const floor = (index + 1) * high - 4, y = d3.scaleSqrt([0, d3.max(counts)], [0, high - (narrow ? 26 : 12)]);
    const g = frame.g.append('g');
    g.append('line').attr('x2', frame.width).attr('y1', floor).attr('y2', floor).attr('stroke', css('--line'));
    g.selectAll('rect').data(Array.from(counts).map((count, at) => ({count, at})).filter(bar => bar.count > 0)).enter().append('rect').attr('class', 'bar')
      .attr('x', bar => bar.at * frame.width / bars).attr('width', frame.width / bars - 1).attr('y', bar => floor - Math.max(1.5, y(bar.count))).attr('height', bar => Math.max(1.5, y(bar.count))).attr('fill', colour(0))
      .on('mousemove', bar => show_tip(`${row.name}\n${time_text(x.invert(bar.at * frame.width / bars))} to ${time_text(x.invert((bar.at + 1) * frame.width / bars))}\n${count_text(bar.count)} calls\n${row.more}`, d3.event.clientX, d3.event.clientY)).on('mouseleave', hide_tip);
    for (const [name, at] of [['p50', row.of.p50], ['p99', row.of.p99]]) {
      g.append('line').attr('x1', x(Math.max(1, at))).attr('x2', x(Math.max(1, at))).attr('y1', floor - high + (narrow ? 22 : 8)).attr('y2', floor).attr('stroke', name === 'p99' ? colour(5) : css('--ink')).attr('stroke-dasharray', name === 'p99' ? '3 2' : null);
    }
    const short = row.name.length > 27 ? row.name.slice(0, 25) + '…' : row.name, numbers = `p50 ${time_text(row.of.p50)}  p99 ${time_text(row.of.p99)}`;
    if (narrow) g.append('text').attr('x', 0).attr('y', floor - high + 16).text(`${short}  ${numbers}`);
    else {
      g.append('text').attr('x', -10).attr('y', floor - 12).attr('text-anchor', 'end').text(short);
      g.append('text').attr('x', frame.width + 8).attr('y', floor - 20).text(`p50 ${time_text(row.of.p50)}`);
      g.append('text').attr('x', frame.width + 8).attr('y', floor - 5).text(`p99 ${time_text(row.of.p99)}, max ${time_text(row.of.max)}`);
    }
  });
  frame.g.append('g').attr('transform', `translate(0,${rows.length * high})`).call(d3.axisBottom(x).tickValues(d3.range(0, 12).map(n => Math.pow(10, n)).filter(n => n >= x.domain()[0] && n <= x.domain()[1])).tickFormat(time_text));
}
