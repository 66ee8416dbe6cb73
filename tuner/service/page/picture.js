// Networks as SVG: nodes, connections with a state or a load, the tree of a root.

import { element, shape } from "./dom.js";

export const COLOURS = ["#1f77b4", "#e0740c", "#2a9134", "#c72c2c", "#8052b0", "#8a5a44", "#c74fa3", "#6d6d6d", "#8f9000", "#0f9fb0"];

const UNIT = 40; // pixels between neighbours

export function heat(share) {
  const hue = 210 - 200 * share;
  return `hsl(${hue} 75% ${62 - 17 * share}%)`;
}

function box(nodes) {
  const xs = nodes.map((node) => node.x), ys = nodes.map((node) => node.y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)], [low, high] = [Math.min(...ys), Math.max(...ys)];
  const margin = 0.7 * UNIT;
  return `${left - margin} ${-high - margin} ${right - left + 2 * margin} ${high - low + 2 * margin}`;
}

// A connection bends to its right, so that both directions are seen.
function bent(from, to, bend) {
  const [x1, y1, x2, y2] = [from.x, -from.y, to.x, -to.y];
  if (Math.hypot(x2 - x1, y2 - y1) > 1.5 * UNIT) bend *= 1.8; // past the nodes between
  const mx = (x1 + x2) / 2 - (y2 - y1) * bend, my = (y1 + y2) / 2 + (x2 - x1) * bend;
  return `M${x1} ${y1}Q${mx} ${my} ${x2} ${y2}`;
}

function markOf(node, labelled, extra) {
  const size = Math.min(0.26 * UNIT, (0.75 * UNIT) / node.id.length);
  const label = labelled ? shape("text", { class: "name", x: node.x, y: -node.y, "font-size": size }, node.id) : null;
  const able = node.able ? `, can ${node.able}` : "";
  const body = { cx: node.x, cy: -node.y, r: 0.24 * UNIT, class: [node.kind, node.able ? "able" : "", extra].join(" ").trim() };
  return shape("g", {}, shape("circle", body), label, shape("title", {}, `${node.kind} ${node.id}${able}`));
}

// lines: [{src, dst, colour, width, title, dashed?}]; marked: a class for each node by number, or none
export function drawing(picture, caption, lines, marked = () => "", bend = 0.09) {
  const nodes = picture.nodes.map((node) => ({ ...node, x: UNIT * node.x, y: UNIT * node.y }));
  const paths = lines.map((line) => {
    const path = { d: bent(nodes[line.src], nodes[line.dst], bend), fill: "none", stroke: line.colour, "stroke-width": line.width * UNIT, "stroke-dasharray": line.dashed ? "4 4" : null };
    return shape("path", path, shape("title", {}, line.title));
  });
  const marks = nodes.map((node, index) => markOf(node, nodes.length <= 64, marked(index)));
  return shape("svg", { viewBox: box(nodes), role: "img", "aria-label": caption, class: "fabric" }, paths, marks);
}

export function figure(caption, image, legend = []) {
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
  return figure(caption, drawing(picture, caption, lines, marked));
}

// Loads of the whole collective, or of one step: then the share is that of the busiest connection in any step.
export function loads(picture, step) {
  const rows = step === null ? picture.connections.map((line) => [line.load, line.share]) : loadsOfStep(picture, step);
  const lines = picture.connections.map((line, index) => {
    const [load, share] = rows[index];
    const title = `${ends(picture, line)}: ${told(load)} shards over bandwidth ${told(line.bandwidth)}, ${Math.round(100 * share)} % of the busiest`;
    return { ...line, colour: load ? heat(share) : "var(--wire)", width: load ? 0.03 + 0.05 * share : 0.012, title };
  });
  const caption = step === null ? "Load of each connection: blue is idle, red the busiest" : `Load of each connection in step ${step + 1} of ${picture.steps.length}`;
  return figure(caption, drawing(picture, caption, lines));
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

export function tree(picture, until) {
  const steps = [...new Set(picture.tree.map((edge) => edge.step))].sort((a, b) => a - b);
  const lines = picture.tree.map((edge) => ({
    ...edge, colour: COLOURS[steps.indexOf(edge.step) % COLOURS.length], width: until === null || edge.step <= until ? 0.06 : 0.012,
    title: `step ${edge.step + 1}: ${ends(picture, edge)}`,
  }));
  const caption = `The route of the data of rank ${picture.root}, by step, through switches`;
  const marked = (node) => (node === picture.root ? "root" : "");
  const legend = steps.map((step, index) => element("li", {}, swatch(COLOURS[index % COLOURS.length]), `step ${step + 1}`));
  return figure(caption, drawing(picture, caption, lines, marked, 0.12), legend);
}

export function loadRows(picture) {
  return picture.connections.map((line) => ({ name: ends(picture, line), bandwidth: line.bandwidth, load: line.load, share: line.share }));
}

export function swatch(colour) {
  return shape("svg", { viewBox: "0 0 14 4", width: 14, height: 4, class: "swatch", "aria-hidden": "true" }, shape("rect", { width: 14, height: 4, fill: colour }));
}
