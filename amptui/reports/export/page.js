// Draws each chart from the numbers in its figure, and tells what all charts hold at the step pointed at.
"use strict";
const WIDTH = 1000; // of a drawing in its own units: it is stretched, labels are not
const MARGIN = 8; // half a label
const TOLERANCE = 1e-9; // a value is not outside for a rounding error

const svg = (name, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const percent = (share) => `${(100 * share).toFixed(2)}%`;
const text = (words, share, y, kind = "") => svg("text", { x: percent(share), y, class: kind }, words);
const title = (words) => svg("title", {}, words);
const clamp = (share) => Math.max(0, Math.min(1, share));
const distinct = (shares) => [...new Set(shares.map((share) => Math.round(1000 * share) / 1000))];
const joined = (points) => points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

// The columns of a curve with their places; without a colour of its own it has those of the precisions.
const columnsOf = (curve, axis) => {
  let stretch = 0;
  let before;
  return curve.mean.map((mean, index) => {
    const position = curve.first + (index + 0.5) * curve.width;
    const share = (position - axis.first) / axis.count;
    const precision = axis.switches.findLast(([begin]) => begin <= position);
    const colour = curve.colour || (precision?.[1] ?? "other");
    if (colour !== before) stretch += 1;
    before = colour;
    const [low, high] = curve.low.length ? [curve.low[index], curve.high[index]] : [mean, mean];
    return { index, share, low, mean, high, colour, stretch };
  });
};

// Stretches of one colour; all but the first begin with the column before, so that the line has no gap.
const stretches = (columns, { sparse, gaps }) => {
  const found = [];
  for (const column of columns) {
    const last = found.at(-1)?.at(-1);
    const isApart = last && column.index - last.index > 1;
    if (last?.stretch !== column.stretch || (gaps && isApart)) {
      const goesOn = last && (sparse || !isApart);
      found.push(goesOn ? [last] : []);
    }
    found.at(-1).push(column);
  }
  return found;
};

const draw = (figure, axis) => {
  const chart = JSON.parse(figure.dataset.chart);
  const { height } = chart;
  const scale = (value) => (!chart.logarithmic ? value : value > 0 ? Math.log(value) : -Infinity);
  const rise = (value) => (scale(value) - scale(chart.low)) / (scale(chart.high) - scale(chart.low));
  const y = (value) => MARGIN + (1 - clamp(rise(value))) * (height - 2 * MARGIN);
  const bands = [], lines = [], above = [], below = [], crosses = [];
  for (const curve of chart.curves) {
    const columns = columnsOf(curve, axis);
    const place = (name) => (column) => [WIDTH * column.share, y(column[name])];
    const ranges = columns.filter(({ low }) => low !== null);
    for (const part of curve.low.length ? stretches(ranges, {}) : []) {
      const outline = [...part.map(place("high")), ...part.map(place("low")).reverse()];
      bands.push(svg("path", { d: `M${joined(outline)}Z`, class: `band ${part.at(-1).colour}` }));
    }
    for (const part of stretches(columns.filter(({ mean }) => mean !== null), chart)) {
      const d = `M${joined(part.map(place("mean")))}${part.length > 1 ? "" : "h.1"}`; // one point is seen, too
      const dashes = curve.is_dashed ? "4 4" : "none";
      const attributes = { d, class: `line ${part.at(-1).colour}`, "stroke-dasharray": dashes };
      lines.push(svg("path", attributes, title(curve.name)));
    }
    above.push(...ranges.filter(({ high }) => rise(high) > 1 + TOLERANCE).map(({ share }) => share));
    below.push(...ranges.filter(({ low }) => rise(low) < -TOLERANCE).map(({ share }) => share));
    const bad = distinct(curve.nonfinite.map((index) => columns[index].share));
    crosses.push(...bad.map((share) => text("×", share, 10, "nonfinite")));
  }
  const shares = (steps) => distinct(steps.map((step) => (step - axis.first) / axis.count));
  crosses.unshift(...shares(chart.skips).map((share) => text("×", share, 10, "skip")));
  const dots = chart.points
    .filter(([, value]) => Math.abs(rise(value) - 0.5) <= 0.5 + TOLERANCE)
    .map(([step, value, words]) => {
      const cx = percent((step + 0.5 - axis.first) / axis.count);
      return svg("circle", { cx, cy: y(value), r: 3, class: "dot" }, title(words));
    });
  const arrows = [
    ...distinct(above).map((share) => text("↑", share, 12, "beyond")),
    ...distinct(below).map((share) => text("↓", share, "100%", "beyond")),
  ];
  const grid = chart.ticks.map(([value]) => svg("line", { x2: "100%", y1: y(value), y2: y(value), class: "grid" }));
  const cursor = svg("line", { y2: "100%", class: "cursor", visibility: "hidden" });
  const stretched = { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", height };
  const area = svg(
    "svg", { class: "area", height, role: "img", "aria-label": chart.label },
    ...grid, svg("svg", stretched, ...bands, ...lines), ...dots, ...arrows, cursor,
  );
  const labels = chart.ticks.map(([value, words]) => text(words, 1, y(value) + 4));
  const plot = figure.querySelector(".plot");
  plot.append(svg("svg", { class: "values", height, "aria-hidden": true }, ...labels), area);
  if (crosses.length) plot.append(svg("svg", { class: "marks", height: 12, "aria-hidden": true }, ...crosses));
  if (axis.switches.length) plot.append(ribbon(axis));
  plot.append(stepLabels(axis.labels));
  const signs = [above.length ? "↑" : "", below.length ? "↓" : ""].filter(Boolean).join(" and ");
  if (signs) figure.querySelector(".outside").textContent = ` ${signs}: values beyond the axis.`;
  const readout = figure.querySelector("output");
  return { ...chart, area, cursor, readout, newest: readout?.textContent };
};

// A strip in the colours of the precisions, with letters where there is room even on a phone.
const ribbon = ({ first, count, switches }) => {
  const parts = switches.flatMap(([step, colour, letter, label], index) => {
    const next = switches[index + 1]?.[0] ?? first + count;
    const [begin, end] = [step, next].map((at) => clamp((at - first) / count));
    const size = { x: percent(begin), width: percent(end - begin), height: 16 };
    const part = svg("rect", { ...size, class: colour }, title(`${label} from step ${step.toLocaleString("en-US")}`));
    return end - begin < 0.035 ? [part] : [part, text(letter, (begin + end) / 2, 12)];
  });
  const names = switches.map(([, , , label]) => label).join(", ");
  return svg("svg", { class: "ribbon", height: 16, role: "img", "aria-label": `precisions: ${names}` }, ...parts);
};

const stepLabels = (labels) => {
  const anchors = { 0: "first", 1: "last" };
  const drawn = labels.map(([share, words]) => text(words, share, 13, anchors[share]));
  return svg("svg", { class: "steps", height: 18, "aria-hidden": true }, ...drawn);
};

// A bar per exponent; heights are logarithms: a thousand lost elements among millions stay visible.
for (const plot of document.querySelectorAll("[data-histogram]")) {
  const { bars, labels } = JSON.parse(plot.dataset.histogram);
  const highest = Math.log1p(Math.max(...bars.map(([, count]) => count))) || 1;
  const drawn = bars.map(([kind, count, words], index) => {
    const height = (112 * Math.log1p(count)) / highest;
    const size = { x: percent(index / bars.length), width: percent(0.8 / bars.length), y: 120 - height, height };
    return svg("rect", { ...size, class: kind }, title(words));
  });
  const grid = labels.map(([share]) => svg("line", { x1: percent(share), x2: percent(share), y2: 120, class: "grid" }));
  const label = "counts of scaled gradients by exponent of two, on a logarithmic scale";
  const histogram = svg("svg", { class: "histogram", height: 120, role: "img", "aria-label": label }, ...grid, ...drawn);
  plot.append(histogram, stepLabels(labels));
}

const number = (value) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(2);
  return value.toLocaleString("en-US", Number.isInteger(value) ? {} : { maximumSignificantDigits: 4 });
};

// What a curve holds at a step, or at the nearest that was measured within an eighth of the run.
const valueOf = ({ name, mean, low, high, nonfinite, first, width }, step, unit) => {
  const column = Math.floor((step - first) / width);
  const away = (index) => Math.abs(index - column);
  const measured = [...mean.keys()].filter((index) => mean[index] !== null || nonfinite.includes(index));
  const at = measured.reduce((best, index) => (away(index) < away(best) ? index : best), Infinity);
  const words = [name];
  if (away(at) > Math.max(1, mean.length >> 3)) return [name, "n/a"].filter(Boolean).join(" ");
  if (mean[at] !== null) words.push(number(mean[at]));
  if (low.length && low[at] !== high[at]) words.push(`(${number(low[at])} to ${number(high[at])})`);
  if (mean[at] !== null) words.push(unit);
  if (nonfinite.includes(at)) words.push("NaN or Inf");
  return words.filter(Boolean).join(" ");
};

// Each optimizer of a run counts its own steps: its charts have an axis in common.
for (const element of document.querySelectorAll("[data-axis]")) {
  const axis = JSON.parse(element.dataset.axis);
  const own = [...element.querySelectorAll("[data-chart]")].filter((each) => each.closest("[data-axis]") === element);
  const charts = own.map((figure) => draw(figure, axis)).filter(({ readout }) => readout);
  const follow = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const share = clamp((event.clientX - box.left) / box.width);
    const step = axis.first + Math.min(axis.count - 1, Math.floor(share * axis.count));
    const precision = axis.switches.findLast(([begin]) => begin <= step)?.[3] ?? "";
    for (const { curves, unit, readout, cursor } of charts) {
      const values = curves.map((curve) => valueOf(curve, step, unit)).join(" · ");
      readout.textContent = `step ${step.toLocaleString("en-US")} ${precision}: ${values}`;
      cursor.setAttribute("x1", percent(share));
      cursor.setAttribute("x2", percent(share));
      cursor.setAttribute("visibility", "visible");
    }
  };
  const leave = () => {
    for (const { readout, newest, cursor } of charts) {
      readout.textContent = newest;
      cursor.setAttribute("visibility", "hidden");
    }
  };
  for (const { area } of charts) {
    area.addEventListener("pointermove", follow);
    area.addEventListener("pointerdown", follow);
    area.addEventListener("pointerleave", leave);
  }
}
