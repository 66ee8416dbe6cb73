// What came of a bound: the least time of a collective, and the cut that proves it, on the network.

import { hashOf } from "./address.js";
import { get } from "./api.js";
import { designPanel, valuesOf } from "./design.js";
import { element, facts, number, panel, rate, timePerByte } from "./dom.js";
import { network } from "./picture.js";

const SHOWN_NODES = 24;

export async function bound(main, { parts: [key], query }, shown) {
  const result = key && (await get(`/v1/results/${key}`).catch((error) => { shown.alert(error); return null; }));
  const outcome = designPanel(main, valuesOf(query, result?.document), shown);
  if (result) outcome.replaceChildren(await boundOf(result));
}

export async function boundOf({ document: report }) {
  const { unit, in_network: switches, collective, topology: { spec } } = report;
  const isFile = spec.startsWith("file:");
  const view = isFile ? null : await get("/v1/topologies", { topology: spec });
  const about = facts([
    ["network", spec],
    ["time per byte", `at least ${timePerByte(report.time_per_byte, unit)}`],
    ["algbw", `at most ${rate(report.algbw, unit)}`],
    ["because", report.because],
    ["trees per root", report.k ?? report.k_optimal],
    ["with switches that add or multicast", switches && `at least ${timePerByte(switches.time_per_byte, unit)}: algbw at most ${rate(switches.algbw, unit)}, ${gainOf(switches.algbw / report.algbw)}`],
    ["because, with switches", switches && report.because_in_network],
    ["certificate", "checked by separate code"],
  ]);
  const design = isFile ? null : element("p", {}, element("a", { href: hashOf(["design"], { topology: spec, collective }) }, "Design a schedule that is near it"));
  const cuts = element("div", { class: "halves" }, cutOf(view, report.bottleneck_cut, switches ? "Ranks alone" : "The bottleneck"),
    switches && cutOf(view, switches.bottleneck_cut, "With switches that add or multicast"));
  return panel(`Bound of ${collective}`, about, design, cuts);
}

function gainOf(ratio) {
  return ratio > 1.0005 ? `${number(ratio, 3)} times that of ranks alone` : "no more than ranks alone";
}

function cutOf(view, cut, title) {
  const inside = new Set(cut);
  const names = cut.length > SHOWN_NODES ? [...cut.slice(0, SHOWN_NODES), "…"] : cut;
  const text = element("p", {}, element("strong", {}, title), `: what must cross the border of ${names.join(", ")}.`);
  const { picture, unit, why } = view ?? {};
  if (!picture) return element("div", {}, text, why && element("p", { class: "hint" }, why));
  return element("div", {}, text, network(picture, unit, (node) => (inside.has(picture.nodes[node].id) ? "cut" : "")));
}
