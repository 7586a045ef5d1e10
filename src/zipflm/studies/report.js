"use strict";
/* Draws the charts of the page from the JSON in #study, without any library. */

const study = JSON.parse(document.getElementById("study").textContent);
const models = study.models;
const hidden = new Set();
const view = { source: 0, difference: false, training: true };
const NS = "http://www.w3.org/2000/svg";

/* ---- helpers ---- */

function el(name, attributes = {}, parent = null, text = null) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

const shown = () => models.filter((m) => !hidden.has(m.label));
const count = (n) => n.toLocaleString("en-US");
const signed = (x, digits) => (x < 0 ? "\u2212" : "+") + Math.abs(x).toFixed(digits);

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((s) => s >= raw);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) values.push(i * step + 0); /* + 0: never -0 */
  return values;
}

/* Even steps over a small range, otherwise 1, 2 and 5 times every power of ten. */
function logTicks(low, high) {
  if (high < 4 * low) return ticks(low, high, 6);
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const k of [1, 2, 5]) values.push(k * 10 ** power);
  return values.filter((value) => value >= low && value <= high);
}

const digits = (x, most) => x.toLocaleString("en-US", { maximumSignificantDigits: most }).replace("-", "\u2212");
const short = (x) => (Math.abs(x) >= 10000 ? digits(x / 1000, 4) + "K" : digits(x, 4));

/* Upper end of an axis: models with a higher final loss are outliers. */
function ceiling(losses) {
  const sorted = [...losses].sort((a, b) => a - b), middle = sorted[Math.floor(sorted.length / 2)];
  return middle + Math.max(1, 4 * (middle - sorted[0]));
}

/* ---- styles: colors are in CSS, patterns are those of the paper ---- */

const PATTERNS = {
  "north east lines": "M-1.5,1.5 l3,-3 M0,6 l6,-6 M4.5,7.5 l3,-3",
  "north west lines": "M-1.5,4.5 l3,3 M0,0 l6,6 M4.5,-1.5 l3,3",
  grid: "M0,3 h6 M3,0 v6",
  "vertical lines": "M1.5,0 v6 M4.5,0 v6",
  "horizontal lines": "M0,1.5 h6 M0,4.5 h6",
  dots: "M1.5,1.5 h.01 M4.5,4.5 h.01",
  crosshatch: "M0,0 l6,6 M6,0 l-6,6",
};

const MARKS = {
  o: "M-4,0 a4,4 0 1,0 8,0 a4,4 0 1,0 -8,0z",
  s: "M-3.6,-3.6 h7.2 v7.2 h-7.2z",
  "^": "M0,-4.6 L4.4,3.4 H-4.4z",
  v: "M0,4.6 L4.4,-3.4 H-4.4z",
  D: "M0,-4.8 L4.8,0 L0,4.8 L-4.8,0z",
  P: "M-1.6,-4.4 h3.2 v2.8 h2.8 v3.2 h-2.8 v2.8 h-3.2 v-2.8 h-2.8 v-3.2 h2.8z",
  X: "M-4.3,-2.3 L-2.3,-4.3 L0,-2 L2.3,-4.3 L4.3,-2.3 L2,0 L4.3,2.3 L2.3,4.3 L0,2 L-2.3,4.3 L-4.3,2.3 L-2,0z",
  "*": "M0,-5.4 L1.5,-1.7 L5.2,-1.7 L2.3,.7 L3.3,4.5 L0,2.3 L-3.3,4.5 L-2.3,.7 L-5.2,-1.7 L-1.5,-1.7z",
};

