// Networks as SVG: nodes, connections with a load, and a root's tree.

import { element, shape } from "./dom.js";

export const COLOURS = ["#1f77b4", "#e0740c", "#2a9134", "#c72c2c", "#8052b0", "#8a5a44", "#c74fa3", "#6d6d6d", "#8f9000", "#0f9fb0"];

const UNIT = 40; // units of the drawing between neighbours
const INSIDE = 4; // letters that fit into a node; longer names are written below it

export function heat(share) {
  const hue = 210 - 200 * share;
  return `hsl(${hue} 75% ${62 - 17 * share}%)`;
}

function box(nodes) {
  const xs = nodes.map((node) => node.x), ys = nodes.map((node) => -node.y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)], [top, bottom] = [Math.min(...ys), Math.max(...ys)];
  const margin = 0.7 * UNIT;
  return [left - margin, top - margin, right - left + 2 * margin, bottom - top + 2 * margin];
}

// A connection bends to its right, so that both directions are visible. A long one bends around the nodes in between,
// at most halfway to the next row.
function bent(from, to, bend) {
  const [x1, y1, x2, y2] = [from.x, -from.y, to.x, -to.y], length = Math.hypot(x2 - x1, y2 - y1);
  const aside = length > 1.5 * UNIT ? Math.min(1.8 * bend, UNIT / length) : bend;
  const mx = (x1 + x2) / 2 - (y2 - y1) * aside, my = (y1 + y2) / 2 + (x2 - x1) * aside;
  return `M${x1} ${y1}Q${mx} ${my} ${x2} ${y2}`;
}

function markOf(node, room, extra) {
  const able = node.able ? `, can ${node.able}` : "";
  const body = { cx: node.x, cy: -node.y, r: 0.24 * UNIT, class: [node.kind, node.able ? "able" : "", extra].join(" ").trim() };
  return shape("g", {}, shape("circle", body), labelOf(node, room), shape("title", {}, `${node.kind} ${node.id}${able}`));
}

// Short names are written in the node, longer ones below it, as large as the `room` to the row's next node allows.
function labelOf(node, room) {
  const isInside = node.id.length <= INSIDE;
  const size = Math.min(0.26 * UNIT, (isInside ? 0.65 * UNIT : 1.5 * room) / node.id.length);
  const below = isInside ? 0 : 0.24 * UNIT + 0.65 * size;
  return shape("text", { class: isInside ? "name" : "name outside", x: node.x, y: -node.y + below, "font-size": size }, node.id);
}

// For each node, the distance to the nearest other node in its row.
function roomsOf(nodes) {
  const rows = Map.groupBy(nodes, (node) => Math.round(node.y));
  return nodes.map((node) => Math.min(4 * UNIT, ...rows.get(Math.round(node.y)).filter((other) => other !== node).map((other) => Math.abs(other.x - node.x))));
}

// lines: [{src, dst, colour, width, title}]; marked: a class for each node by number, or none. Returns the
// picture, and a function that changes the lines' colours, widths and titles.
function drawing(picture, caption, lines, marked = () => "", bend = 0.09) {
  const nodes = picture.nodes.map((node) => ({ ...node, x: UNIT * node.x, y: UNIT * node.y }));
  const paths = lines.map((line) => shape("path", { d: bent(nodes[line.src], nodes[line.dst], bend), fill: "none" }, shape("title", {})));
  const paint = (changed) => changed.forEach((line, index) => {
    const path = paths[index];
    path.setAttribute("stroke", line.colour);
    path.setAttribute("stroke-width", line.width * UNIT);
    path.firstChild.textContent = line.title;
  });
  paint(lines);
  const rooms = roomsOf(nodes), marks = nodes.map((node, index) => markOf(node, rooms[index], marked(index)));
  const image = shape("svg", { viewBox: box(nodes).join(" "), role: "img", "aria-label": caption, class: "fabric" }, paths, marks);
  return { image, paint };
}

function figure(caption, image, legend) {
  return element("figure", {}, element("figcaption", {}, caption), image, legend.length ? element("ul", { class: "legend" }, legend) : null);
}

const told = (value) => Number(value.toPrecision(4));

function ends(picture, line) {
  return `${picture.nodes[line.src].id} to ${picture.nodes[line.dst].id}`;
}

