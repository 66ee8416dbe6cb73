// Jobs: what was submitted, its progress, and a button to stop it.

import { hashOf } from "./address.js";
import { remove } from "./api.js";
import { dataTable, duration, element, errorText, liveList, moment } from "./dom.js";

const seconds = (job) => (job.started_s && job.finished_s ? job.finished_s - job.started_s : null);
// The address of a job's result: its own page, or the page of the schedule that the job is about.
const VIEWS = {
  synthesis: (job) => ["design", job.result], bound: (job) => ["bound", job.result], find: (job) => ["find", job.result], judge: (job) => ["judge", job.result],
  program: (job) => ["design", job.request.result], price: (job) => ["compare", job.request.result],
};

export async function jobs(main, _rest, shown) {
  const schedules = new Map(), empty = element("span", {}, "No jobs yet. Ask for a schedule under ", element("a", { href: "#design" }, "Design"), ".");
  const seen = (rows) => { for (const job of rows) if (job.kind === "synthesis") schedules.set(job.result, titleOf(job).replace("synthesis ", "")); };
  main.append(liveList("Jobs", "jobs", dataTable("Newest first", columnsOf(schedules), "jobs"), empty, shown, seen));
}

// schedules: the name of each synthesis result
const columnsOf = (schedules) => [
  { name: "submitted", text: (job) => moment(job.created_s), value: (job) => job.created_s },
  { name: "job", text: (job) => titleOf(job, schedules), long: true },
  { name: "state", text: (job) => (job.error ? `${job.state}: ${errorText(job.error)}` : job.state), cell: stateOf, long: true },
  { name: "took", text: (job) => (seconds(job) ? duration(seconds(job)) : ""), value: seconds, number: true },
  { name: "cached", text: (job) => (job.cached === "no" ? "" : job.cached) },
  { name: "", label: "action", text: () => "", cell: action },
];

function titleOf(job, schedules = new Map()) {
  const body = job.request, network = typeof body.topology === "string" ? body.topology : body.topology ? "a JSON topology" : "";
  return [job.kind, body.method, body.target, body.result && `of ${schedules.get(body.result) ?? "a schedule"}`, network, body.collective, body.nodes ? `${body.nodes} nodes of degree ${body.degree}` : ""].filter(Boolean).join(" ");
}

function stateOf(job) {
  if (job.error) return element("span", { class: "error" }, `${job.state}: ${errorText(job.error)}`);
  if (job.state === "running" && job.progress) return element("span", {}, "running ", element("progress", { max: job.progress.total, value: job.progress.done, "aria-label": "progress" }));
  return job.state;
}

function action(job) {
  if (job.result && job.kind in VIEWS) return element("a", { href: hashOf(VIEWS[job.kind](job)), "data-focus": job.id, "aria-label": `show ${titleOf(job)}` }, "show");
  if (job.finished_s) return "";
  return element("button", { class: "quiet", "data-focus": job.id, "aria-label": `cancel ${titleOf(job)}`, click: (event) => { event.target.disabled = true; return remove(`/v1/jobs/${job.id}`); } }, "cancel");
}
