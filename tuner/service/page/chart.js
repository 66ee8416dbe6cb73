// Line charts as SVG with logarithmic or linear axes.

import { element, shape } from "./dom.js";
import { COLOURS, swatch } from "./picture.js";

const WIDTH = 640, HEIGHT = 360, LEFT = 64, RIGHT = 28, TOP = 12, BOTTOM = 44;

function scale(values, low, high, logarithmic, base = 10) {
  const place = logarithmic ? Math.log : (value) => value;
  let [first, last] = [Math.min(...values), Math.max(...values)];
  if (first === last) [first, last] = logarithmic ? [first / 2, last * 2] : [first - 1, last + 1];
  const [start, span] = [place(first), place(last) - place(first)];
  const at = (value) => low + ((place(value) - start) / span) * (high - low);
  return { at, ticks: logarithmic ? powers(first, last, base) : steps(first, last) };
}

function powers(first, last, base) {
  if (base === 10 && last / first < 30) base = 2;
  const found = [];
  for (let power = Math.ceil(Math.log(first) / Math.log(base) - 1e-9); base ** power <= last * 1.000001; power += 1) found.push(base ** power);
  const skip = Math.ceil(found.length / 8);
  return found.filter((_, index) => index % skip === 0);
}

function steps(first, last) {
  const rough = (last - first) / 5, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
  const found = [];
  for (let value = Math.ceil(first / step) * step; value <= last; value += step) found.push(value);
  return found;
}

// series: [{name, points: [[x, y]…], stepped?}]; axes: {x: {label, text, log}, y: {…}}
export function chart(title, series, axes) {
  const drawn = series.filter((one) => one.points.length);
  const points = drawn.flatMap((one) => one.points);
  if (!points.length) return element("p", { class: "hint" }, "Nothing to draw yet.");
  const x = scale(points.map(([value]) => value), LEFT, WIDTH - RIGHT, axes.x.log, axes.x.base);
  const y = scale(points.map(([, value]) => value), HEIGHT - BOTTOM, TOP, axes.y.log, axes.y.base);
  const grid = [
    ...x.ticks.map((tick) => shape("g", {}, line(x.at(tick), TOP, x.at(tick), HEIGHT - BOTTOM), text(x.at(tick), HEIGHT - BOTTOM + 16, axes.x.text(tick), "middle"))),
    ...y.ticks.map((tick) => shape("g", {}, line(LEFT, y.at(tick), WIDTH - RIGHT, y.at(tick)), text(LEFT - 6, y.at(tick) + 4, axes.y.text(tick), "end"))),
    text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, axes.x.label, "middle"),
    shape("text", { transform: `translate(14 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, axes.y.label),
  ];
  const lines = drawn.map((one, index) => {
    const colour = COLOURS[index % COLOURS.length];
    const path = one.points.map(([px, py]) => `${x.at(px)},${y.at(py)}`).join(" ");
    const dots = one.points.map(([px, py]) =>
      shape("circle", { cx: x.at(px), cy: y.at(py), r: 3.5, fill: colour }, shape("title", {}, `${one.name}: ${axes.x.text(px)}, ${axes.y.text(py)}`)));
    return shape("g", {}, shape("polyline", { points: path, fill: "none", stroke: colour, "stroke-width": 2 }), dots);
  });
  const legend = drawn.map((one, index) => element("li", {}, swatch(COLOURS[index % COLOURS.length]), one.name));
  const image = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title, class: "chart" }, grid, lines);
  return element("figure", {}, element("figcaption", {}, title), image, element("ul", { class: "legend" }, legend));
}

function line(x1, y1, x2, y2) {
  return shape("line", { x1, y1, x2, y2, class: "axis" });
}

function text(x, y, words, anchor) {
  return shape("text", { x, y, "text-anchor": anchor }, words);
}
