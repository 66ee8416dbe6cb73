// The fabric as SVG: how busy every connection is, and the way of one root's data by step.

import { element, shape } from "./dom.js";

const STEPS = ["#1f77b4", "#e0740c", "#2a9134", "#c72c2c", "#8052b0", "#8a5a44", "#c74fa3", "#6d6d6d", "#8f9000", "#0f9fb0"];

function heat(share) {
  const hue = 210 - 200 * share;
  return `hsl(${hue} 75% ${62 - 17 * share}%)`;
}

const UNIT = 40; // pixels between neighbours

function placed(picture) {
  return picture.nodes.map((node) => ({ ...node, x: UNIT * node.x, y: UNIT * node.y }));
}

function bounds(nodes) {
  const xs = nodes.map((node) => node.x), ys = nodes.map((node) => node.y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)], [low, high] = [Math.min(...ys), Math.max(...ys)];
  const margin = 0.7 * UNIT;
  return { left: left - margin, top: -high - margin, width: right - left + 2 * margin, height: high - low + 2 * margin };
}

// A connection bends to its right, so that both directions are seen.
function bent(from, to, bend) {
  const [x1, y1, x2, y2] = [from.x, -from.y, to.x, -to.y];
  if (Math.hypot(x2 - x1, y2 - y1) > 1.5 * UNIT) bend *= 1.8; // past the nodes between
  const mx = (x1 + x2) / 2 - (y2 - y1) * bend, my = (y1 + y2) / 2 + (x2 - x1) * bend;
  return `M${x1} ${y1}Q${mx} ${my} ${x2} ${y2}`;
}

function drawing(nodes, title, paths) {
  const box = bounds(nodes);
  const marks = nodes.map((node) => {
    const size = Math.min(0.26 * UNIT, (0.75 * UNIT) / node.id.length);
    const label = nodes.length <= 64 ? shape("text", { class: "name", x: node.x, y: -node.y, "font-size": size }, node.id) : null;
    const mark = { cx: node.x, cy: -node.y, r: 0.24 * UNIT, class: node.kind };
    return shape("g", {}, shape("circle", mark), label, shape("title", {}, `${node.kind} ${node.id}`));
  });
  const viewBox = `${box.left} ${box.top} ${box.width} ${box.height}`;
  return shape("svg", { viewBox, role: "img", "aria-label": title, class: "fabric" }, paths, marks);
}

export function loads(picture) {
  const nodes = placed(picture);
  const paths = picture.connections.map((one) => {
    const [from, to] = [nodes[one.src], nodes[one.dst]];
    const told = `${from.id} to ${to.id}: ${Number(one.load.toPrecision(4))} shards over bandwidth ${one.bandwidth}, ${Math.round(100 * one.share)} % of the busiest`;
    const line = { d: bent(from, to, 0.09), fill: "none", stroke: heat(one.share), "stroke-width": UNIT * (0.02 + 0.05 * one.share) };
    return shape("path", line, shape("title", {}, told));
  });
  const caption = "How busy each connection is: blue is idle, red the busiest";
  return element("figure", {}, element("figcaption", {}, caption), drawing(nodes, caption, paths));
}

export function tree(picture) {
  const nodes = placed(picture);
  const steps = [...new Set(picture.tree.map((edge) => edge.step))].sort((a, b) => a - b);
  const paths = picture.tree.map((edge) => {
    const [from, to] = [nodes[edge.src], nodes[edge.dst]];
    const colour = STEPS[steps.indexOf(edge.step) % STEPS.length];
    const line = { d: bent(from, to, 0.12), fill: "none", stroke: colour, "stroke-width": 0.06 * UNIT };
    return shape("path", line, shape("title", {}, `step ${edge.step}: ${from.id} to ${to.id}`));
  });
  const caption = `The way of the data of rank ${picture.root}, by step`;
  const legend = steps.map((step, index) => element("li", {}, swatch(STEPS[index % STEPS.length]), `step ${step}`));
  return element("figure", {}, element("figcaption", {}, caption), drawing(nodes, caption, paths), element("ul", { class: "legend" }, legend));
}

export function swatch(colour) {
  return shape("svg", { viewBox: "0 0 14 4", width: 14, height: 4, class: "swatch", "aria-hidden": "true" }, shape("rect", { width: 14, height: 4, fill: colour }));
}

export { STEPS as COLOURS };
