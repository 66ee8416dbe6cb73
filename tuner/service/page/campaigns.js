// Campaigns: launch one, watch its trials, download the best schedules.

import { catalog, download, get, post } from "./api.js";
import { launchPanel } from "./campaign_form.js";
import { chart, lineOption } from "./chart.js";
import { bytes, dataTable, duration, element, errorText, facts, liveList, number, panel } from "./dom.js";

export async function campaigns(main, { parts: [name] }, shown) {
  if (name) return watch(main, name, shown);
  const list = liveList("Campaigns", "campaigns", dataTable("By name", COLUMNS, "campaigns"), "No campaigns yet. Launch one below.", shown);
  list.append(dashboardLinks());
  return main.append(list, launchPanel(shown));
}

const COLUMNS = [
  { name: "name", text: (row) => row.name, cell: (row) => element("a", { href: `#campaigns/${encodeURIComponent(row.name)}`, "data-focus": row.name }, row.name) },
  { name: "state", text: (row) => (row.error ? `${row.state}: ${row.error}` : row.state), cell: (row) => (row.error ? element("span", { class: "error" }, `${row.state}: ${row.error}`) : row.state), long: true },
  { name: "network", text: (row) => row.topology, long: true },
  { name: "collective", text: (row) => row.collective },
  { name: "launch", text: (row) => row.launches, number: true },
  { name: "trials", text: (row) => (row.budget ? `${row.complete} of ${row.trials}` : ""), value: (row) => row.trials, number: true },
];

const LAUNCH_MS = 20_000; // a launch that has not appeared by then will not appear

const COMMANDS = { mlflow: "chorale ui", optuna: "optuna-dashboard with the study of the campaign", ray: "ray start --head, then chorale serve --address" };
const TITLES = { mlflow: "MLflow", optuna: "Optuna", ray: "Ray" };

