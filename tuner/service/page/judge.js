// Judge whether measured times are good, from a file of results and the network where they were measured.

import { hashOf, noteAddress } from "./address.js";
import { bytes, dataTable, duration, element, field, jobForm, namedResult, panel } from "./dom.js";

export async function judge(main, { parts: [key] }, shown) {
  const report = (await namedResult(key, shown))?.document;
  const outcome = element("div", { class: "result" }), status = element("div", { role: "status" });
  const body = async (values) => ({ topology: values.get("topology"), results: await values.get("file").text(), file_name: values.get("file").name });
  const done = (result, { document: found }) => {
    noteAddress(hashOf(["judge", result], {}), true); // the form does not change
    outcome.replaceChildren(judgementOf(found));
  };
  const form = jobForm("/v1/judgements", body, done, status, shown,
    field("Results", element("input", { name: "file", type: "file", required: true })),
    field("Topology", element("input", { name: "topology", value: report?.topology.spec ?? "h100:1", required: true })), element("button", {}, "Judge"));
  main.append(panel("Is my result good?", form, status), outcome);
  outcome.replaceChildren(report ? judgementOf(report) : element("p", { class: "hint" }, "Takes the output of nccl-tests, rccl-tests, OSU or chorale run --json."));
}

function judgementOf(report) {
  return panel(`${report.collective} on ${report.topology.spec}`, element("p", {}, report.verdict), dataTable("Each size compared with the bound and with the library's own model", COLUMNS, "judgement").show(report.sizes));
}

const time = (name, key) => ({ name, text: (row) => (row[key] === null ? "" : duration(row[key] / 1e6)), value: (row) => row[key], number: true });
const COLUMNS = [
  { name: "size", text: (row) => bytes(row.size_bytes), value: (row) => row.size_bytes, number: true },
  time("measured", "measured_us"), time("bound", "bound_us"),
  { name: "of the bound", text: (row) => `${Number(row.percent_of_bound.toPrecision(2))} %`, value: (row) => row.percent_of_bound, number: true },
  time("library", "library_us"),
  { name: "limited by", text: (row) => row.limited_by },
  { name: "note", text: (row) => row.note, long: true },
];
