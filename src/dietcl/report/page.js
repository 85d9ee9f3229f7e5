"use strict";
(() => {
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
      const line = html("div", "", tip);
      html("span", `swatch ${row.color ?? ""}`, line).style.background = row.paint ?? "";
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
    for (const t of timeTicks(o.first, o.last, box.right - box.left)) {
      svg("text", { x: sx(t), y: box.bottom + 18, "text-anchor": "middle" }, root, t);
    }
    svg("text", { class: "title", x: 0, y: 12 }, root, o.yTitle);
    svg("text", { class: "title", x: (box.left + box.right) / 2, y: o.height - 4, "text-anchor": "middle" }, root, o.xTitle);
    return { root, box, sx, sy };
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

  /** Calls pick(i, event-like) for the x nearest to the pointer, and for arrow keys. */
  function follow(f, xs, pick) {
    let at = -1;
    const cross = svg("line", { class: "cross", y1: f.box.top, y2: f.box.bottom, visibility: "hidden" }, f.root);
    const dots = svg("g", {}, f.root);
    const leave = () => { at = -1; cross.setAttribute("visibility", "hidden"); dots.replaceChildren(); hideTip(); };
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

  const shown = (group) => group.runs.filter((i) => !hidden.has(i));
  const valuesAt = (group, key, t) => shown(group).map((i) => data.runs[i][key][measure][t]).filter(known);

  function accuracy(host) {
    const title = data.measures.find((m) => m.key === measure).title;
    const steps = Math.max(1, ...data.runs.map((run) => run.steps));
    const times = range(1, steps, 1);
    const all = data.groups.flatMap((g) => shown(g).flatMap((i) => data.runs[i].series[measure].filter(known)));
    const wide = host.clientWidth > 640;
    // Long labels stay in the legend; the end of a line then shows its value alone.
    const brief = Math.max(...data.groups.map((group) => group.label.length)) > 20;
    const nameOf = (group) => (brief ? "" : `${group.label} `);
    const room = 60 + 7.5 * Math.max(...data.groups.map((group) => nameOf(group).length));
    const { step, top } = scaleFor(Math.max(0.05, ...all) * 100 * 1.04, 100);
    const f = frame(host, {
      height: wide ? 400 : 320, right: wide ? room : 14, x: [Math.min(1, steps - 1), steps], first: 1, last: steps, top, step,
      tick: (v) => v.toFixed(step < 1 ? 1 : 0), xTitle: "Time steps learned", yTitle: "Accuracy (%)",
      label: `Accuracy along the stream, ${title}; arrow keys read the values`,
    });
    const ends = [];
    for (const group of data.groups) {
      const runs = shown(group), kind = `k${group.color}${group.dashed ? " dashed" : ""}`, many = runs.length > 1;
      if (!runs.length) continue;
      const centre = times.map((_, t) => { const v = valuesAt(group, "series", t); return v.length ? mean(v) : null; });
      const spread = times.map((_, t) => {
        const v = valuesAt(group, "series", t);
        return many ? (v.length > 1 ? deviation(v) : null) : data.runs[runs[0]].errors[measure][t];
      });
      const inside = times.map((_, i) => i).filter((i) => known(centre[i]) && known(spread[i]));
      const edge = (sign) => inside.map((i) => `${f.sx(times[i]).toFixed(1)},${f.sy(100 * Math.max(0, centre[i] + sign * spread[i])).toFixed(1)}`);
      if (inside.length > 1) svg("path", { class: `band k${group.color}`, d: `M${edge(1).join("L")}L${edge(-1).reverse().join("L")}Z` }, f.root);
      const draw = (values, className, run) =>
        svg("path", { class: `line ${className} ${kind}`, d: pathOf(times, values.map((v) => (known(v) ? 100 * v : null)), f.sx, f.sy), "data-run": run }, f.root);
      for (const i of runs) draw(data.runs[i].series[measure], many ? "run-line thin" : "run-line", i);
      if (many) draw(centre, "mean-line", "mean");
      const last = centre.findLastIndex(known);
      if (last >= 0) {
        svg("circle", { class: `dot k${group.color}`, r: 4, cx: f.sx(times[last]), cy: f.sy(100 * centre[last]) }, f.root);
        ends.push({ x: f.sx(times[last]), y: f.sy(100 * centre[last]), text: nameOf(group) + (100 * centre[last]).toFixed(1) });
      }
    }
    if (wide) endLabels(f, ends.filter((end) => end.x > f.box.right - 2));
    follow(f, times, (t, x, y, dots) => {
      const rows = [];
      for (const group of data.groups) {
        const v = valuesAt(group, "series", t);
        if (!v.length) continue;
        const centre = mean(v), error = v.length > 1 ? deviation(v) : valuesAt(group, "errors", t)[0];
        svg("circle", { class: `dot k${group.color}`, r: 4.5, cx: f.sx(times[t]), cy: f.sy(100 * centre) }, dots);
        rows.push({ color: `k${group.color}`, name: group.label, order: centre,
          value: percent(centre) + (known(error) ? ` ± ${(100 * error).toFixed(1)}` : "") });
      }
      rows.sort((a, b) => b.order - a.order);
      showTip(`After time step ${times[t]}`, rows, x, y);
    });
  }

  function endLabels(f, ends) {
    ends.sort((a, b) => a.y - b.y);
    ends.forEach((end, i) => { end.at = Math.max(end.y, i ? ends[i - 1].at + 16 : 0); });
    const below = ends.length ? Math.max(0, ends.at(-1).at - f.box.bottom) : 0;
    for (const end of ends) svg("text", { class: "end", x: end.x + 10, y: end.at + 4 - below }, f.root, end.text);
  }

  function matrix(host, run) {
    const n = run.steps, left = 46, top = 26;
    const size = Math.max(2, Math.min(Math.floor((host.clientWidth - left - 8) / n), Math.floor(560 / n), 44));
    const gap = size > 8 ? 1 : 0;
    const width = left + n * size + 8, height = top + n * size + 40;
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "square" });
    root.setAttribute("aria-label", `Accuracy matrix of ${run.label}`);
    host.replaceChildren(root);
    svg("text", { class: "title", x: 0, y: 12 }, root, "After learning time step");
    svg("text", { class: "title", x: left + (n * size) / 2, y: height - 4, "text-anchor": "middle" }, root, "Test images of time step");
    for (const t of timeTicks(1, n, n * size, 26)) {
      svg("text", { x: left - 8, y: top + (t - 0.5) * size + 4, "text-anchor": "end" }, root, t);
      svg("text", { x: left + (t - 0.5) * size, y: top + n * size + 16, "text-anchor": "middle" }, root, t);
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
        { name: "after learning time step", value: t + 1 },
        { name: "test images of time step", value: k > t ? `${k + 1} (not learned yet)` : k + 1 },
      ], event.clientX, event.clientY);
    });
    root.addEventListener("pointerleave", leave);
  }

  function budget(host, run) {
    const b = run.budget, names = Object.keys(b.amounts);
    const { step, top } = scaleFor(Math.max(...b.totals));
    const first = b.t[0], last = b.t.at(-1);
    const f = frame(host, {
      height: 270, left: 56, x: [first - 0.5, last + 0.5], first, last, top, step, tick: amount,
      xTitle: "Time step", yTitle: `Spent (${b.unit})`, label: `Where the budget of ${run.label} went; arrow keys read the values`,
    });
    const pattern = svg("pattern", { id: `spare-${run.index}`, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, f.root);
    svg("line", { x1: 0, y1: 0, x2: 0, y2: 5, stroke: "var(--faint)", "stroke-width": 1.2 }, pattern);
    const wide = Math.abs(f.sx(1) - f.sx(0)), bar = Math.max(0.6, wide > 4 ? wide * 0.78 : wide);
    b.t.forEach((t, i) => {
      let base = 0;
      const block = (value, attributes) => {
        if (!(value > 0)) return;
        svg("rect", { ...attributes, x: f.sx(t) - bar / 2, width: bar, y: f.sy(base + value), height: Math.max(0, f.sy(base) - f.sy(base + value)) }, f.root);
        base += value;
      };
      for (const name of names) block(b.amounts[name][i], { class: `bar n${data.names[name]}` });
      block(b.unused[i], { class: "spare", fill: `url(#spare-${run.index})` });
    });
    follow(f, b.t, (i, x, y) => {
      const share = (v) => `${amount(v)} (${((100 * v) / (b.budget[i] || 1)).toFixed(0)} %)`;
      const rows = names.map((name) => ({ color: `n${data.names[name]}`, name, value: share(b.amounts[name][i]) }));
      rows.push({ color: "unused", name: "unused", value: share(b.unused[i]) }, { name: "budget", value: `${amount(b.budget[i])} ${b.unit}` });
      showTip(`Time step ${b.t[i]}`, rows, x, y);
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
      // A phase without this term is no gap in it.
      const own = x.map((_, i) => i).filter((i) => known(lines[name][i]));
      const d = pathOf(own.map((i) => x[i]), own.map((i) => lines[name][i]), f.sx, f.sy);
      svg("path", { class: `line fine n${data.names[name]}`, d }, f.root);
    }
    follow(f, x, (i, px, py, dots) => {
      const rows = names.filter((name) => known(lines[name][i])).map((name) => {
        svg("circle", { class: `dot n${data.names[name]}`, r: 4, cx: f.sx(x[i]), cy: f.sy(lines[name][i]) }, dots);
        return { color: `n${data.names[name]}`, name, value: lines[name][i].toPrecision(3) };
      });
      showTip(`During time step ${t[i]}`, rows, px, py);
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
    follow(f, x, (i, px, py, dots, atY) => {
      const here = origins.filter((k) => known(lines[k][i])), newest = here.at(-1), older = here.slice(0, -1);
      if (!here.length) return;
      const gap = (k) => Math.abs(f.sy(100 * lines[k][i]) - (atY ?? 0));
      const nearest = here.reduce((best, k) => (gap(k) < gap(best) ? k : best));
      const rows = [{ paint: ramp(nearest), name: `images of time step ${nearest}`, value: percent(lines[nearest][i]) }];
      if (newest !== nearest) rows.push({ paint: ramp(newest), name: `newest (time step ${newest})`, value: percent(lines[newest][i]) });
      if (older.length) rows.push({ name: "older, mean", value: percent(mean(older.map((k) => lines[k][i]))) });
      const dot = svg("circle", { class: "dot", r: 4.5, cx: f.sx(x[i]), cy: f.sy(100 * lines[nearest][i]) }, dots);
      dot.style.fill = ramp(nearest);
      showTip(`During time step ${t[i]}`, rows, px, py);
    });
  }

  const draw = { accuracy, matrix, budget, losses, within };
  const redraw = (host) => { hideTip(); draw[host.dataset.kind](host, data.runs[host.dataset.run]); };
  const main = document.querySelector('.chart[data-kind="accuracy"]');

  function controls() {
    const tools = document.getElementById("tools");
    const choice = html("div", "switch", tools), legend = html("div", "legend", tools);
    choice.setAttribute("role", "group");
    choice.setAttribute("aria-label", "Which accuracy");
    const buttons = [];
    const refresh = () => { for (const update of buttons) update(); redraw(main); };
    for (const { key, title } of data.measures) {
      const button = html("button", "", choice, title);
      button.dataset.measure = key;
      buttons.push(() => button.setAttribute("aria-pressed", measure === key));
      button.addEventListener("click", () => { measure = key; refresh(); });
    }
    const toggle = (parent, className, text, runs, color) => {
      const button = html("button", className, parent);
      if (color) html("span", `swatch ${color}`, button);
      button.append(text);
      button.dataset.runs = runs.join(" ");
      buttons.push(() => button.setAttribute("aria-pressed", runs.some((i) => !hidden.has(i))));
      button.addEventListener("click", () => {
        const visible = runs.some((i) => !hidden.has(i));
        for (const i of runs) if (visible) hidden.add(i); else hidden.delete(i);
        refresh();
      });
    };
    for (const group of data.groups) {
      const entry = html("span", "", legend);
      toggle(entry, "", group.label, group.runs, `k${group.color}`);
      if (group.runs.length > 1) for (const i of group.runs) toggle(entry, "seed", data.runs[i].short, [i]);
    }
    for (const update of buttons) update();
  }

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
})();
