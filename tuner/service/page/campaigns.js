// Campaigns: launch one, watch its trials come in, take the best along.

import { download, get, post } from "./api.js";
import { chart } from "./chart.js";
import { bytes, element, facts, number, panel, table } from "./dom.js";

const EXAMPLE = {
  name: "first-campaign", topology: "hypercube:3", collective: "allreduce", sizes: ["64KiB", "1MiB"],
  runner: { kind: "simulated", link_mbps: 1000, alpha_us: 5 },
  search: { methods: ["bfb", "ring", "swing", "recursive-doubling"], chunks: [null, 1, 2], channels: [1, 2] },
  budget: { trials: 12 },
};

export async function campaigns(main, [name], shown) {
  if (name) await watch(main, name, shown);
  else await list(main, shown);
}

async function list(main, shown) {
  const place = element("div");
  main.append(panel("Campaigns", place), launchPanel());
  while (!shown.stopped) {
    const { campaigns: found } = await get("/v1/campaigns");
    if (shown.stopped) return;
    place.replaceChildren(found.length ? rows(found) : element("p", { class: "hint" }, "No campaigns yet. Launch one below."));
    await pause(2000);
  }
}

function rows(found) {
  return table("By name", [
    ["name", (row) => element("a", { href: `#campaigns/${encodeURIComponent(row.name)}` }, row.name)],
    ["state", (row) => (row.error ? element("span", { class: "error" }, `${row.state}: ${row.error}`) : row.state)],
    ["network", (row) => row.topology],
    ["collective", (row) => row.collective],
    ["launch", (row) => row.launches, true],
    ["trials", (row) => (row.budget ? `${row.trials} of ${row.budget}` : ""), true],
  ], found);
}

function launchPanel() {
  const text = element("textarea", { name: "campaign", spellcheck: "false", required: true });
  text.value = JSON.stringify(EXAMPLE, null, 2);
  const problem = element("p", { class: "error", role: "alert" });
  const form = element("form", { submit: async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      const { name } = await post("/v1/campaigns", { campaign: JSON.parse(text.value) });
      location.hash = `#campaigns/${encodeURIComponent(name)}`;
    } catch (error) {
      problem.textContent = error.message;
    }
  } }, element("label", {}, "Campaign, as JSON", text), element("p", { class: "hint" }, "The keys are those of a campaign file."), problem, element("button", {}, "Launch"));
  return panel("Launch a campaign", form);
}

async function watch(main, name, shown) {
  const head = element("div"), best = element("div"), history = element("div"), trials = element("div");
  main.append(panel(name, head), panel("Best so far", best), panel("Progress", history), panel("Trials", trials));
  const path = `/v1/campaigns/${encodeURIComponent(name)}`;
  let known = [], launch = null;
  while (!shown.stopped) {
    const now = await waitingGet(path, { after: known.length }, head, shown);
    if (shown.stopped || !now) return;
    if (launch !== null && now.launch !== launch) known = [];
    const fresh = now.launch === launch || launch === null ? now.trials : (await get(path)).trials;
    known = known.concat(fresh);
    const first = launch === null;
    launch = now.launch;
    head.replaceChildren(headOf(path, now, known));
    if (first || fresh.length) {
      best.replaceChildren(...bestOf(path, name, now));
      history.replaceChildren(historyOf(known));
      trials.replaceChildren(trialsOf(known));
    }
    await pause(now.state === "running" ? 1000 : 4000);
  }
}

// A launch takes a moment until its journal is there.
async function waitingGet(path, query, place, shown) {
  for (let patience = 30; !shown.stopped; patience -= 1) {
    try {
      return await get(path, query);
    } catch (error) {
      if (error.status !== 404 || patience === 0) throw error;
      place.replaceChildren(element("p", { class: "row" }, element("progress"), "The launch begins."));
      await pause(1000);
    }
  }
  return null;
}

function headOf(path, now, known) {
  const campaign = now.campaign, budget = campaign.budget.trials;
  const act = (verb) => element("button", { class: "quiet", click: (event) => { event.target.disabled = true; return post(`${path}/${verb}`); } }, verb === "stop" ? "Stop" : "Resume");
  const counts = Object.entries(now.counts).map(([state, count]) => `${count} ${state}`).join(", ");
  return element("div", {}, facts([
    ["state", now.error ? element("span", { class: "error" }, `${now.state}: ${now.error}`) : now.state],
    ["what", `${campaign.collective} on ${campaign.topology}, ${campaign.runner.kind} runner, launch ${now.launch}`],
    ["trials", element("span", { class: "row" }, element("progress", { max: budget, value: known.length }), `${known.length} of ${budget}: ${counts || "none yet"}`)],
  ]), element("div", { class: "row" }, now.state === "running" ? act("stop") : known.length < budget ? act("resume") : null));
}

function bestOf(path, name, now) {
  if (!now.best.length) return [element("p", { class: "hint" }, "No trial is complete yet.")];
  const take = (row, kind) => element("button", { class: "quiet", click: () => download(`${path}/trials/${row.trial_id}/${kind}`, `${name}.${kind === "program" ? "xml" : "parquet"}`) }, kind);
  const axes = { x: { label: "buffer size", text: bytes, log: true, base: 2 }, y: { label: "microseconds", text: (value) => number(value, 3), log: true } };
  const lines = [
    { name: "best so far", points: now.best.map((row) => [row.size_bytes, row.time_us]) },
    { name: "fastest baseline of the same run", points: now.best.map((row) => [row.size_bytes, row.baseline_time_us]) },
  ];
  return [table("By size", [
    ["size", (row) => bytes(row.size_bytes), true], ["best", (row) => row.label], ["microseconds", (row) => number(row.time_us), true],
    ["baseline", (row) => number(row.baseline_time_us), true], ["speed-up", (row) => `${row.speedup.toFixed(2)}x`, true],
    ["download", (row) => element("span", { class: "row" }, take(row, "schedule"), take(row, "program"))],
  ], now.best), chart("Time by size", lines, axes)];
}

function historyOf(known) {
  const complete = known.filter((trial) => trial.speedup !== null);
  let best = 0;
  const leading = complete.map((trial) => [trial.number, (best = Math.max(best, trial.speedup))]);
  const axes = { x: { label: "trial", text: (value) => String(value), log: false }, y: { label: "speed-up over the best baseline", text: (value) => number(value, 3), log: false } };
  return chart("Speed-up, as trials come in", [
    { name: "best so far", points: leading },
    { name: "each trial", points: complete.map((trial) => [trial.number, trial.speedup]) },
  ], axes);
}

function trialsOf(known) {
  return table("Newest first", [
    ["", (trial) => trial.number, true], ["parameters", (trial) => trial.label],
    ["state", (trial) => (trial.state === "complete" ? "complete" : element("span", { class: trial.state === "failed" ? "error" : "hint" }, `${trial.state}: ${trial.reason}`))],
    ["speed-up", (trial) => (trial.speedup === null ? "" : `${trial.speedup.toFixed(3)}x`), true], ["seconds", (trial) => trial.seconds.toFixed(2), true],
  ], [...known].reverse());
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
