// What was asked for, how far it is, and a way to stop it.

import { get, remove } from "./api.js";
import { element, panel, table } from "./dom.js";

const time = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleTimeString() : "");

export async function jobs(main, _rest, shown) {
  const place = element("div");
  main.append(panel("Jobs", place));
  while (!shown.stopped) {
    const { jobs: found } = await get("/v1/jobs");
    if (shown.stopped) return;
    const focused = document.activeElement?.dataset?.job;
    place.replaceChildren(found.length ? listOf(found) : element("p", { class: "hint" }, "No jobs yet. Ask for a schedule under Design."));
    if (focused) place.querySelector(`[data-job="${focused}"]`)?.focus();
    await new Promise((resolve) => setTimeout(resolve, found.some((job) => !job.finished_s) ? 700 : 3000));
  }
}

function listOf(found) {
  return table("Newest first", [
    ["asked", (job) => time(job.created_s)],
    ["what", what],
    ["state", stateOf],
    ["seconds", (job) => (job.started_s && job.finished_s ? (job.finished_s - job.started_s).toFixed(2) : ""), true],
    ["known", (job) => (job.cached === "no" ? "" : job.cached)],
    ["", action],
  ], found);
}

function what(job) {
  const asked = job.request, network = typeof asked.topology === "string" ? asked.topology : asked.topology ? "a JSON topology" : "";
  return [job.kind, asked.method, asked.target, network, asked.collective, asked.nodes ? `${asked.nodes} nodes of degree ${asked.degree}` : ""].filter(Boolean).join(" ");
}

function stateOf(job) {
  if (job.error) return element("span", { class: "error", title: `${job.error.rule}; got ${job.error.value}; ${job.error.way_out}` }, `${job.state}: ${job.error.rule}`);
  if (job.state === "running" && job.progress) return element("span", {}, "running ", element("progress", { max: job.progress.total, value: job.progress.done }));
  return job.state;
}

function action(job) {
  if (job.result && job.kind === "synthesis") return element("a", { href: `#design/${job.result}`, "data-job": job.id }, "show");
  if (job.finished_s) return "";
  return element("button", { class: "quiet", "data-job": job.id, click: () => remove(`/v1/jobs/${job.id}`) }, "cancel");
}
