// What came of a synthesis: its costs, its files, and the schedule on the fabric, step by step.

import { catalog, download, finished, get, post } from "./api.js";
import { choice, dataTable, element, facts, field, number, panel, rate, timePerByte } from "./dom.js";
import { loadRows, loads, stepSummary, tree } from "./picture.js";
import { stateOf } from "./design.js";

const STEP_MS = 900;

export async function resultOf(key, shown) {
  const { document: report, files } = await get(`/v1/results/${key}`);
  const gap = report.optimality.gap;
  const verdict = gap === "0" ? element("span", { class: "good" }, "optimal, with a proof") : `${gap} above the bound`;
  const trees = report.schedule.trees_per_root;
  const about = facts([
    ["network", `${report.topology.spec}: ${report.topology.nodes} ranks, ${report.topology.links} links`],
    ["schedule", `${report.schedule.kind}, ${report.schedule.steps} steps, ${report.schedule.transfers} transfers${trees ? `, ${trees} trees per root` : ""}`],
    ["time per byte", timePerByte(report.cost.time_per_byte, report.unit)],
    ["algbw", rate(report.cost.algbw, report.unit)],
    ["lower bound", timePerByte(report.optimality.lower_bound, report.unit)],
    ["quality", verdict],
    ["verified", report.verified ? "yes" : "NO"],
    ["schedule id", report.schedule.id],
  ]);
  const buttons = files.map((name) => button(`Download ${name}`, () => download(`/v1/results/${key}/files/${name}`, name)));
  const trace = button("Trace for Perfetto", () => download(`/v1/results/${key}/trace`, "trace.json"));
  const links = element("div", { class: "row" }, buttons, trace, element("a", { href: `#compare/${key}` }, "Compare"));
  const head = panel(`${report.method} ${report.collective}`, about, links, element("p", { class: "hint" }, "The trace is simulated for 1 MiB; open it at ui.perfetto.dev or in chrome://tracing."));
  const whole = element("div", { class: "result" }, head, programPanel(key, shown));
  whole.append(await fabricPanel(key, report.topology.nodes, shown));
  return whole;
}

function button(text, click) {
  return element("button", { type: "button", class: "quiet", click }, text);
}

function programPanel(key, shown) {
  const outcome = element("div", { "aria-live": "polite" });
  const target = choice("target", ["msccl-xml"]);
  catalog().then(({ targets }) => target.replaceChildren(...targets.map((name) => element("option", {}, name)))).catch(() => {});
  const form = element("form", { class: "fields", submit: async (event) => {
    event.preventDefault();
    const values = new FormData(form);
    try {
      const body = { result: key, target: values.get("target"), channels: Number(values.get("channels")), instances: Number(values.get("instances")), protocol: values.get("protocol") };
      const job = await finished(await post("/v1/programs", body), (now) => outcome.replaceChildren(stateOf(now)), shown.signal);
      if (job.state === "done") await offer(job.result, outcome);
    } catch (error) {
      outcome.replaceChildren(element("p", { class: "error" }, error.message));
    }
  } }, field("Runtime", target), field("Channels", element("input", { name: "channels", type: "number", min: 1, value: 1 })),
  field("Instances", element("input", { name: "instances", type: "number", min: 1, value: 1 })), field("Protocol", choice("protocol", ["Simple", "LL", "LL128"])),
  element("button", {}, "Make the program"));
  return panel("Program", form, outcome);
}

async function offer(key, outcome) {
  const { document: report, files } = await get(`/v1/results/${key}`);
  const buttons = files.map((name) => button(`Download ${name}`, () => download(`/v1/results/${key}/files/${name}`, name)));
  outcome.replaceChildren(element("p", { class: "row" }, `${report.target}: ${report.ranks} ranks, ${report.chunks} chunks, checked.`, buttons));
}

async function fabricPanel(key, ranks, shown) {
  const images = element("div", { class: "halves" }), controls = element("div", { class: "row" });
  const rows = element("details", {}, element("summary", {}, "Loads as a table"));
  const root = element("input", { type: "number", min: 0, max: ranks - 1, value: 0, change: () => draw() });
  const whole = panel("On the fabric", element("div", { class: "row" }, field("Root", root), controls), images, rows);
  let halt = () => {};
  const draw = async () => {
    try {
      const picture = await get(`/v1/results/${key}/picture`, { root: root.value });
      halt();
      const [stop, ...parts] = player(picture, images, shown);
      halt = stop;
      controls.replaceChildren(...parts);
      rows.replaceChildren(rows.firstChild, dataTable("Loads", LOADS, "loads").show(loadRows(picture)));
    } catch (error) {
      images.replaceChildren(element("p", { class: "hint" }, error.message));
    }
  };
  await draw();
  return whole;
}

const LOADS = [
  { name: "connection", text: (row) => row.name },
  { name: "shards", text: (row) => number(row.load), value: (row) => row.load, number: true },
  { name: "bandwidth", text: (row) => number(row.bandwidth), value: (row) => row.bandwidth, number: true },
  { name: "of the busiest", text: (row) => `${Math.round(100 * row.share)} %`, value: (row) => row.share, number: true },
];

// How to stop it, and controls that show the whole collective, one step of it, or all steps one after the other.
function player(picture, images, shown) {
  const told = element("p", { class: "hint", role: "status" });
  const show = (step) => {
    images.replaceChildren(loads(picture, step), tree(picture, step));
    told.textContent = step === null ? (picture.steps ? "The whole collective." : "The whole collective; this one has too many steps to draw each.") : stepSummary(picture, step);
  };
  show(null);
  if (!picture.steps) return [() => {}, told];
  const last = picture.steps.length - 1;
  let timer = 0;
  const slider = element("input", { type: "range", min: 0, max: last, value: 0, input: () => { stop(); show(Number(slider.value)); } });
  const play = button("Play the steps", () => (timer ? stop() : start()));
  const all = button("Whole collective", () => { stop(); show(null); });
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play the steps"; };
  const advance = (step) => { slider.value = step; show(step); if (step === last) stop(); };
  const start = () => {
    play.textContent = "Stop";
    timer = setInterval(() => advance(Math.min(last, Number(slider.value) + 1)), STEP_MS);
    advance(0);
  };
  shown.signal.addEventListener("abort", stop);
  return [stop, play, field("Step", slider), all, told];
}
