// Whether measured times are good: a file of results and the network that they are from.

import { hashOf, noteAddress } from "./address.js";
import { finished, get, post } from "./api.js";
import { bytes, dataTable, duration, element, field, panel, stateOf } from "./dom.js";

export async function judge(main, { parts: [key] }, shown) {
  const report = key && (await get(`/v1/results/${key}`).catch((error) => { shown.alert(error); return null; }))?.document;
  const outcome = element("div", { class: "result" }), status = element("div", { role: "status" });
  main.append(panel("Is my result good?", formOf(report, { outcome, status }, shown), status), outcome);
  if (report) outcome.replaceChildren(judgementOf(report));
  else outcome.replaceChildren(element("p", { class: "hint" }, "Takes the output of nccl-tests, rccl-tests, OSU or chorale run --json."));
}

function formOf(report, { outcome, status }, shown) {
  const form = element("form", { class: "fields", submit: async (event) => {
    event.preventDefault();
    const button = form.querySelector("button"), values = new FormData(form), file = values.get("file");
    button.disabled = true;
    try {
      const body = { topology: values.get("topology"), results: await file.text(), file_name: file.name };
      const job = await finished(await post("/v1/judgements", body), (now) => status.replaceChildren(stateOf(now)), shown.signal);
      if (job.state !== "done" || shown.signal.aborted) return;
      noteAddress(hashOf(["judge", job.result], {}), true); // the form stays as it is
      outcome.replaceChildren(judgementOf((await get(`/v1/results/${job.result}`)).document));
      status.replaceChildren();
    } catch (error) {
      status.replaceChildren(element("p", { class: "error" }, error.message));
    } finally {
      button.disabled = false;
    }
  } }, field("Results", element("input", { name: "file", type: "file", required: true })),
  field("Topology", element("input", { name: "topology", value: report?.topology.spec ?? "h100:1", required: true })), element("button", {}, "Judge"));
  return form;
}

function judgementOf(report) {
  return panel(`${report.collective} on ${report.topology.spec}`, element("p", {}, report.verdict), dataTable("Each size beside the bound and the library's own model", COLUMNS, "judgement").show(report.sizes));
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
