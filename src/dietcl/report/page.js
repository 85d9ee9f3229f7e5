function matrix(host, run) {
  const n = run.steps, top = 26;
  const left = data.dates ? Math.max(46, dateWidth) : 46, below = data.dates ? 0.65 * dateWidth + 30 : 40;
  const size = Math.max(2, Math.min(Math.floor((host.clientWidth - left - 8) / n), Math.floor(560 / n), 44));
  const gap = size > 8 ? 1 : 0;
  const width = left + n * size + 8, height = top + n * size + below;
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "square" });
  root.setAttribute("aria-label", `Accuracy matrix of ${run.label}`);
  host.replaceChildren(root);
  svg("text", { class: "title", x: 0, y: 12 }, root, byDate("After learning time step"));
  svg("text", { class: "title", x: left + (n * size) / 2, y: height - 4, "text-anchor": "middle" }, root, byDate("Test images of time step"));
  for (const t of timeTicks(1, n, n * size, 26)) {
    svg("text", { x: left - 8, y: top + (t - 0.5) * size + 4, "text-anchor": "end" }, root, dateOf(t));
    const x = left + (t - 0.5) * size, y = top + n * size + 16;
    // Slanted, as dates are wider than the cells above them.
    const place = data.dates ? { x: x + 4, y: y - 2, "text-anchor": "end", transform: `rotate(-40 ${x + 4} ${y - 2})` } : { x, y, "text-anchor": "middle" };
    svg("text", place, root, dateOf(t));
  }
  run.matrix.forEach((row, t) => row.forEach((v, k) => {
    if (!known(v)) return;
    const share = Math.min(1, v / data.ceiling);
    const box = { class: "cell", x: left + k * size, y: top + t * size, width: size - gap, height: size - gap, rx: size > 14 ? 2 : 0 };
    svg("rect", box, root).style.fill = share < 0.5 ? blend("heat-mid", "heat-lo", 2 * share) : blend("heat-hi", "heat-mid", 2 * share - 1);
    if (size < 26) return;
    const value = svg("text", { class: "cell-value", x: left + (k + 0.5) * size, y: top + (t + 0.5) * size + 4, "text-anchor": "middle" }, root, (100 * v).toFixed(0));
    value.style.fill = share > 0.5 ? "var(--card)" : "var(--ink)";
  }));
  scaleLegend(host, "heat", "0 %", `${(100 * data.ceiling).toFixed(0)} %`);
  const mark = svg("rect", { class: "mark", width: size, height: size, visibility: "hidden", rx: 2 }, root);
  const leave = () => { mark.setAttribute("visibility", "hidden"); hideTip(); };
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const k = Math.floor((event.clientX - box.left - left) / size), t = Math.floor((event.clientY - box.top - top) / size);
    const v = run.matrix[t]?.[k];
    if (!known(v)) { leave(); return; }
    mark.setAttribute("x", left + k * size - gap / 2); mark.setAttribute("y", top + t * size - gap / 2);
    mark.setAttribute("visibility", "visible");
    showTip(`${percent(v)} ± ${(100 * run.matrixErrors[t][k]).toFixed(1)}`, [
      { name: "after learning time step", value: spanOf(t + 1) },
      { name: "test images of time step", value: k > t ? `${spanOf(k + 1)} (not learned yet)` : spanOf(k + 1) },
    ], event.clientX, event.clientY);
  });
  root.addEventListener("pointerleave", leave);
}

