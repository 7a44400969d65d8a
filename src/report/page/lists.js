'use strict';
// What is text: tiles, findings, and what changed between two traces.

function draw_tiles(trace) {
  const tiles = [
    [bytes_text(trace.peak_bytes), `live at most (event ${count_text(trace.peak_event)})`],
    trace.peak_reserved_bytes ? [bytes_text(trace.peak_reserved_bytes), `reserved at most, ${(trace.peak_reserved_bytes / Math.max(1, trace.peak_bytes)).toFixed(2)} of live`] : null,
    [count_text(trace.allocations), `allocations of ${bytes_text(trace.allocated_bytes)}`],
    [count_text(trace.frees), `frees; ${count_text(trace.end_blocks)} blocks live at the end`],
    trace.failed ? [count_text(trace.failed), 'allocations failed'] : null,
    [trace.times_known ? time_text(trace.duration_ns) : count_text(trace.events), trace.times_known ? `recorded, ${count_text(trace.events)} events` : 'events; times not recorded'],
    [count_text(trace.findings.length), trace.findings.length === 1 ? 'finding' : 'findings'],
  ].filter(tile => tile);
  document.getElementById('tiles').innerHTML = tiles.map(([number, what]) => `<div class="tile"><b>${escaped(number)}</b><span>${escaped(what)}</span></div>`).join('');
  const left = document.getElementById('left');
  left.textContent = trace.left_out;
  left.hidden = !trace.left_out;
  document.getElementById('about').textContent = [trace.name, trace.program, trace.device && `on ${trace.device}${trace.simulated ? ' (simulated)' : ''}`, `format ${trace.format}`, ...trace.warnings].filter(text => text).join(' · ');
}

function draw_findings(trace) {
  const list = document.getElementById('finding-list');
  list.innerHTML = trace.findings.length ? '' : '<p class="quiet">Nothing found.</p>';
  trace.findings.forEach((finding, index) => {
    const one = document.createElement('details');
    one.className = 'finding';
    one.id = `finding-${index}`;
    const cost = [finding.bytes ? bytes_text(finding.bytes) : '', finding.ns ? time_text(finding.ns) : '', finding.count > 1 ? `${count_text(finding.count)} times` : ''].filter(text => text).join(', ');
    // The innermost frame that has a line tells findings of one sort apart.
    const frames = (finding.call_sites[0] || {frames: []}).frames, at = frames.find(frame => /:\d+$/.test(frame)) || frames[0] || '';
    one.innerHTML = `<summary><span class="badge ${finding.severity === 'note' ? 'note-level' : finding.severity}">${finding.severity}</span><b>${escaped(finding.title)}</b>${cost ? ` <span class="quiet">${escaped(cost)}</span>` : ''}${at ? ` <span class="quiet where">${escaped(at)}</span>` : ''}</summary>
      <p>${escaped(finding.summary)}</p>${finding.call_sites.map(call_site => `<div>${escaped(call_site.what)}${call_site.frames.length ? `<pre>${escaped(call_site.frames.slice(0, 12).join('\n'))}</pre>` : ''}</div>`).join('')}
      ${finding.seen ? `<p class="quiet">${escaped(finding.seen)}</p>` : ''}${finding.remedy.length ? `<pre>${escaped(finding.remedy.join('\n'))}</pre>` : ''}<div class="chips"></div>`;
    const chips = one.querySelector('.chips');
    const chip = (text, act) => { const button = chips.appendChild(document.createElement('button')); button.textContent = text; button.onclick = act; };
    finding.events.slice(0, 8).forEach(event => chip(`event ${count_text(event)}`, () => look_at(event)));
    const stack = finding.call_sites.map(call_site => call_site.stack).find(id => id !== 0), site = stack === undefined ? -1 : trace.sites.findIndex(each => each.stack === stack);
    if (site >= 0) chip('mark its blocks', () => { highlight_site(site); document.getElementById('addresses').scrollIntoView(); });
    list.appendChild(one);
  });
  drawn.findings = {count: trace.findings.length};
}

function open_finding(index) {
  const trace = current(), finding = trace.findings[index];
  if (!finding) return;
  page.finding = index;
  const one = document.getElementById(`finding-${index}`);
  one.open = true;
  one.querySelector('summary').focus({preventScroll: true});
  one.scrollIntoView({block: 'nearest'});
  if (finding.events.length) set_cursor(finding.events[0]);
  say(`finding ${index + 1} of ${trace.findings.length}: ${finding.title}`);
}

function draw_compare() {
  const [before, after] = report.traces, section = document.getElementById('compare');
  section.hidden = !report.change;
  if (!report.change) return;
  const twins = document.getElementById('twins'), most = Math.max(...report.traces.map(trace => Math.max(trace.peak_bytes, trace.peak_reserved_bytes))) * 1.05;
  if (!twins.children.length) twins.innerHTML = report.traces.map((trace, n) => `<div><b>${escaped(trace.name.split('/').pop())}</b><div class="chart" id="twin-${n}"></div></div>`).join('');
  drawn.twins = report.traces.map((trace, n) => {
    const frame = make_frame(`twin-${n}`, 180, {left: 62, right: 6, top: 6, bottom: 22}), whole = span_of(trace), columns = Math.floor(frame.width);
    const stack = stack_columns(trace, whole, columns), x = d3.scaleLinear(whole, [0, frame.width]), y = d3.scaleLinear([0, most], [frame.height, 0]);
    if (trace.s.count) paint_line(frame, reserved_columns(trace, whole, columns), y, css('--quiet'), [5, 3]);
    paint_stack(frame, stack, y);
    draw_axes(frame, x, y, byte_ticks(most, 4), bytes_text);
    frame.svg.style('pointer-events', 'none');
    return d3.max(stack.total);
  });
  const value = (unit, number) => unit === 'bytes' ? bytes_text(number) : unit === 'ns' ? time_text(number) : count_text(number);
  const share = (a, b) => a > 0 ? `${b >= a ? '+' : '−'}${Math.abs(100 * (b - a) / a).toFixed(1)}%` : b > 0 ? 'new' : '';
  const row = (name, a, b, unit, worse) => `<tr><td>${escaped(name)}</td><td>${value(unit, a)}</td><td>${value(unit, b)}</td><td class="${worse ? 'worse' : ''}">${share(a, b)}${worse ? ', worse' : ''}</td></tr>`;
  const heads = `<tr><th></th><th>${escaped(before.name.split('/').pop())}</th><th>${escaped(after.name.split('/').pop())}</th><th>change</th></tr>`;
  const {measures, call_sites, appeared, gone} = report.change, list = (title, all) => all.length ? `<h3>${title}</h3><ul>${all.slice(0, 20).map(each => `<li>${escaped(each.title)}: ${escaped(each.summary)}</li>`).join('')}</ul>` : '';
  document.getElementById('changes').innerHTML = `<div class="scroll"><table>${heads}${measures.map(m => row(m.name, m.before, m.after, m.unit, m.worse)).join('')}</table></div>`
    + (call_sites.length ? `<h3>Call sites, bytes at the peak</h3><div class="scroll"><table>${heads}${call_sites.slice(0, 15).map(p => row(p.call_site, p.peak_before, p.peak_after, 'bytes', p.worse)).join('')}</table></div>` : '')
    + list('New findings', appeared) + list('Findings that are gone', gone);
}
