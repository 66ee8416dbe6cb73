// Efficient networks of a size and degree: few steps or little bandwidth time.

import { finished, get, post } from "./api.js";
import { chart, lineOption } from "./chart.js";
import { keepDesign, stateOf } from "./design.js";
import { dataTable, element, field, panel } from "./dom.js";

const value = (text) => { const [above, below = "1"] = text.split("/"); return Number(above) / Number(below); };

export async function find(main, [key], shown) {
  const outcome = element("div", { "aria-live": "polite" });
  main.append(panel("Find a network", formOf(outcome, shown)), outcome);
  if (key) outcome.replaceChildren(await frontierOf(key));
  else outcome.replaceChildren(element("p", { class: "hint" }, "Networks that no other one beats in both steps and bandwidth."));
}

function formOf(outcome, shown) {
  const form = element("form", { class: "fields", submit: async (event) => {
    event.preventDefault();
    const values = new FormData(form);
    try {
      const body = { nodes: Number(values.get("nodes")), degree: Number(values.get("degree")), bidirectional: values.get("bidirectional") === "on" };
      const job = await finished(await post("/v1/finds", body), (now) => outcome.replaceChildren(stateOf(now)), shown.signal);
      if (job.state === "done") location.hash = `#find/${job.result}`;
    } catch (error) {
      outcome.replaceChildren(element("p", { class: "error" }, error.message));
    }
  } }, field("Nodes", element("input", { name: "nodes", type: "number", min: 2, value: 64, required: true })),
  field("Degree", element("input", { name: "degree", type: "number", min: 1, max: 64, value: 4, required: true })),
  element("label", { class: "tick" }, element("input", { name: "bidirectional", type: "checkbox" }), "links in both directions"), element("button", {}, "Find"));
  return form;
}

async function frontierOf(key) {
  const { document: report } = await get(`/v1/results/${key}`);
  const points = report.frontier.map((row) => [row.steps, value(row.bandwidth_factor), row.spec]);
  const axes = { x: { label: "steps", text: String }, y: { label: "bandwidth factor", text: (factor) => String(Number(factor.toPrecision(4))) } };
  const series = [{ name: "frontier", points, dots: true }, { name: "lower bound", points: [[report.bound.steps, value(report.bound.bandwidth_factor)]], dots: true }];
  return panel(`Networks of ${report.nodes} nodes and degree ${report.degree}`, chart("Steps and bandwidth factor of each network", lineOption(series, axes), 300),
    dataTable("Frontier, fewest steps first", COLUMNS, "frontier").show(report.frontier));
}

const COLUMNS = [
  { name: "spec", text: (row) => row.spec },
  { name: "method", text: (row) => row.method },
  { name: "steps", text: (row) => row.steps, number: true },
  { name: "bandwidth factor", text: (row) => row.bandwidth_factor, value: (row) => value(row.bandwidth_factor), number: true },
  { name: "diameter", text: (row) => row.diameter, number: true },
  { name: "optimal", text: (row) => [row.bandwidth_optimal ? "bandwidth" : "", row.moore_optimal ? "steps" : ""].filter(Boolean).join(", ") },
  { name: "", label: "action", text: () => "", cell: (row) => element("a", { href: "#design", "aria-label": `design on ${row.spec}`, click: () => keepDesign({ topology: row.spec, method: row.method, collective: "allgather" }) }, "design") },
];