function budget(host, run) {
  const b = run.budget, names = Object.keys(b.by_purpose);
  const totals = b.t.map((_, i) => names.reduce((sum, name) => sum + b.by_purpose[name][i], Math.max(0, b.unused[i])));
  const { step, top } = scaleFor(Math.max(...totals));
  const first = b.t[0], last = b.t.at(-1);
  const f = frame(host, {
    height: 270, left: 56, x: [first - 0.5, last + 0.5], first, last, top, step, tick: amount,
    xTitle: "Time step", yTitle: `Spent (${b.unit})`, label: `Where the budget of ${run.label} went; arrow keys read the values`,
  });
  const pattern = svg("pattern", { id: `spare-${run.index}`, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, f.root);
  svg("line", { x1: 0, y1: 0, x2: 0, y2: 5, stroke: "var(--faint)", "stroke-width": 1.2 }, pattern);
  const wide = Math.abs(f.sx(1) - f.sx(0)), bar = Math.min(64, Math.max(0.6, wide > 4 ? wide * 0.78 : wide));
  b.t.forEach((t, i) => {
    let base = 0;
    const block = (value, attributes) => {
      if (!(value > 0)) return;
      svg("rect", { ...attributes, x: f.sx(t) - bar / 2, width: bar, y: f.sy(base + value), height: Math.max(0, f.sy(base) - f.sy(base + value)) }, f.root);
      base += value;
    };
    for (const name of names) block(b.by_purpose[name][i], { class: `bar n${data.names[name]}` });
    block(b.unused[i], { class: "spare", fill: `url(#spare-${run.index})` });
  });
  legend(host, names, [["unused", "unused"]]);
  follow(f, b.t, (i, x, y) => {
    const share = (v) => `${amount(v)} (${((100 * v) / (b.budget[i] || 1)).toFixed(0)} %)`;
    const rows = names.map((name) => ({ color: `n${data.names[name]}`, name, value: share(b.by_purpose[name][i]) }));
    rows.push({ color: "unused", name: "unused", value: share(b.unused[i]) }, { name: "budget", value: `${amount(b.budget[i])} ${b.unit}` });
    showTip(`Time step ${spanOf(b.t[i])}`, rows, x, y);
  });
}

function losses(host, run) {
  const { t, x, lines } = run.losses, names = Object.keys(lines), first = t[0], last = t.at(-1);
  const { step, top } = scaleFor(Math.max(...names.flatMap((name) => lines[name].filter(known))));
  const f = frame(host, {
    height: 250, x: [first - 0.5, last + 0.5], first, last, top, step, tick: amount,
    xTitle: "Time step", yTitle: "Training loss", label: `Training loss of ${run.label} by term; arrow keys read the values`,
  });
  for (const name of names) {
    // A phase without this term does not interrupt its line.
    const own = x.map((_, i) => i).filter((i) => known(lines[name][i]));
    const d = pathOf(own.map((i) => x[i]), own.map((i) => lines[name][i]), f.sx, f.sy);
    svg("path", { class: `line fine n${data.names[name]}`, d }, f.root);
  }
  legend(host, names);
  follow(f, x, (i, px, py, dots) => {
    const rows = names.filter((name) => known(lines[name][i])).map((name) => {
      svg("circle", { class: `dot n${data.names[name]}`, r: 4, cx: f.sx(x[i]), cy: f.sy(lines[name][i]) }, dots);
      return { color: `n${data.names[name]}`, name, value: lines[name][i].toPrecision(3) };
    });
    showTip(`During time step ${spanOf(t[i])}`, rows, px, py);
  });
}

function within(host, run) {
  const { t, x, lines } = run.within, first = t[0], last = t.at(-1);
  const origins = Object.keys(lines).map(Number).sort((a, b) => a - b);
  const ramp = (k) => blend("ramp-hi", "ramp-lo", (k - origins[0]) / Math.max(1, origins.at(-1) - origins[0]));
  const { step, top } = scaleFor(Math.max(0.05, ...origins.flatMap((k) => lines[k].filter(known))) * 100, 100);
  const f = frame(host, {
    height: 290, x: [first - 0.5, last + 0.5], first, last, top, step, tick: amount,
    xTitle: "Time step being learned", yTitle: "Accuracy (%)", label: `Accuracy of ${run.label} within time steps; arrow keys read the values`,
  });
  for (const edge of range(first - 0.5, last + 0.5, 1)) {
    svg("line", { class: "grid-line", x1: f.sx(edge), x2: f.sx(edge), y1: f.box.top, y2: f.box.bottom }, f.root);
  }
  for (const k of origins) {
    const values = lines[k].map((v) => (known(v) ? 100 * v : null));
    svg("path", { class: "line fine", d: pathOf(x, values, f.sx, f.sy) }, f.root).style.stroke = ramp(k);
  }
  scaleLegend(host, "heat ramp", `images of time step ${dateOf(origins[0])}`, dateOf(origins.at(-1)));
  follow(f, x, (i, px, py, dots, atY) => {
    const measured = origins.filter((k) => known(lines[k][i])), newest = measured.at(-1), older = measured.slice(0, -1);
    if (!measured.length) return;
    const gap = (k) => Math.abs(f.sy(100 * lines[k][i]) - (atY ?? 0));
    const nearest = measured.reduce((best, k) => (gap(k) < gap(best) ? k : best));
    const rows = [{ paint: ramp(nearest), name: `images of time step ${dateOf(nearest)}`, value: percent(lines[nearest][i]) }];
    if (newest !== nearest) rows.push({ paint: ramp(newest), name: `newest (time step ${dateOf(newest)})`, value: percent(lines[newest][i]) });
    if (older.length) rows.push({ name: "older, mean", value: percent(mean(older.map((k) => lines[k][i]))) });
    const dot = svg("circle", { class: "dot", r: 4.5, cx: f.sx(x[i]), cy: f.sy(100 * lines[nearest][i]) }, dots);
    dot.style.fill = ramp(nearest);
    showTip(`During time step ${spanOf(t[i])}`, rows, px, py);
  });
}

const draw = { accuracy, matrix, budget, losses, within };
const redraw = (host) => { hideTip(); draw[host.dataset.kind](host, data.runs[host.dataset.run]); };
const main = document.querySelector('.chart[data-kind="accuracy"]');

if (main) controls();
// A closed <details> has no width; its charts are drawn when it opens.
const watch = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const width = Math.round(contentRect.width);
    if (!width || target.drawn === width) continue;
    target.drawn = width;
    redraw(target);
  }
});
for (const host of document.querySelectorAll(".chart")) watch.observe(host);
