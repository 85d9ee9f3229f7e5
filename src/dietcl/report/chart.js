"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const hidden = new Set();
let measure = data.measures[0].key;

// Text from a run only ever enters the page as text content, never as markup.
const svg = (tag, attributes, parent, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
};
const html = (tag, className, parent, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
};

const known = (value) => value !== null && value !== undefined;
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const deviation = (values) => {
  const centre = mean(values);
  return Math.sqrt(values.reduce((sum, v) => sum + (v - centre) ** 2, 0) / (values.length - 1));
};
const amount = (value) =>
  value >= 1e6
    ? new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value)
    : new Intl.NumberFormat("en", { maximumSignificantDigits: value < 100 ? 3 : 6 }).format(value);
const niceStep = (span, parts) => {
  const rough = span / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((m) => m * power >= rough * 0.999) * power;
};
const range = (start, stop, step) => {
  const values = [];
  for (let i = 0; start + i * step <= stop + step * 1e-6; i++) values.push(start + i * step);
  return values;
};
const timeTicks = (first, last, width, apart = 45) => {
  const step = Math.max(1, niceStep(last - first + 1, Math.max(2, Math.min(last - first + 1, width / apart))));
  const ticks = range(step, last, step).map(Math.round).filter((t) => t >= first);
  return ticks.length > 1 && ticks[0] - first < step / 2 + 1 ? ticks : [...new Set([first, ...ticks])];
};

// Mixed by the style sheet, so that a change between light and dark needs no redrawing.
const blend = (over, under, share) => `color-mix(in oklab, var(--${over}) ${(100 * share).toFixed(1)}%, var(--${under}))`;

function showTip(title, rows, x, y) {
  tip.replaceChildren();
  html("b", "", tip, title);
  for (const row of rows) {
    const line = html("div", row.strong ? "strong" : "", tip);
    html("span", row.color?.startsWith("key") ? row.color : `swatch ${row.color ?? ""}`, line).style.background = row.paint ?? "";
    if (!row.color && !row.paint) line.firstChild.remove();
    html("span", "", line, row.name);
    html("span", "", line, row.value);
  }
  tip.hidden = false;
  const room = document.documentElement.clientWidth;
  const left = x + 16 + tip.offsetWidth > room ? x - 16 - tip.offsetWidth : x + 16;
  tip.style.left = `${Math.max(6, left) + window.scrollX}px`;
  tip.style.top = `${Math.max(6, y - tip.offsetHeight - 12) + window.scrollY}px`;
}
const hideTip = () => { tip.hidden = true; };

// The user's own date of a time step where there is one, else its number.
const dateOf = (t) => data.dates?.[t - 1]?.split(" to ")[0] ?? t;
const spanOf = (t) => (data.dates?.[t - 1] ? `${t} (${data.dates[t - 1]})` : t);
const byDate = (title) => (data.dates ? `${title}, by first date` : title);
const dateWidth = 16 + 7 * Math.max(0, ...(data.dates ?? []).map((_, i) => String(dateOf(i + 1)).length));

/** Draws axes and returns the drawing with its scales. */
function frame(host, o) {
  const width = Math.max(240, host.clientWidth);
  const box = { left: o.left ?? 46, right: width - (o.right ?? 14), top: 30, bottom: o.height - 44 };
  const root = svg("svg", { width, height: o.height, viewBox: `0 0 ${width} ${o.height}`, role: "img", tabindex: 0 });
  root.setAttribute("aria-label", o.label);
  host.replaceChildren(root);
  const sx = (v) => box.left + ((v - o.x[0]) / (o.x[1] - o.x[0])) * (box.right - box.left);
  const sy = (v) => box.bottom - (v / o.top) * (box.bottom - box.top);
  for (const v of range(0, o.top, o.step)) {
    svg("line", { class: v ? "grid-line" : "axis-line", x1: box.left, x2: box.right, y1: sy(v), y2: sy(v) }, root);
    svg("text", { x: box.left - 8, y: sy(v) + 4, "text-anchor": "end" }, root, o.tick(v));
  }
  for (const t of timeTicks(o.first, o.last, box.right - box.left, data.dates ? dateWidth : undefined)) {
    svg("text", { x: sx(t), y: box.bottom + 18, "text-anchor": "middle" }, root, dateOf(t));
  }
  svg("text", { class: "title", x: 0, y: 12 }, root, o.yTitle);
  svg("text", { class: "title", x: (box.left + box.right) / 2, y: o.height - 4, "text-anchor": "middle" }, root, byDate(o.xTitle));
  return { root, box, sx, sy };
}

/** Shows below a chart what each colour means. */
function legend(host, names, more = []) {
  const box = html("div", "legend", host);
  for (const [look, name] of [...names.map((name) => [`n${data.names[name]}`, name]), ...more]) {
    const entry = html("span", "", box);
    html("span", `swatch ${look}`, entry);
    entry.append(name);
  }
}
function scaleLegend(host, className, low, high) {
  const box = html("div", className, host);
  html("span", "", box, low); html("i", "", box); html("span", "", box, high);
}

const scaleFor = (highest, cap) => {
  const step = niceStep(highest || 1, 5);
  return { step, top: Math.min(cap ?? Infinity, Math.ceil((highest || 1) / step - 1e-6) * step) };
};
const pathOf = (x, y, sx, sy) => {
  let path = "", pen = "M";
  y.forEach((v, i) => {
    if (!known(v)) { pen = "M"; return; }
    const point = `${sx(x[i]).toFixed(1)},${sy(v).toFixed(1)}`;
    path += pen === "M" ? `M${point}L${point}` : `L${point}`; // a lone point is a dot
    pen = "L";
  });
  return path;
};

/** Calls pick(i, event-like) for the x nearest to the pointer, and for arrow keys; then left when the pointer goes. */
function follow(f, xs, pick, left) {
  let at = -1;
  const cross = svg("line", { class: "cross", y1: f.box.top, y2: f.box.bottom, visibility: "hidden" }, f.root);
  const dots = svg("g", {}, f.root);
  const leave = () => { at = -1; cross.setAttribute("visibility", "hidden"); dots.replaceChildren(); hideTip(); left?.(); };
  const go = (i, clientY) => {
    at = i;
    const x = f.sx(xs[i]), box = f.root.getBoundingClientRect();
    cross.setAttribute("x1", x); cross.setAttribute("x2", x); cross.setAttribute("visibility", "visible");
    dots.replaceChildren();
    pick(i, box.left + x, clientY ?? box.top + 60, dots, clientY === undefined ? null : clientY - box.top);
  };
  f.root.addEventListener("pointermove", (event) => {
    const x = event.clientX - f.root.getBoundingClientRect().left;
    let best = 0;
    xs.forEach((v, i) => { if (Math.abs(f.sx(v) - x) < Math.abs(f.sx(xs[best]) - x)) best = i; });
    go(best, event.clientY);
  });
  f.root.addEventListener("pointerleave", leave);
  f.root.addEventListener("blur", leave);
  f.root.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") leave();
    if (!move) return;
    event.preventDefault();
    go(Math.min(xs.length - 1, Math.max(0, at + move)));
  });
}
