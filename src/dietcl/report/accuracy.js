// More lines than this hide each other's bands, seeds and labels: the legend and the pointer then do their work.
const many = data.groups.length > data.few;
const nearby = 9;
let raised = null;

const shown = (group) => group.runs.filter((i) => !hidden.has(i));
const valuesAt = (runs, key, t) => runs.map((i) => data.runs[i][key][measure][t]).filter(known);
const centreAt = (runs, t) => { const v = valuesAt(runs, "series", t); return v.length ? mean(v) : null; };
const lookOf = (group) => `k${group.color} l${group.pattern}`;
const keyOf = (group) => `key ${lookOf(group)}${group.point ? " point" : ""}`;
const lineSteps = Math.max(1, ...data.runs.map((run) => run.steps));
const finalOf = (group) => range(0, lineSteps - 1, 1).map((t) => centreAt(group.runs, t)).findLast(known);

/** Brings a group's line to the front and lets the others fade; null: all are alike again. */
function raise(place) {
  raised = place;
  const root = main.querySelector("svg"), layer = root?.querySelector(`[data-group="${place}"]`);
  root?.classList.toggle("raising", Boolean(layer));
  for (const other of document.querySelectorAll(".raised")) other.classList.remove("raised");
  document.querySelector(`#tools [data-entry="${place}"]`)?.classList.add("raised");
  if (!layer) return;
  layer.classList.add("raised");
  layer.parentNode.append(layer);
}

function drawGroup(f, layers, group, place, times) {
  const runs = shown(group), several = runs.length > 1;
  const centre = times.map((_, t) => centreAt(runs, t)), last = centre.findLastIndex(known);
  const layer = svg("g", { class: lookOf(group), "data-group": place }, layers);
  if (!many) {
    const spread = times.map((_, t) => {
      const v = valuesAt(runs, "series", t);
      return several ? (v.length > 1 ? deviation(v) : null) : data.runs[runs[0]].errors[measure][t];
    });
    const inside = times.map((_, i) => i).filter((i) => known(centre[i]) && known(spread[i]));
    const edge = (sign) => inside.map((i) => `${f.sx(times[i]).toFixed(1)},${Math.max(f.box.top, f.sy(100 * Math.max(0, centre[i] + sign * spread[i]))).toFixed(1)}`);
    if (inside.length > 1) svg("path", { class: "band", d: `M${edge(1).join("L")}L${edge(-1).reverse().join("L")}Z` }, layer);
  }
  const line = (values, className, run) =>
    svg("path", { class: `line ${className}`, d: pathOf(times, values.map((v) => (known(v) ? 100 * v : null)), f.sx, f.sy), "data-run": run }, layer);
  for (const i of runs) line(data.runs[i].series[measure], several ? "run-line thin" : "run-line", i);
  if (several) line(centre, "mean-line", "mean");
  centre.forEach((v, i) => {
    const x = f.sx(times[i]), y = f.sy(100 * v), lone = !known(centre[i - 1]) && !known(centre[i + 1]);
    if (!known(v)) return;
    if (lone) svg("path", { class: "dot point", d: `M${x},${y - 8}l8,8l-8,8l-8,-8Z` }, layer);
    else if (i === last) svg("circle", { class: "dot", r: many ? 3 : 4, cx: x, cy: y }, layer);
  });
  return last < 0 ? null : { layer, x: f.sx(times[last]), y: f.sy(100 * centre[last]), value: (100 * centre[last]).toFixed(1) };
}

