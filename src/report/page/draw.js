'use strict';
// What all charts share: colours, texts, a frame of canvas and axes, the tip.

// Okabe and Ito's colours, darker and lighter for the two themes, and two more: each pair is distinguished with every common kind
// of colour blindness (tests/report/browser measures it).
const palette = {
  light: ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#604800', '#c3c9ce'],
  dark: ['#4aa3df', '#e69f00', '#1fb58a', '#d98db6', '#8fd0f5', '#f07f3c', '#d9cf4a', '#7d8790'],
};
const hole_colours = {
  usable: ['#b7e3d3', '#1c5c48'], small: ['#f7d58a', '#6b5210'], stream: ['#dcb3cb', '#6a3a56'], held: ['#f0a57f', '#7a3413'],
};
const is_dark = () => document.documentElement.dataset.theme === 'dark';
const colour = n => palette[is_dark() ? 'dark' : 'light'][Math.min(n, 7)];
const hole_colour = name => hole_colours[name][is_dark() ? 1 : 0];
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function bytes_text(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) bytes /= 1024, ++unit;
  return (unit === 0 || bytes >= 100 ? bytes.toFixed(0) : bytes >= 10 ? bytes.toFixed(1) : bytes.toFixed(2)) + ' ' + units[unit];
}
function time_text(ns) {
  const units = ['ns', 'us', 'ms', 's'];
  let unit = 0;
  while (ns >= 1000 && unit < 3) ns /= 1000, ++unit;
  return (ns >= 100 || ns === Math.round(ns) ? ns.toFixed(0) : ns >= 10 ? ns.toFixed(1) : ns.toFixed(2)) + ' ' + units[unit];
}
const count_text = d3.format(',');
const x_text = value => page.axis === 'time' ? time_text(value) : count_text(Math.round(value));
const escaped = text => String(text).replace(/[&<>"]/g, c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'}[c]));

// Ticks of bytes at round binary numbers.
function byte_ticks(most, wanted) {
  const step = Math.pow(2, Math.max(0, Math.round(Math.log2(Math.max(1, most) / wanted))));
  return d3.range(0, most + 1, step);
}

// A canvas under an SVG, in a margin. `frame.draw` runs again when the width changes.
function make_frame(id, height, margin) {
  const box = document.getElementById(id);
  box.style.height = height + 'px';
  let canvas = box.querySelector('canvas'), svg = box.querySelector('svg');
  if (!canvas) {
    canvas = box.appendChild(document.createElement('canvas'));
    svg = box.appendChild(document.createElementNS('http://www.w3.org/2000/svg', 'svg'));
  }
  // What an earlier drawing listened to is about another view.
  canvas.onclick = canvas.onmousedown = canvas.onmousemove = canvas.onmouseup = canvas.onmouseleave = canvas.ondblclick = canvas.onwheel = null;
  const width = Math.max(120, box.clientWidth), ratio = Math.min(3, window.devicePixelRatio || 1);
  const inner = {width: width - margin.left - margin.right, height: height - margin.top - margin.bottom};
  canvas.width = Math.max(1, Math.round(inner.width * ratio));
  canvas.height = Math.max(1, Math.round(inner.height * ratio));
  Object.assign(canvas.style, {left: margin.left + 'px', top: margin.top + 'px', width: inner.width + 'px', height: inner.height + 'px'});
  svg.setAttribute('width', width);
  svg.setAttribute('height', height);
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, inner.width, inner.height);
  const top = d3.select(svg);
  top.selectAll('*').remove();
  return {box, canvas, context, ratio, width, ...inner, margin, svg: top, g: top.append('g').attr('transform', `translate(${margin.left},${margin.top})`)};
}

function draw_axes(frame, x, y, y_ticks, y_format) {
  const few = Math.max(2, Math.floor(frame.width / 110));
  if (y_ticks) {
    const axis = d3.axisLeft(y).tickValues(y_ticks).tickFormat(y_format).tickSize(-frame.width);
    const drawn = frame.g.append('g').attr('class', 'grid').call(axis);
    drawn.select('.domain').remove();
    drawn.selectAll('text').attr('dx', -4);
  }
  if (x) {
    frame.g.append('g').attr('transform', `translate(0,${frame.height})`).call(d3.axisBottom(x).ticks(few).tickFormat(x_format(x, few)).tickSizeOuter(0));
  }
}
// Ticks of time with as many digits as tell neighbours apart.
function x_format(scale, few) {
  if (page.axis !== 'time') return d3.format(',');
  const [low, high] = scale.domain(), ticks = scale.ticks(few), step = ticks.length > 1 ? ticks[1] - ticks[0] : high - low;
  const unit = high >= 1e9 ? 1e9 : high >= 1e6 ? 1e6 : high >= 1e3 ? 1e3 : 1;
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(Math.max(step, 1e-9) / unit) - 1e-9)));
  return value => (value / unit).toFixed(digits) + {1e9: ' s', 1e6: ' ms', 1e3: ' us', 1: ' ns'}[unit];
}

function show_tip(text, x, y) {
  const tip = document.getElementById('tip');
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, window.innerWidth - box.width - 6)) + 'px';
  tip.style.top = (y + 16 + box.height > window.innerHeight ? Math.max(4, y - box.height - 10) : y + 16) + 'px';
}
const hide_tip = () => { document.getElementById('tip').hidden = true; };

function draw_legend(id, entries) {
  const legend = document.getElementById(id);
  legend.innerHTML = '';
  for (const {label, fill, click} of entries) {
    const one = document.createElement(click ? 'button' : 'span');
    one.innerHTML = `<i style="background:${fill}"></i>${escaped(label)}`;
    if (click) one.onclick = click;
    legend.appendChild(one);
  }
}

const say = text => { document.getElementById('said').textContent = text; };
// How many marks each chart drew, and how long it took: the tests compare these with the data.
const drawn = {};