function definePatterns() {
  const svg = el("svg", { width: 0, height: 0, "aria-hidden": "true", style: "position:absolute" }, document.body);
  const defs = el("defs", {}, svg);
  models.forEach((m, i) => {
    const tile = { id: `fill-${i}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" };
    const pattern = el("pattern", tile, defs);
    el("rect", { width: 6, height: 6, style: `fill:var(--model-${i})` }, pattern);
    const width = m.pattern === "dots" ? 1.9 : 0.9;
    el("path", {
      d: PATTERNS[m.pattern], fill: "none", "stroke-width": width, "stroke-linecap": m.pattern === "dots" ? "round" : "butt",
      style: `stroke:var(--pattern-${i})`,
    }, pattern);
  });
}

/* ---- tooltip ---- */

const tip = document.getElementById("tip");

function showTip(event, title, lines) {
  tip.replaceChildren();
  const head = document.createElement("b");
  head.textContent = title;
  tip.append(head);
  for (const line of lines) {
    const row = document.createElement("div");
    row.textContent = line;
    tip.append(row);
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const y = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18;
  tip.style.left = `${Math.max(8, x)}px`;
  tip.style.top = `${Math.max(8, y)}px`;
}

/* On a touch screen the tooltip stays until the next touch. */
function hideTip(event) {
  if (event.pointerType !== "touch") tip.hidden = true;
}

/* ---- bars ---- */

function drawBars(id, kind) {
  const holder = document.getElementById(id);
  const source = study.bins[kind][view.source];
  const bins = source.bins;
  const present = shown().filter((m) => bins.some((b) => b.loss[m.label] != null));
  const reference = source.reference;
  const valueOf = (b, m) => {
    const loss = b.loss[m.label];
    if (loss == null || !view.difference) return loss == null ? null : loss;
    return b.loss[reference] == null ? null : loss - b.loss[reference];
  };
  const endsOf = (b, m) => (view.difference ? b.difference : b.interval)[m.label] || null;
  const valuesOf = (m, chosen) => chosen.flatMap((b) => [valueOf(b, m), ...(endsOf(b, m) || [])]).filter((v) => v != null);
  const values = present.flatMap((m) => valuesOf(m, bins));
  const usual = present.filter((m) => !view.difference || m.label !== reference).map((m) => valuesOf(m, bins.filter((b) => b.name !== "UNK")));
  const [low, high] = axisEnds(usual, values, view.difference ? 0.05 : 1);
  /* On a narrow page, the chart scrolls. */
  const box = { width: Math.max(640, holder.clientWidth), height: 340, left: 62, right: 8, top: 10, bottom: 52 };
  const svg = frame(holder, box, `Loss by frequency of the ${kind === "word" ? "word" : "previous word"}, ${source.name}`);
  const bottom = box.height - box.bottom;
  const Y = (v) => bottom - ((v - low) / (high - low || 1)) * (bottom - box.top);
  const along = (box.width - box.left - box.right) / bins.length;

  for (const t of ticks(low, high, 6)) {
    el("line", { x1: box.left, x2: box.width - box.right, y1: Y(t), y2: Y(t), class: "rule" }, svg);
    el("text", { x: box.left - 7, y: Y(t) + 4, "text-anchor": "end" }, svg, short(t));
  }
  const unit = view.difference ? `nats relative to ${reference}` : "nats per word";
  el("text", { transform: `translate(12 ${box.height / 2 - 16}) rotate(-90)`, "text-anchor": "middle" }, svg, unit);
  el("text", { x: box.left - 7, y: bottom + 35, "text-anchor": "end" }, svg, "words");

  bins.forEach((b, i) => {
    const room = along * 0.84, thick = room / Math.max(1, present.length), x = box.left + (i + 0.5) * along;
    el("text", { x, y: bottom + 18, "text-anchor": "middle", class: "strong" }, svg, b.name);
    el("text", { x, y: bottom + 35, "text-anchor": "middle" }, svg, count(b.tokens));
    present.forEach((m, j) => {
      const value = valueOf(b, m);
      if (value === null) return;
      const within = Math.max(low, Math.min(high, value)), ends = endsOf(b, m);
      const left = x - room / 2 + j * thick, middle = left + thick / 2;
      const [top, end] = [Y(Math.max(0, within)), Y(Math.min(0, within))];
      const rect = { x: left, width: Math.max(1, thick - 0.6), y: top, height: end - top };
      const bar = el("rect", { ...rect, class: "bar", fill: `url(#fill-${models.indexOf(m)})`, "data-model": m.label, "data-bin": b.name }, svg);
      if (within !== value) drawBreak(svg, value, within, middle, thick, Y(within));
      else if (ends) drawWhisker(svg, ends.map(Y), middle);
      const between = ([a, c], digits) => ` (${a.toFixed(digits)} to ${c.toFixed(digits)})`.replaceAll("-", "\u2212");
      const lines = [`loss ${b.loss[m.label].toFixed(3)} nats${b.interval[m.label] ? between(b.interval[m.label], 3) : ""}`];
      if (m.label !== reference && b.loss[reference] != null) lines.push(`${signed(b.loss[m.label] - b.loss[reference], 3)} relative to ${reference}${b.difference[m.label] ? between(b.difference[m.label], 3) : ""}`);
      lines.push(`${count(b.tokens)} words, ${count(b.types)} distinct`);
      for (const name of ["pointermove", "pointerdown"]) bar.addEventListener(name, (event) => showTip(event, `${m.label}, ${b.name}`, lines));
      bar.addEventListener("pointerleave", hideTip);
    });
  });
  if (!values.length) el("text", { x: box.width / 2, y: box.height / 3, "text-anchor": "middle" }, svg, "no data");
  el("line", { x1: box.left, x2: box.width - box.right, y1: Y(0), y2: Y(0), class: "axis" }, svg);
}

