// What came of a bound: the least time of a collective, and the cut that proves it, on the network.

import { get } from "./api.js";
import { described, designPanel } from "./design.js";
import { element, facts, number, panel, rate, timePerByte } from "./dom.js";

export async function bound(main, [key], shown) {
  const { outcome } = designPanel(main, shown);
  if (key) outcome.replaceChildren(await boundOf(key));
}

export async function boundOf(key) {
  const { document: report } = await get(`/v1/results/${key}`);
  return element("div", { class: "result" }, await boundPanel(report));
}

async function boundPanel(report) {
  const unit = report.unit;
  const switches = report.in_network;
  const about = facts([
    ["network", report.topology.spec],
    ["time per byte", `at least ${timePerByte(report.time_per_byte, unit)}`],
    ["algbw", `at most ${rate(report.algbw, unit)}`],
    ["trees per root", report.k ?? report.k_optimal],
    ["with switches that add or multicast", switches && `at least ${timePerByte(switches.time_per_byte, unit)}: algbw at most ${rate(switches.algbw, unit)}, ${number(switches.algbw / report.algbw, 3)} times that of ranks alone`],
    ["certificate", "checked by separate code"],
  ]);
  const whole = panel(`Bound of ${report.collective}`, about, await cutOf(report, report.bottleneck_cut, "The cut of ranks alone that proves it"));
  if (switches) whole.append(await cutOf(report, switches.bottleneck_cut, "The cut with switches that act"));
  return whole;
}

async function cutOf(report, cut, caption) {
  const inside = new Set(cut);
  const names = cut.length > 24 ? [...cut.slice(0, 24), "…"] : cut;
  const text = element("p", {}, `${caption}: all that must cross the border of ${names.join(", ")}.`);
  if (report.topology.spec.startsWith("file:")) return text;
  const view = await get("/v1/topologies", { topology: report.topology.spec });
  const marked = view.picture ? (node) => (inside.has(view.picture.nodes[node].id) ? "cut" : "") : undefined;
  return element("div", {}, text, ...described(view, marked));
}
