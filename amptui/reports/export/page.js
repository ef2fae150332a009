// Draws each chart from the numbers in its figure, and reads out what all charts hold at the step pointed at.
"use strict";
const WIDTH = 1000; // of a drawing in its own units: it is stretched, labels are not
const MARGIN = 8; // half a label
const TOLERANCE = 1e-9; // a value is not outside for a rounding error

const svg = (name, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const strip = (kind, height, ...children) =>
  svg("svg", { class: kind, height, "aria-hidden": true }, ...children);
const stretched = (height, ...children) =>
  svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", height }, ...children);
const percent = (share) => `${(100 * share).toFixed(2)}%`;
const text = (words, share, y, kind = "") => svg("text", { x: percent(share), y, class: kind }, words);
const clamp = (share) => Math.max(0, Math.min(1, share));
const distinct = (shares) => [...new Set(shares.map((share) => Math.round(1000 * share) / 1000))];

// Columns with a value, parted where the line has a gap.
const runs = (columns, name, joins) => {
  const parts = [];
  for (const column of columns.filter((column) => column[name] !== null)) {
    const last = parts.at(-1)?.at(-1);
    const isNear = column.index - last?.index === 1;
    const isJoined = joins === "all" || column.part === last?.part;
    if (last && (isNear || isJoined)) parts.at(-1).push(column);
    else parts.push([column]);
  }
  return parts;
};

// What a curve is drawn of, and where on the axis it leaves the chart or is no number.
const shapesOf = (curve, joins, { id, parts, shareOf, rise, y }) => {
  const { colour, first, width, mean, line: drawn = mean, low = mean, high = mean, nonfinite } = curve;
  const columns = mean.map((value, index) => {
    const share = shareOf(first + (index + 0.5) * width);
    const part = colour || parts.findLast(({ begin }) => begin <= share);
    return { index, share, part, mean: value, drawn: drawn[index], low: low[index], high: high[index] };
  });
  const paint = colour ? "var(--c)" : `url(#${id})`;
  const place = (name) => (column) => `${(WIDTH * column.share).toFixed(1)} ${y(column[name]).toFixed(1)}`;
  const bands = (low === mean ? [] : runs(columns, "low", joins)).map((run) => {
    const outline = [...run.map(place("high")), ...run.map(place("low")).reverse()];
    return svg("path", { d: `M${outline.join("L")}Z`, fill: paint, class: `band ${colour}` });
  });
  const lines = runs(columns, "drawn", joins).map((run) => {
    const d = `M${run.map(place("drawn")).join("L")}h.1`; // so that a single point is seen, too
    return svg("path", { d, fill: "none", stroke: paint, class: `line ${colour}` });
  });
  const shares = (isMarked) => columns.filter(isMarked).map(({ share }) => share);
  // Where more than a quarter of the columns reach beyond the axis, those whose mean does.
  const beyond = (name, isOutside) => {
    const found = shares((column) => column[name] !== null && isOutside(rise(column[name])));
    return name === "mean" || found.length <= columns.length / 4 ? found : beyond("mean", isOutside);
  };
  return {
    bands,
    lines,
    above: beyond("high", (rise) => rise > 1 + TOLERANCE),
    below: beyond("low", (rise) => rise < -TOLERANCE),
    bad: shares(({ index }) => nonfinite.includes(index)),
  };
};

const draw = (figure, axis, id) => {
  const chart = JSON.parse(figure.dataset.chart);
  const { height, joins } = chart;
  const scale = (value) => (!chart.logarithmic ? value : value > 0 ? Math.log(value) : -Infinity);
  const rise = (value) => (scale(value) - scale(chart.low)) / (scale(chart.high) - scale(chart.low));
  const y = (value) => MARGIN + (1 - clamp(rise(value))) * (height - 2 * MARGIN);
  const shareOf = (step) => (step - axis.first) / axis.count;
  const parts = [[axis.first, "other", ""], ...axis.switches].map(([step, colour, letter], index) => {
    const [begin, end] = [step, axis.switches[index]?.[0] ?? axis.first + axis.count].map(shareOf).map(clamp);
    return { begin, end, colour, letter };
  });
  const stops = parts.flatMap(({ begin, end, colour }) =>
    [begin, end].map((offset) => svg("stop", { offset, class: colour })));
  const gradient = svg("linearGradient", { id, gradientUnits: "userSpaceOnUse", x2: WIDTH }, ...stops);
  const shapes = chart.curves.map((curve) => shapesOf(curve, joins, { id, parts, shareOf, rise, y }));
  const all = (name) => shapes.flatMap((shape) => shape[name]);
  const marks = (sign, kind, shares, top) => distinct(shares).map((share) => text(sign, share, top, kind));
  const arrows = [...marks("↑", "beyond", all("above"), 12), ...marks("↓", "beyond", all("below"), "100%")];
  const crosses = [
    ...marks("×", "skip", chart.skips.map(shareOf), 10),
    ...marks("×", "nonfinite", all("bad"), 10),
  ];
  const dots = chart.points
    .filter(([, value]) => Math.abs(rise(value) - 0.5) <= 0.5 + TOLERANCE)
    .map(([step, value, words]) => {
      const place = { cx: percent(shareOf(step + 0.5)), cy: y(value), r: 3, class: "dot" };
      return svg("circle", place, svg("title", {}, words));
    });
  const heights = chart.ticks.map(([value, words]) => [y(value), words]);
  const grid = heights.map(([height]) => svg("line", { x2: "100%", y1: height, y2: height, class: "grid" }));
  const cursor = svg("line", { y2: "100%", class: "cursor", visibility: "hidden" });
  const drawing = stretched(height, gradient, ...all("bands"), ...all("lines"));
  const about = { class: "area", height, role: "img", "aria-label": chart.title };
  const area = svg("svg", about, ...grid, drawing, ...dots, ...arrows, cursor);

  const plot = figure.querySelector(".plot");
  plot.append(strip("values", height, ...heights.map(([height, words]) => text(words, 1, height + 4))), area);
  if (crosses.length) plot.append(strip("marks", 12, ...crosses));
  if (axis.switches.length) {
    const wide = parts.filter(({ begin, end }) => end - begin >= 0.035); // room for a letter, even on a phone
    const letters = wide.map(({ begin, end, letter }) => text(letter, (begin + end) / 2, 12));
    const colours = stretched(16, svg("rect", { width: WIDTH, height: 16, fill: `url(#${id})` }));
    plot.append(strip("ribbon", 16, colours, ...letters));
  }
  const anchors = { 0: "first", 1: "last" };
  const labels = axis.labels.map(([share, words]) => text(words, share, 13, anchors[share]));
  plot.append(strip("steps", 18, ...labels));
  if (arrows.length) figure.querySelector(".outside").textContent = " Arrows: values beyond the axis.";
  const readout = figure.querySelector("output");
  return { ...chart, area, cursor, readout, newest: readout?.textContent };
};

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
  if (away(at) > Math.max(1, mean.length >> 3)) return `${name} n/a`.trim();
  const range = low && low[at] !== high[at] ? `(${number(low[at])} to ${number(high[at])})` : "";
  const value = mean[at] === null ? [] : [number(mean[at]), range, unit];
  return [name, ...value, nonfinite.includes(at) ? "NaN or Inf" : ""].filter(Boolean).join(" ");
};

// Each optimizer of a run counts its own steps: its charts have an axis in common.
JSON.parse(document.querySelector("main").dataset.axes).forEach((axis, number) => {
  const figures = [...document.querySelectorAll(`[data-axis="${number}"]`)];
  const drawn = figures.map((figure, place) => draw(figure, axis, `colours-${number}-${place}`));
  const charts = drawn.filter(({ readout }) => readout);
  const follow = ({ currentTarget, clientX }) => {
    const box = currentTarget.getBoundingClientRect();
    const share = clamp((clientX - box.left) / box.width);
    const step = axis.first + Math.min(axis.count - 1, Math.floor(share * axis.count));
    const precision = axis.switches.findLast(([begin]) => begin <= step)?.[3] ?? "";
    for (const { curves, unit, readout, cursor } of charts) {
      const values = curves.map((curve) => valueOf(curve, step, unit)).join(" · ");
      readout.textContent = `step ${step.toLocaleString("en-US")} ${precision}: ${values}`;
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, percent(share));
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
    for (const kind of ["pointermove", "pointerdown"]) area.addEventListener(kind, follow);
    area.addEventListener("pointerleave", leave);
  }
});