/* Ends of an axis. If outliers would flatten the other bars, the ends are based on the median over
   models. `usual` has the values of each model except those on unknown words. */
function axisEnds(usual, all, least) {
  const extents = usual.map((own) => Math.max(0, ...own.map(Math.abs))).sort((a, b) => a - b);
  const limit = 1.3 * Math.max(least, extents[Math.floor(extents.length / 2)] || 0);
  const high = Math.max(least, ...all), low = Math.min(0, ...all);
  return [low < -limit ? -limit : low, high > 1.1 * limit ? limit : 1.03 * high];
}

/* Marks a bar that is cut at the end of the axis with a gap and its value. */
function drawBreak(svg, value, within, middle, thick, y) {
  const back = (value > within ? 1 : -1) * 9, half = thick / 2 + 1.5;
  const d = `M${middle - half},${y + back + 3} l${2 * half},-4 M${middle - half},${y + back - 1} l${2 * half},-4`;
  el("path", { d, "stroke-width": 1.6, fill: "none", class: "break" }, svg);
  const transform = `translate(${middle + 3.6} ${y + 2.2 * back}) rotate(-90)`;
  el("text", { transform, "text-anchor": value > within ? "end" : "start", class: "broken" }, svg, value.toFixed(1).replace("-", "\u2212"));
}

function drawWhisker(svg, [a, b], middle) {
  const d = `M${middle},${a} V${b} M${middle - 2.5},${a} h5 M${middle - 2.5},${b} h5`;
  for (const name of ["whisker-halo", "whisker"]) el("path", { d, class: name }, svg);
}

function frame(holder, box, name) {
  holder.replaceChildren();
  return el("svg", { viewBox: `0 0 ${box.width} ${box.height}`, width: box.width, height: box.height, role: "img", "aria-label": name }, holder);
}

/* ---- lines and points ---- */

