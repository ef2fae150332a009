// Shows what each chart holds at the step that somebody points at. Without it the page only lacks that.
"use strict";
// Each optimizer of a run counts its own steps: the charts of each have an axis in common.
const axes = new Map([...document.querySelectorAll("[data-first]")].map((element) => [element, {
  first: Number(element.dataset.first),
  last: Number(element.dataset.last),
  switches: JSON.parse(element.dataset.switches),
}]));
const charts = [...document.querySelectorAll("figure[data-values]")].map((figure) => {
  const readout = figure.querySelector(".readout");
  return {
    axis: axes.get(figure.closest("[data-first]")),
    area: figure.querySelector(".area"),
    cursor: figure.querySelector(".cursor"),
    readout,
    newest: readout.textContent,
    ...JSON.parse(figure.dataset.values),
  };
});

const number = (value) => {
  if (value === null) return "n/a";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(2);
  return value.toLocaleString("en-US", Number.isInteger(value) ? {} : { maximumSignificantDigits: 4 });
};

const precisionAt = (step, { switches }) => switches.filter(([begin]) => begin <= step).at(-1)?.[1] ?? "";

// A column may hold steps that were not measured: the nearest one that was, within an eighth of the run.
const nearest = (curve, column) => {
  const reach = Math.max(1, curve.mean.length >> 3);
  for (let away = 0; away <= reach; away++) {
    for (const at of [column - away, column + away]) {
      if (curve.nonfinite.includes(at) || (curve.mean[at] ?? null) !== null) return at;
    }
  }
  return column;
};

const valueOf = (curve, step, unit) => {
  const at = nearest(curve, Math.floor((step - curve.first) / curve.width));
  const name = curve.name && curve.name + " ";
  const bad = curve.nonfinite.includes(at) ? " NaN or Inf" : "";
  if ((curve.mean[at] ?? null) === null) return name + (bad.trim() || "n/a");
  const spread = curve.low.length && curve.low[at] !== curve.high[at] ? ` (${number(curve.low[at])} to ${number(curve.high[at])})` : "";
  return `${name}${number(curve.mean[at])}${spread}${unit && " " + unit}${bad}`;
};

const point = (share, axis) => {
  const { first, last } = axis;
  const step = Math.min(last, first + Math.floor(share * (last - first + 1)));
  const where = `step ${step.toLocaleString("en-US")} ${precisionAt(step, axis)}`;
  for (const chart of charts.filter((each) => each.axis === axis)) {
    chart.readout.textContent = `${where}: ${chart.curves.map((c) => valueOf(c, step, chart.unit)).join(" · ")}`;
    const x = `${100 * share}%`;
    chart.cursor.setAttribute("x1", x);
    chart.cursor.setAttribute("x2", x);
    chart.cursor.setAttribute("visibility", "visible");
  }
};

const leave = () => {
  for (const chart of charts) {
    chart.readout.textContent = chart.newest;
    chart.cursor.setAttribute("visibility", "hidden");
  }
};

for (const { area, axis } of charts) {
  const follow = (event) => {
    const box = area.getBoundingClientRect();
    point(Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)), axis);
  };
  area.addEventListener("pointermove", follow);
  area.addEventListener("pointerdown", follow);
  area.addEventListener("pointerleave", leave);
}
