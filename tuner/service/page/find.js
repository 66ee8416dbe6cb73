// Efficient networks of a size and degree: few steps or little bandwidth time.

import { address, hashOf, noteAddress } from "./address.js";
import { chart, lineOption } from "./chart.js";
import { dataTable, element, field, jobForm, namedResult, panel } from "./dom.js";

const value = (text) => { const [above, below = "1"] = text.split("/"); return Number(above) / Number(below); };

export async function find(main, { parts: [key], query }, shown) {
  const report = (await namedResult(key, shown))?.document;
  const outcome = element("div", { class: "result" }), status = element("div", { role: "status" });
  const { nodes = 64, degree = 4, bidirectional } = Object.keys(query).length || !report ? query : report;
  const done = (result, { document: found }) => {
    noteAddress(hashOf(["find", result], addressed(asked(new FormData(form)))), true); // the form does not change
    outcome.replaceChildren(frontierOf(found));
  };
  const form = jobForm("/v1/finds", asked, done, status, shown,
    field("Nodes", element("input", { name: "nodes", type: "number", min: 2, max: 16384, value: nodes, required: true })),
    field("Degree", element("input", { name: "degree", type: "number", min: 1, max: 64, value: degree, required: true })),
    element("label", { class: "tick" }, element("input", { name: "bidirectional", type: "checkbox", checked: [true, "true"].includes(bidirectional) }), "links in both directions"), element("button", {}, "Find"));
  form.addEventListener("input", () => noteAddress(hashOf(["find", ...address().parts], addressed(asked(new FormData(form))))));
  main.append(panel("Find a network", form, status), outcome);
  outcome.replaceChildren(report ? frontierOf(report) : element("p", { class: "hint" }, "Networks that no other one beats in both steps and bandwidth."));
}

function asked(values) {
  return { nodes: Number(values.get("nodes")), degree: Number(values.get("degree")), bidirectional: values.get("bidirectional") === "on" };
}

const addressed = (body) => ({ ...body, bidirectional: body.bidirectional || null });

function frontierOf(report) {
  const points = report.frontier.map((row) => [row.steps, value(row.bandwidth_factor), row.spec]);
  const axes = { x: { label: "steps", text: String, whole: true }, y: { label: "bandwidth factor", text: (factor) => String(Number(factor.toPrecision(4))) } };
  const series = [{ name: "frontier", points, dots: true }, { name: "lower bound", points: [[report.bound.steps, value(report.bound.bandwidth_factor)]], dots: true }];
  return panel(`Networks of ${report.nodes} nodes and degree ${report.degree}`, chart("Steps and bandwidth factor of each network", lineOption(series, axes), 300),
    dataTable("Frontier, fewest steps first", COLUMNS, "frontier").show(report.frontier));
}

const COLUMNS = [
  { name: "spec", text: (row) => row.spec, long: true },
  { name: "method", text: (row) => row.method },
  { name: "steps", text: (row) => row.steps, number: true },
  { name: "bandwidth factor", text: (row) => row.bandwidth_factor, value: (row) => value(row.bandwidth_factor), number: true },
  { name: "diameter", text: (row) => row.diameter, number: true },
  { name: "optimal", text: (row) => [row.bandwidth_optimal ? "bandwidth" : "", row.moore_optimal ? "steps" : ""].filter(Boolean).join(", ") },
  { name: "", label: "action", text: () => "", cell: (row) => element("a", { href: hashOf(["design"], { topology: row.spec, method: row.method, collective: "allgather" }), "aria-label": `design on ${row.spec}` }, "design") },
];
