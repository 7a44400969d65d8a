'use strict';
// Who asks for memory: an icicle of call stacks, the outermost frame on top.

function flame_tree(trace, by) {
  const root = {name: 'all', value: 0, children: new Map(), site: -1};
  trace.sites.forEach((site, index) => {
    if (!(site[by] > 0)) return;
    const known = site.frames.length > 0;
    const path = known ? site.frames.slice().reverse() : site.label.includes(', ') ? [site.label.split(', ')[0], site.label] : [site.label];
    if (known && site.call) path.push(site.call);
    let at = root;
    at.value += site[by];
    for (const name of path) {
      if (!at.children.has(name)) at.children.set(name, {name, value: 0, children: new Map(), site: -1});
      at = at.children.get(name);
      at.value += site[by];
    }
    at.site = index;
  });
  const plain = node => ({name: node.name, total: node.value, site: node.site, children: [...node.children.values()].sort((a, b) => b.value - a.value).map(plain)});
  return plain(root);
}

function draw_flame(trace) {
  const by = page.flame, tree = flame_tree(trace, by), stacks = trace.sites.some(site => site.frames.length > 0);
  const text = value => by === 'ns' ? time_text(value) : by === 'blocks' ? count_text(value) : bytes_text(value);
  document.getElementById('flame-note').textContent = (stacks ? 'Call stacks, the outermost frame on top; ' : 'No call stacks were recorded, so call sites are calls and sizes; ')
    + `all together ${text(tree.total)}. Click to look into one; the last frame marks its blocks on the other charts.`;
  const root = d3.hierarchy(tree).sum(node => 0);
  root.each(node => { node.value = node.data.total; });
  d3.partition()(root);
  // Partition sets breadths by value; a parent may be wider than its children where a call site is also a caller.
  let focus = root;
  for (const name of page.flame_path) {
    const next = (focus.children || []).find(child => child.data.name === name);
    if (!next) break;
    focus = next;
  }
  document.getElementById('flame-out').hidden = focus === root;
  const shown = root.descendants().filter(node => node.x1 > focus.x0 && node.x0 < focus.x1);
  const depth = d3.max(shown, node => node.depth) + 1, row = 22;
  const frame = make_frame('flame-chart', Math.max(40, depth * row + 2), {left: 0, right: 0, top: 0, bottom: 0});
  frame.canvas.style.display = 'none';
  const x = d3.scaleLinear([focus.x0, focus.x1], [0, frame.width]);
  const left = node => Math.max(0, x(node.x0)), right = node => Math.min(frame.width, x(node.x1));
  const wide = shown.filter(node => right(node) - left(node) >= 1);
  const hue = name => { let sum = 0; for (const c of name) sum = (sum * 31 + c.charCodeAt(0)) >>> 0; return d3.hsl(28 + sum % 150, 0.55, 0.68 + (sum >> 8) % 12 / 100); };
  const path = node => node.ancestors().reverse().slice(1).map(each => each.data.name);
  const one = frame.g.attr('class', 'flame').selectAll('g').data(wide).enter().append('g').attr('transform', node => `translate(${left(node)},${node.depth * row})`);
  one.append('rect').attr('width', node => right(node) - left(node)).attr('height', row - 1).attr('rx', 2).attr('fill', node => node.depth === 0 ? css('--reserved') : node.data.site >= 0 && node.data.site === page.site ? css('--accent') : hue(node.data.name))
    .attr('tabindex', 0).attr('role', 'button').attr('aria-label', node => `${node.data.name}: ${text(node.data.total)}`)
    .on('mousemove', node => show_tip(`${node.data.name}\n${text(node.data.total)}, ${(100 * node.data.total / (tree.total || 1)).toFixed(1)}%` + (node.data.site >= 0 ? `\n${count_text(trace.sites[node.data.site].blocks)} blocks` : ''), d3.event.clientX, d3.event.clientY))
    .on('mouseleave', hide_tip)
    .on('click', node => pick(node)).on('keydown', node => { if (d3.event.key === 'Enter' || d3.event.key === ' ') d3.event.preventDefault(), pick(node); });
  const pick = node => {
    page.flame_path = node.children ? path(node) : page.flame_path;
    if (node.data.site >= 0 && !node.children) highlight_site(page.site === node.data.site ? -1 : node.data.site); else redraw();
  };
  one.filter(node => right(node) - left(node) > 34).append('text').attr('x', 5).attr('y', 15).style('fill', node => node.depth === 0 ? css('--ink') : null).text(node => {
    const room = Math.floor((right(node) - left(node) - 8) / 6.4);
    return node.data.name.length > room ? node.data.name.slice(0, Math.max(1, room - 1)) + '…' : node.data.name;
  });
  drawn.flame = {nodes: wide.length, all: root.descendants().length, total: tree.total};
}