function accuracy(host) {
  const title = data.measures.find((m) => m.key === measure).title;
  const times = range(1, lineSteps, 1);
  const all = data.groups.flatMap((g) => shown(g).flatMap((i) => data.runs[i].series[measure].filter(known)));
  const wide = host.clientWidth > 640;
  // Long labels stay in the legend; the end of a line then shows its value alone.
  const brief = many || Math.max(...data.groups.map((group) => group.label.length)) > 20;
  const nameOf = (group) => (brief ? "" : `${group.label} `);
  const room = 60 + 7.5 * Math.max(...data.groups.map((group) => nameOf(group).length));
  const { step, top } = scaleFor(Math.max(0.05, ...all) * 100 * 1.04, 100);
  const f = frame(host, {
    height: (wide ? 400 : 320) + (many ? 120 : 0), right: wide ? room : many ? 40 : 14,
    x: [Math.min(1, lineSteps - 1), lineSteps], first: 1, last: lineSteps, top, step,
    tick: (v) => v.toFixed(step < 1 ? 1 : 0), xTitle: "Time steps learned", yTitle: "Accuracy (%)",
    label: `Accuracy along the stream, ${title}; arrow keys read the values`,
  });
  f.root.classList.toggle("many", many);
  const chance = data.chance.map((v) => (known(v) && 100 * v <= top ? 100 * v : null));
  svg("path", { class: "chance", d: pathOf(times, chance, f.sx, f.sy) }, f.root);
  const layers = svg("g", {}, f.root), ends = [];
  data.groups.forEach((group, place) => {
    const end = shown(group).length ? drawGroup(f, layers, group, place, times) : null;
    if (!end) return;
    // Of many lines only the raised one shows its value.
    if (many) svg("text", { class: "end", x: end.x + 10, y: end.y + 4 }, end.layer, end.value);
    else ends.push({ ...end, text: nameOf(group) + end.value });
  });
  if (wide) endLabels(f, ends.filter((end) => end.x > f.box.right - 2));
  raise(raised);
  follow(f, times, (t, x, y, dots, atY) => {
    let rows = [];
    data.groups.forEach((group, place) => {
      const v = valuesAt(shown(group), "series", t);
      if (!v.length) return;
      const centre = mean(v), error = v.length > 1 ? deviation(v) : valuesAt(shown(group), "errors", t)[0];
      rows.push({ color: keyOf(group), name: group.label, order: centre, place,
        value: percent(centre) + (known(error) ? ` ± ${(100 * error).toFixed(1)}` : "") });
    });
    rows.sort((a, b) => b.order - a.order);
    let title = `After time step ${spanOf(times[t])}`;
    if (rows.length > nearby) {
      const gap = (row) => Math.abs(f.sy(100 * row.order) - (atY ?? 0));
      const nearest = rows.reduce((best, row, i) => (gap(row) < gap(rows[best]) ? i : best), 0);
      const first = Math.max(0, Math.min(rows.length - nearby, nearest - (nearby - 1) / 2));
      title += `, places ${first + 1} to ${first + nearby} of ${rows.length}`;
      rows[nearest].strong = true;
      raise(rows[nearest].place);
      rows = rows.slice(first, first + nearby);
    }
    const guesses = known(data.chance[t]) ? [{ name: "chance", value: percent(data.chance[t]) }] : [];
    for (const row of rows) {
      const group = data.groups[row.place];
      svg("circle", { class: `dot k${group.color}`, r: many ? 3.5 : 4.5, cx: f.sx(times[t]), cy: f.sy(100 * row.order) }, dots);
    }
    showTip(title, [...rows, ...guesses], x, y);
  }, () => { if (many) raise(null); });
}

function endLabels(f, ends) {
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { end.at = Math.max(end.y, i ? ends[i - 1].at + 16 : 0); });
  const below = ends.length ? Math.max(0, ends.at(-1).at - f.box.bottom) : 0;
  for (const end of ends) svg("text", { class: "end", x: end.x + 10, y: end.at + 4 - below }, f.root, end.text);
}

function controls() {
  const tools = document.getElementById("tools");
  const choice = html("div", "switch", tools), together = html("div", "switch", null), legend = html("div", "legend", tools);
  choice.setAttribute("role", "group");
  choice.setAttribute("aria-label", "Which accuracy");
  const updates = [];
  const refresh = () => { for (const update of updates) update(); redraw(main); };
  for (const { key, title } of data.measures) {
    const button = html("button", "", choice, title);
    button.dataset.measure = key;
    updates.push(() => button.setAttribute("aria-pressed", measure === key));
    button.addEventListener("click", () => { measure = key; refresh(); });
  }
  const toggle = (parent, className, text, runs, key) => {
    const button = html("button", className, parent);
    if (key) html("span", key, button);
    html("span", "", button, text);
    button.dataset.runs = runs.join(" ");
    updates.push(() => button.setAttribute("aria-pressed", runs.some((i) => !hidden.has(i))));
    button.addEventListener("click", () => {
      const visible = runs.some((i) => !hidden.has(i));
      for (const i of runs) if (visible) hidden.add(i); else hidden.delete(i);
      refresh();
    });
    return button;
  };
  const order = data.groups.map((group, place) => ({ group, place, final: finalOf(group) ?? -1 }));
  if (many) order.sort((a, b) => b.final - a.final); // as the lines end, from top to bottom
  for (const { group, place } of order) {
    const entry = html("span", "", legend);
    entry.dataset.entry = place;
    const button = toggle(entry, "", group.label, group.runs, keyOf(group));
    for (const come of ["pointerenter", "focus"]) button.addEventListener(come, () => raise(place));
    for (const go of ["pointerleave", "blur"]) button.addEventListener(go, () => raise(null));
    if (many) {
      const value = html("i", "", button);
      updates.push(() => { const final = finalOf(group); value.textContent = known(final) ? (100 * final).toFixed(1) : "–"; });
    } else if (group.runs.length > 1) for (const i of group.runs) toggle(entry, "seed", data.runs[i].short, [i]);
  }
  if (many) {
    legend.before(together);
    legend.classList.add("long");
    const everything = data.runs.map((run) => run.index);
    html("button", "", together, "Show all").addEventListener("click", () => { hidden.clear(); refresh(); });
    html("button", "", together, "Hide all").addEventListener("click", () => { for (const i of everything) hidden.add(i); refresh(); });
  }
  for (const update of updates) update();
}
