// Jobs: what was submitted, how far it is, and a button to stop it.

import { remove } from "./api.js";
import { dataTable, element, panel } from "./dom.js";

const time = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleTimeString() : "");
const seconds = (job) => (job.started_s && job.finished_s ? job.finished_s - job.started_s : null);
const RESULTS = { synthesis: "design", bound: "bound", find: "find" };

export async function jobs(main, _rest, shown) {
  const list = element("div");
  main.append(panel("Jobs", list));
  const table = dataTable("Newest first", COLUMNS, "jobs");
  shown.listen(["jobs"], (_topic, { jobs: rows }) => {
    if (!rows.length) return list.replaceChildren(element("p", { class: "hint" }, "No jobs yet. Ask for a schedule under Design."));
    if (!table.isConnected) list.replaceChildren(table);
    return table.show(rows);
  });
}

const COLUMNS = [
  { name: "submitted", text: (job) => time(job.created_s), value: (job) => job.created_s },
  { name: "job", text: titleOf },
  { name: "state", text: (job) => (job.error ? `${job.state}: ${job.error.rule}; got ${job.error.value}; ${job.error.way_out}` : job.state), cell: stateOf },
  { name: "seconds", text: (job) => seconds(job)?.toFixed(2) ?? "", value: seconds, number: true },
  { name: "cached", text: (job) => (job.cached === "no" ? "" : job.cached) },
  { name: "", label: "action", text: () => "", cell: action },
];

export function titleOf(job) {
  const body = job.request, network = typeof body.topology === "string" ? body.topology : body.topology ? "a JSON topology" : "";
  return [job.kind, body.method, body.target, network, body.collective, body.nodes ? `${body.nodes} nodes of degree ${body.degree}` : ""].filter(Boolean).join(" ");
}

function stateOf(job) {
  if (job.error) return element("span", { class: "error", title: `${job.error.rule}; got ${job.error.value}; ${job.error.way_out}` }, `${job.state}: ${job.error.rule}`);
  if (job.state === "running" && job.progress) return element("span", {}, "running ", element("progress", { max: job.progress.total, value: job.progress.done, "aria-label": "progress" }));
  return job.state;
}

function action(job) {
  if (job.result && RESULTS[job.kind]) return element("a", { href: `#${RESULTS[job.kind]}/${job.result}`, "data-focus": job.id, "aria-label": `show ${titleOf(job)}` }, "show");
  if (job.finished_s) return "";
  return element("button", { class: "quiet", "data-focus": job.id, "aria-label": `cancel ${titleOf(job)}`, click: () => remove(`/v1/jobs/${job.id}`) }, "cancel");
}