export function network(picture, unit, marked) {
  const widest = Math.max(...picture.connections.map((line) => line.bandwidth));
  const lines = picture.connections.map((line) => ({
    ...line, colour: "var(--wire)", width: 0.02 + 0.05 * (line.bandwidth / widest), title: `${ends(picture, line)}: bandwidth ${told(line.bandwidth)} ${unit}`,
  }));
  const caption = `${picture.nodes.length} nodes, ${picture.connections.length} connections; thicker ones have more bandwidth`;
  const kinds = [["compute", "rank"], picture.nodes.some((node) => node.kind === "switch") && ["switch", "switch"],
    picture.nodes.some((node) => node.able) && ["switch able", "switch that adds or multicasts"], marked && ["compute cut", "inside the cut"]].filter(Boolean);
  const legend = kinds.length > 1 ? kinds.map(([kind, text]) => element("li", {}, dot(kind), text)) : [];
  return figure(caption, drawing(picture, caption, lines, marked).image, legend);
}

function dot(kind) {
  return shape("svg", { viewBox: "-7 -7 14 14", class: "dot", "aria-hidden": "true" }, shape("circle", { r: 5, class: kind }));
}

// Loads of the complete collective or of one step, whose shares are relative to the busiest connection in any step.
export function loads(picture) {
  const linesOf = (step) => {
    const rows = step === null ? picture.connections.map((line) => [line.load, line.share]) : loadsOfStep(picture, step);
    return picture.connections.map((line, index) => {
      const [load, share] = rows[index];
      const title = `${ends(picture, line)}: ${told(load)} shards over bandwidth ${told(line.bandwidth)}, ${Math.round(100 * share)} % of the busiest`;
      return { ...line, colour: load ? heat(share) : "var(--wire)", width: load ? 0.03 + 0.05 * share : 0.012, title };
    });
  };
  const { image, paint } = drawing(picture, "", linesOf(null));
  const scale = [0, 0.25, 0.5, 0.75, 1].map((share) => element("li", {}, swatch(heat(share)), `${100 * share} %`));
  return stepped(image, scale, (step) => {
    paint(linesOf(step));
    return step === null ? "Load of each connection, relative to the busiest one" : `Load of each connection in step ${step + 1} of ${picture.steps.length}, relative to the busiest in any step`;
  });
}

// A figure whose caption and lines change with the step.
function stepped(image, legend, paint) {
  const view = figure("", image, legend), caption = view.querySelector("figcaption");
  const show = (step) => {
    caption.textContent = paint(step);
    image.setAttribute("aria-label", caption.textContent);
  };
  return { view, show };
}

function loadsOfStep(picture, step) {
  const busy = (entries) => entries.map(([row, load]) => load / picture.connections[row].bandwidth);
  picture.busiest ??= Math.max(...picture.steps.flatMap(busy));
  const rows = picture.connections.map(() => [0, 0]);
  for (const [row, load] of picture.steps[step]) rows[row] = [load, load / picture.connections[row].bandwidth / picture.busiest];
  return rows;
}

export function stepSummary(picture, step) {
  const entries = picture.steps[step];
  const most = Math.max(0, ...entries.map(([, load]) => load));
  return `Step ${step + 1} of ${picture.steps.length}: ${entries.length} of ${picture.connections.length} connections carry data, at most ${told(most)} shards each.`;
}

export function tree(picture) {
  const steps = [...new Set(picture.tree.map((edge) => edge.step))].sort((a, b) => a - b);
  const colour = (step) => stepColour(steps.indexOf(step), steps.length);
  const linesOf = (until) => picture.tree.map((edge) => ({
    ...edge, colour: colour(edge.step), width: until === null || edge.step <= until ? 0.06 : 0.012, title: `step ${edge.step + 1}: ${ends(picture, edge)}`,
  }));
  const { image, paint } = drawing(picture, "", linesOf(null), (node) => (node === picture.root ? "root" : ""), 0.12);
  const labelled = steps.length > COLOURS.length ? steps.filter((_, index) => index % Math.ceil(steps.length / 6) === 0 || index === steps.length - 1) : steps;
  const legend = labelled.map((step) => element("li", {}, swatch(colour(step)), `step ${step + 1}`));
  return stepped(image, legend, (step) => {
    paint(linesOf(step));
    return `The route of the data of rank ${picture.root}, by step${picture.nodes.some((node) => node.kind === "switch") ? ", through switches" : ""}`;
  });
}

// If there are few steps, each has a distinct colour; many steps go from violet to red.
function stepColour(index, count) {
  return count <= COLOURS.length ? COLOURS[index] : `hsl(${270 - (270 * index) / (count - 1)} 70% 45%)`;
}

export function loadRows(picture) {
  return picture.connections.map((line) => ({ name: ends(picture, line), bandwidth: line.bandwidth, load: line.load, share: line.share }));
}

function swatch(colour) {
  return shape("svg", { viewBox: "0 0 14 4", width: 14, height: 4, class: "swatch", "aria-hidden": "true" }, shape("rect", { width: 14, height: 4, fill: colour }));
}