function drawPoints(id, { name, xlabel, ylabel, series, log, lines, describe }) {
  const holder = document.getElementById(id);
  const visible = series.filter((s) => !hidden.has(s.model.label) && s.points.length);
  const width = holder.clientWidth || 520;
  const box = { width, height: Math.min(360, Math.max(270, width * 0.6)), left: 60, right: lines ? 14 : 30, top: 14, bottom: 44 };
  const svg = frame(holder, box, name);
  if (!visible.length) {
    el("text", { x: box.width / 2, y: box.height / 2, "text-anchor": "middle" }, svg, "no data");
    return;
  }
  const warp = log ? Math.log : (v) => v;
  /* Outliers are determined in nats: `warp` turns a perplexity into a loss. */
  const lasts = visible.map((s) => [s, s.points[s.points.length - 1]]);
  const limit = ceiling(lasts.map(([, p]) => warp(p.y)));
  const above = lasts.filter(([, p]) => warp(p.y) > limit);
  /* The second half of a curve is always visible. */
  const second = lasts.filter(([, p]) => warp(p.y) <= limit)
    .flatMap(([s]) => s.points.slice(Math.floor((s.points.length - 1) / 2)));
  const top = Math.max(limit, ...second.map((p) => warp(p.y)));
  const all = visible.flatMap((s) => s.points.concat(s.faint || []));
  const ends = all.flatMap((p) => (p.low != null ? [p.low, p.high] : [p.y])).map(warp);
  /* Lines may start above the top of the axis. */
  const kept = ends.map((v) => (lines ? Math.min(v, top) : v)).filter((v) => v <= top);
  const [x0, x1] = range(all.map((p) => p.x), lines ? 0.01 : 0.08);
  const [y0, y1] = range(kept, lines ? 0.06 : 0.16);
  const X = (v) => box.left + ((v - x0) / (x1 - x0)) * (box.width - box.left - box.right);
  const Y = (v) => box.height - box.bottom - ((warp(v) - y0) / (y1 - y0)) * (box.height - box.top - box.bottom);
  for (const t of log ? logTicks(Math.exp(y0), Math.exp(y1)) : ticks(y0, y1, 6)) {
    el("line", { x1: box.left, x2: box.width - box.right, y1: Y(t), y2: Y(t), class: "rule" }, svg);
    el("text", { x: box.left - 7, y: Y(t) + 4, "text-anchor": "end" }, svg, short(t));
  }
  for (const t of ticks(x0, x1, 6)) {
    el("line", { x1: X(t), x2: X(t), y1: box.height - box.bottom, y2: box.height - box.bottom + 4, class: "axis" }, svg);
    el("text", { x: X(t), y: box.height - box.bottom + 18, "text-anchor": "middle" }, svg, short(t));
  }
  el("line", { x1: box.left, x2: box.width - box.right, y1: box.height - box.bottom, y2: box.height - box.bottom, class: "axis" }, svg);
  el("text", { x: (box.left + box.width - box.right) / 2, y: box.height - 6, "text-anchor": "middle" }, svg, xlabel);
  el("text", { transform: `translate(12 ${(box.height - box.bottom) / 2 + 8}) rotate(-90)`, "text-anchor": "middle" }, svg, ylabel);
  const clip = el("clipPath", { id: `clip-${id}` }, svg);
  el("rect", { x: box.left - 8, y: box.top, width: box.width - box.left, height: box.height - box.bottom - box.top + 6 }, clip);
  const plot = el("g", { "clip-path": `url(#clip-${id})` }, svg);
  for (const s of visible) drawSeries(plot, s, X, Y, lines);
  const inside = visible.map((s) => ({ ...s, points: s.points.filter((p) => warp(p.y) <= y1) }));
  if (!lines) labelPoints(svg, inside, X, Y, box);
  if (above.length) {
    const names = above.map(([s, p]) => `${s.model.label} ${digits(p.y, 3)}`).join(", ");
    el("text", { x: box.width - box.right, y: 11, "text-anchor": "end", class: "above" }, svg, `above: ${names}`);
  }
  hoverNearest(svg, inside, X, Y, describe, box);
}

function drawSeries(svg, s, X, Y, lines) {
  const i = models.indexOf(s.model), color = `var(--model-${i})`;
  const path = (points) => points.map((p, k) => `${k ? "L" : "M"}${X(p.x).toFixed(1)},${Y(p.y).toFixed(1)}`).join("");
  const group = el("g", { "data-model": s.model.label }, svg);
  if (s.faint) el("path", { d: path(s.faint), fill: "none", "stroke-width": 1, opacity: 0.4, style: `stroke:${color}` }, group);
  if (lines) el("path", { d: path(s.points), fill: "none", "stroke-width": 2, "stroke-dasharray": s.model.dash || "none", style: `stroke:${color}` }, group);
  for (const p of s.points) {
    if (p.low != null) el("line", { x1: X(p.x), x2: X(p.x), y1: Y(p.low), y2: Y(p.high), "stroke-width": 1.5, style: `stroke:${color}` }, group);
    const size = lines ? (s.points.length > 25 ? 0.6 : 0.9) : 1.7;
    el("path", { d: MARKS[s.model.marker], transform: `translate(${X(p.x)} ${Y(p.y)}) scale(${size})`, style: `fill:${color};stroke:var(--card)`, "stroke-width": 0.8 }, group);
  }
}