// Links to other programs' pages; if an address is not known, the command that opens the page.
function dashboardLinks() {
  const line = element("p", { class: "hint row" });
  catalog().then(({ dashboards }) => {
    const parts = Object.entries(dashboards).map(([name, url]) =>
      (url ? element("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, `${TITLES[name]} dashboard`) : element("span", {}, `${TITLES[name]}: `, element("code", {}, COMMANDS[name]))));
    line.replaceChildren("More about trials and workers: ", ...parts);
  }).catch(() => {});
  return line;
}

function watch(main, name, shown) {
  const head = element("div"), best = element("div"), progress = element("div");
  const trials = dataTable("Newest first", TRIALS, `${name}-trials`);
  main.append(panel(name, head), panel("Best so far", best), panel("Progress", progress), panel("Trials", trials));
  const path = `/v1/campaigns/${encodeURIComponent(name)}`;
  const history = historyOf(progress), leaders = bestOf(path, name, best);
  let known = [], missing = null;
  progress.append(element("p", { class: "hint" }, "A chart appears after the first complete trial."));
  const late = setTimeout(() => { if (missing) head.replaceChildren(element("p", { class: "error" }, errorText(missing))); }, LAUNCH_MS);
  shown.signal.addEventListener("abort", () => clearTimeout(late));
  head.replaceChildren(element("p", { class: "row" }, element("progress", { "aria-label": "progress" }), "The launch begins."));
  shown.listen([`campaign/${name}`], (_topic, now) => {
    if (now.error?.rule) {
      if (now.error.status === 404) missing = now.error;
      else head.replaceChildren(element("p", { class: "error" }, errorText(now.error)));
      return;
    }
    missing = null;
    known = now.known === 0 ? now.trials : known.concat(now.trials);
    head.replaceChildren(headOf(path, name, now, known));
    if (!now.trials.length && best.childElementCount) return;
    leaders(now.best);
    history(known);
    trials.show([...known].reverse());
  });
}

function headOf(path, name, now, known) {
  const campaign = now.campaign, budget = campaign.budget.trials;
  const act = (verb) => element("button", { class: "quiet", click: (event) => { event.target.disabled = true; return post(`${path}/${verb}`); } }, verb === "stop" ? "Stop" : "Resume");
  const counts = Object.entries(now.counts).map(([state, count]) => `${count} ${state}`).join(", ");
  return element("div", {}, facts([
    ["state", now.error ? element("span", { class: "error" }, `${now.state}: ${now.error}`) : now.state],
    ["campaign", `${campaign.collective} on ${campaign.topology}, ${campaign.runner.kind} runner, launch ${now.launch}`],
    ["trials", element("span", { class: "row" }, element("progress", { max: budget, value: known.length, "aria-label": "trials" }), `${known.length} of ${budget}: ${counts || "none yet"}`)],
  ]), element("div", { class: "row" }, now.state === "running" ? act("stop") : known.length < budget ? act("resume") : null));
}

// Shows the best trial at each size in `box`; after the first drawing, only changes are drawn.
function bestOf(path, name, box) {
  const file = (row, kind) => element("button", { class: "quiet", "data-focus": `${kind} ${row.size_bytes}`, "aria-label": `${kind} for ${bytes(row.size_bytes)}`, click: () => download(`${path}/trials/${row.trial_id}/${kind}`, `${name}.${kind === "program" ? "xml" : "parquet"}`) }, kind);
  const axes = { x: { label: "buffer size", text: bytes, log: true, base: 2 }, y: { label: "microseconds", unit: "us", text: (value) => number(value, 3), log: true } };
  const table = dataTable("By size", [
    { name: "size", text: (row) => bytes(row.size_bytes), value: (row) => row.size_bytes, number: true },
    { name: "best", text: (row) => row.label, long: true },
    { name: "microseconds", text: (row) => number(row.time_us), value: (row) => row.time_us, number: true },
    { name: "baseline, microseconds", text: (row) => number(row.baseline_time_us), value: (row) => row.baseline_time_us, number: true },
    { name: "speed-up", text: (row) => `${row.speedup.toFixed(2)}x`, value: (row) => row.speedup, number: true },
    { name: "", label: "files", text: () => "", cell: (row) => element("span", { class: "row" }, file(row, "schedule"), file(row, "program")) },
  ], `${name}-best`);
  let graph = null;
  return (rows) => {
    if (!rows.length) return box.replaceChildren(element("p", { class: "hint" }, "No trial is complete yet."));
    const option = lineOption([
      { name: "best so far", points: rows.map((row) => [row.size_bytes, row.time_us, row.label]) },
      { name: "fastest baseline of the same run", points: rows.map((row) => [row.size_bytes, row.baseline_time_us]) },
    ], axes);
    table.show(rows);
    if (graph) return graph.update(option);
    return box.replaceChildren(table, (graph = chart("Time by size", option, 280)));
  };
}

// The speed-up of each trial; the chart keeps its zoom while new trials arrive.
function historyOf(box) {
  let graph = null;
  return (known) => {
    const complete = known.filter((trial) => trial.speedup !== null);
    if (!complete.length) return;
    if (graph) graph.update(historyOption(complete));
    else box.replaceChildren((graph = chart("Speed-up of each trial", historyOption(complete), 300)));
  };
}

function historyOption(complete) {
  let best = 0;
  const leading = complete.map((trial) => [trial.number, (best = Math.max(best, trial.speedup))]);
  const axes = { x: { label: "trial", text: String, whole: true }, y: { label: "speed-up over the best baseline", unit: "x", text: (value) => number(value, 3) } };
  return lineOption([
    { name: "best so far", points: leading, step: true },
    { name: "each trial", points: complete.map((trial) => [trial.number, trial.speedup, trial.label]), dots: true },
  ], axes);
}

const TRIALS = [
  { name: "trial", text: (trial) => trial.number, number: true },
  { name: "parameters", text: (trial) => trial.label, long: true },
  { name: "state", text: (trial) => (trial.state === "complete" ? "complete" : `${trial.state}: ${trial.reason}`), cell: (trial) => (trial.state === "complete" ? "complete" : element("span", { class: trial.state === "failed" ? "error" : "hint" }, `${trial.state}: ${trial.reason}`)), long: true },
  { name: "speed-up", text: (trial) => (trial.speedup === null ? "" : `${trial.speedup.toFixed(3)}x`), value: (trial) => trial.speedup, number: true },
  { name: "took", text: (trial) => duration(trial.seconds), value: (trial) => trial.seconds, number: true },
];