/* Label points if there is room; otherwise the tooltip has the name. */
function labelPoints(svg, series, X, Y, box) {
  const points = series.flatMap((s) => s.points.map((p) => ({ name: s.model.label, x: X(p.x), y: Y(p.y) })));
  const taken = points.map(({ x, y }) => ({ left: x - 8, right: x + 8, top: y - 8, bottom: y + 8 }));
  const isFree = (a) => a.left >= box.left && a.right <= box.width && a.top >= 0 && a.bottom <= box.height - box.bottom
    && !taken.some((b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom);
  for (const { name, x, y } of points) {
    const text = el("text", { class: "strong" }, svg, name), width = text.getComputedTextLength();
    const spots = [-7, 4, 17, -14, 23, -28, 37].flatMap((dy) => [11, -11 - width, -width / 2].map((dx) => [x + dx, y + dy]));
    const boxOf = ([left, base]) => ({ left, right: left + width, top: base - 11, bottom: base + 3 });
    const spot = spots.find((place) => isFree(boxOf(place)));
    if (!spot) { text.remove(); continue; }
    taken.push(boxOf(spot));
    text.setAttribute("x", spot[0]);
    text.setAttribute("y", spot[1]);
  }
}

function range(values, margin) {
  const low = Math.min(...values), high = Math.max(...values), pad = (high - low || Math.abs(high) || 1) * margin;
  return [low - pad, high + pad];
}

function hoverNearest(svg, series, X, Y, describe, box) {
  const ring = el("circle", { r: 8, fill: "none", "stroke-width": 2, style: "stroke:var(--accent)", visibility: "hidden" }, svg);
  const pick = (event) => {
    const frame = svg.getBoundingClientRect(), k = box.width / frame.width;
    const x = (event.clientX - frame.left) * k, y = (event.clientY - frame.top) * k;
    let best = null, nearest = 44;
    for (const s of series) for (const p of s.points) {
      const gap = Math.hypot(X(p.x) - x, Y(p.y) - y);
      if (gap < nearest) [nearest, best] = [gap, [s, p]];
    }
    ring.setAttribute("visibility", best ? "visible" : "hidden");
    if (!best) return hideTip(event);
    ring.setAttribute("cx", X(best[1].x));
    ring.setAttribute("cy", Y(best[1].y));
    showTip(event, best[0].model.label, describe(best[1], best[0].model));
  };
  svg.addEventListener("pointermove", pick);
  svg.addEventListener("pointerdown", pick);
  svg.addEventListener("pointerleave", (event) => { ring.setAttribute("visibility", "hidden"); hideTip(event); });
}

function drawTraining() {
  const valid = (m, x, y) => m.curve.filter((p) => p.valid_loss != null).map((p) => ({ x: x(p), y: y(p.valid_loss), point: p }));
  const longest = Math.max(0, ...shown().flatMap((m) => m.curve.map((p) => p.seconds)));
  const [unit, seconds] = longest < 900 ? ["seconds", 1] : longest < 3 * 3600 ? ["minutes", 60] : ["hours", 3600];
  const [counted, size] = models.some((m) => m.params >= 1e6) ? ["millions", 1e6] : ["thousands", 1e3];
  drawPoints("curves", {
    name: "Learning curves", xlabel: "update", ylabel: "loss (nats per word)", lines: true,
    series: models.map((model) => ({
      model, points: valid(model, (p) => p.update, (v) => v),
      faint: view.training ? model.curve.filter((p) => p.loss != null).map((p) => ({ x: p.update, y: p.loss })) : [],
    })),
    describe: (p) => [`update ${count(p.x)}`, `validation loss ${p.y.toFixed(3)} nats`, `perplexity ${Math.exp(p.y).toFixed(2)}`],
  });
  drawPoints("time", {
    name: "Validation perplexity against training time", xlabel: `${unit} of training`, ylabel: "validation perplexity", lines: true, log: true,
    series: models.map((model) => ({ model, points: valid(model, (p) => p.seconds / seconds, Math.exp) })),
    describe: (p) => [`${p.x.toFixed(1)} ${unit}, update ${count(p.point.update)}`, `perplexity ${p.y.toFixed(2)}`],
  });
  drawPoints("params", {
    name: "Parameters against perplexity", xlabel: `parameters (${counted})`, ylabel: study.headline, log: true,
    series: models.map((model) => ({
      model, points: model.perplexity == null ? [] : [{ x: model.params / size, y: model.perplexity, low: model.low, high: model.high }],
    })),
    describe: (p, model) => [`${count(model.params)} parameters`, `${study.headline} ${p.y.toFixed(2)}${p.low != null ? `, ${p.low.toFixed(2)} to ${p.high.toFixed(2)}` : ""}`],
  });
}

/* ---- legend, controls, table ---- */

function buildLegend() {
  const legend = document.getElementById("legend");
  const hint = document.createElement("span");
  hint.className = "hint";
  hint.textContent = "click to hide:";
  legend.append(hint);
  models.forEach((m, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.model = m.label;
    const svg = el("svg", { viewBox: "0 0 50 16", "aria-hidden": "true" });
    el("rect", { width: 22, height: 16, rx: 4, fill: `url(#fill-${i})` }, svg);
    el("path", { d: "M26,8 h24", "stroke-width": 2, "stroke-dasharray": m.dash || "none", style: `stroke:var(--model-${i})` }, svg);
    el("path", { d: MARKS[m.marker], transform: "translate(38 8)", style: `fill:var(--model-${i});stroke:var(--card)`, "stroke-width": 0.8 }, svg);
    button.append(svg, m.label);
    button.addEventListener("click", () => {
      if (!hidden.delete(m.label)) hidden.add(m.label);
      changeView();
    });
    legend.append(button);
  });
  const all = document.createElement("button");
  all.type = "button";
  all.className = "all";
  all.addEventListener("click", () => {
    if (hidden.size) hidden.clear();
    else models.forEach((m) => hidden.add(m.label));
    changeView();
  });
  legend.append(all);
}

/* Hidden models are part of the URL, so that a view can be shared: report.html#hide=SM&hide=BPE */
function changeView() {
  draw();
  history.replaceState(null, "", "#" + new URLSearchParams([...hidden].map((label) => ["hide", label])));
}

function buildControls() {
  const choice = (id, title, options) => {
    const set = document.createElement("fieldset");
    const name = document.createElement("legend");
    name.textContent = title;
    set.append(name);
    options.forEach(([text, isOn, choose]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", () => { choose(); draw(); });
      button.isOn = isOn;
      set.append(button);
    });
    document.getElementById(id).append(set);
  };
  choice("bin-controls", "source", study.bins.word.map((s, i) => [s.name, () => view.source === i, () => { view.source = i; }]));
  if (study.reference) choice("bin-controls", "show", [
    ["loss", () => !view.difference, () => { view.difference = false; }],
    [`difference from ${study.reference}`, () => view.difference, () => { view.difference = true; }],
  ]);
  choice("training-controls", "training loss", [
    ["shown", () => view.training, () => { view.training = true; }],
    ["hidden", () => !view.training, () => { view.training = false; }],
  ]);
}

function sortTable(table, header) {
  const column = +header.dataset.column, body = table.tBodies[0];
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => {
    const cell = row.querySelector(`[data-column="${column}"]`);
    return cell ? cell.dataset.value : "";
  };
  const number = (value) => Number(value.split(" to ")[0]);  // the lower end of an interval
  const compare = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    const difference = number(x) - number(y);
    const order = isNaN(difference) ? x.localeCompare(y) : difference;
    return down ? -order : order;
  };
  body.append(...[...body.rows].sort(compare));
}

function draw() {
  drawBars("word-bins", "word");
  drawBars("previous-bins", "previous");
  drawTraining();
  document.querySelector("#legend .all").textContent = hidden.size ? "show all" : "hide all";
  for (const button of document.querySelectorAll("#legend button[data-model]"))
    button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.model)));
  for (const button of document.querySelectorAll(".controls button")) button.setAttribute("aria-pressed", String(button.isOn()));
  for (const part of document.querySelectorAll("[data-row]")) part.classList.toggle("hidden-model", hidden.has(part.dataset.row));
}

function start() {
  definePatterns();
  buildLegend();
  buildControls();
  const toHide = new URLSearchParams(location.hash.slice(1)).getAll("hide");
  for (const m of models) if (toHide.includes(m.label)) hidden.add(m.label);
  draw();
  for (const table of document.querySelectorAll("table.comparison"))
    for (const header of table.querySelectorAll("th[data-column]:not([scope=row])")) header.firstChild.addEventListener("click", () => sortTable(table, header));
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.addEventListener("pointerdown", () => { tip.hidden = true; }, { capture: true });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  addEventListener("beforeprint", () => document.querySelectorAll("details.data").forEach((d) => { d.open = true; }));
  document.documentElement.dataset.ready = "true";
}

start();
