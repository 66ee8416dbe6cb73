// The result of a synthesis: costs, files, and the schedule on the fabric, step by step. The result of a bound: a
// collective's shortest time, and the cut in the network that proves it.

import { hashOf } from "./address.js";
import { catalog, download, get, post } from "./api.js";
import { choice, counted, dataTable, duration, element, facts, field, jobForm, number, panel, percent, rate, timePerByte } from "./dom.js";
import { loadRows, loads, network, stepSummary, tree } from "./picture.js";

const STEP_MS = 900;
const SHOWN_NODES = 24;

export async function resultOf(key, { document: report, files }, shown) {
  const buttons = files.map((name) => button(`Download ${name}`, () => download(`/v1/results/${key}/files/${name}`, name)));
  const links = element("div", { class: "row" }, buttons, element("a", { href: hashOf(["compare", key]) }, "Compare"));
  const head = panel(`${report.method} ${report.collective}`, aboutOf(report), ...report.warnings?.map((one) => element("p", { class: "hint" }, one.message)) ?? [], links);
  return element("div", { class: "result" }, head, await fabricPanel(key, report, shown), programPanel(key, report, shown));
}

function aboutOf(report) {
  const { schedule, topology, cost, optimality, unit, in_network: switches } = report;
  const trees = schedule.trees_per_root;
  const verdict = optimality.gap === "0" ? element("span", { class: "good" }, "optimal, with a proof") : `${percent(optimality.gap)} above the bound (${optimality.gap})`;
  return facts([
    ["network", `${topology.spec}: ${[counted(topology.nodes, "rank"), topology.switches && counted(topology.switches, "switch"), counted(topology.links, "link")].filter(Boolean).join(", ")}`],
    ["schedule", [schedule.kind, counted(schedule.steps, "step"), counted(schedule.transfers, "transfer"), trees && `${counted(trees, "tree")} per root`, `${counted(schedule.chunks_per_shard, "chunk")} per shard`].filter(Boolean).join(", ")],
    ["time per byte", timePerByte(cost.time_per_byte, unit)],
    ["algbw", rate(cost.algbw, unit)],
    [optimality.certificate.in_network ? "lower bound, with the switches" : switches ? "lower bound, ranks alone" : "lower bound", timePerByte(optimality.lower_bound, unit)],
    ["quality", verdict],
    ["with switches that add or multicast", switches && !schedule.in_network ? switchesOf(report) : null],
    ["verified", report.verified ? "yes" : element("span", { class: "error" }, "no")],
    ["designed in", report.seconds?.total === undefined ? null : duration(report.seconds.total)],
    ["schedule id", element("code", {}, schedule.id)],
    ["command", commandOf(report)],
  ]);
}

// The other bound, and a link to design a schedule that uses the switches' abilities.
function switchesOf({ cost, unit, in_network: switches, topology, collective }) {
  const gain = switches.algbw / cost.algbw;
  const text = `algbw at most ${rate(switches.algbw, unit)}, ${gain > 1.0005 ? `${number(gain, 3)} times that of this schedule` : "no more than ranks alone reach"} `;
  return element("span", {}, text, gain > 1.0005 ? element("a", { href: hashOf(["design"], { topology: topology.spec, method: "in-network", collective }) }, "design with the switches") : null);
}

// The command that designs the same schedule, to copy; there is none for networks given as documents.
function commandOf({ method, topology: { spec }, collective, parameters }) {
  if (!spec || spec.startsWith("file:")) return null;
  const given = ["k", "chunks"].filter((name) => parameters?.[name]).map((name) => `--${name} ${parameters[name]}`);
  const quoted = /^[\w:.,-]+$/.test(spec) ? spec : `'${spec}'`;
  const text = ["chorale synth", method, quoted, `--collective ${collective}`, ...given].join(" ");
  const copy = button("Copy", async () => { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; });
  return element("span", { class: "row" }, element("code", {}, text), navigator.clipboard ? copy : null);
}

function button(text, click) {
  return element("button", { type: "button", class: "quiet", click }, text);
}

function programPanel(key, report, shown) {
  const outcome = element("div", { role: "status" });
  const suited = report.schedule.in_network ? "mscclpp-json" : "msccl-executor-xml"; // a target that supports it
  const target = choice("target", [suited]);
  catalog().then(({ targets }) => target.replaceChildren(...targets.map((name) => element("option", { selected: name === suited }, name)))).catch(shown.alert);
  const body = (values) => ({ result: key, target: values.get("target"), channels: Number(values.get("channels")), instances: Number(values.get("instances")), protocol: values.get("protocol") });
  const offer = (made, { document: program, files }) => {
    const buttons = files.map((name) => button(`Download ${name}`, () => download(`/v1/results/${made}/files/${name}`, name)));
    outcome.replaceChildren(element("p", { class: "row" }, `${program.target}: ${program.ranks} ranks, ${program.chunks} chunks, checked.`, buttons));
  };
  const form = jobForm("/v1/programs", body, offer, outcome, shown,
    field("Runtime", target), field("Channels", element("input", { name: "channels", type: "number", min: 1, value: 1 })),
    field("Instances", element("input", { name: "instances", type: "number", min: 1, value: 1 })), field("Protocol", choice("protocol", ["Simple", "LL", "LL128"])),
    element("button", {}, "Make the program"));
  return panel("Program", form, outcome);
}

async function fabricPanel(key, report, shown) {
  const { nodes: ranks } = report.topology;
  const images = element("div", { class: "halves" }), controls = element("div", { class: "row" });
  const rows = element("details", {}, element("summary", {}, "Loads as a table"));
  const root = element("input", { type: "number", min: 0, max: ranks - 1, value: 0, change: () => root.reportValidity() && draw() });
  const whole = panel("On the fabric", element("div", { class: "row controls" }, field("Root", root), controls), images, rows);
  const table = dataTable("Loads", loadColumns(report.unit), "loads");
  let halt = () => {};
  const draw = async () => {
    try {
      const picture = await get(`/v1/results/${key}/picture`, { root: root.value }, shown.signal);
      halt();
      halt = player(picture, { images, controls }, shown);
      rows.replaceChildren(rows.firstChild, table.show(loadRows(picture)));
    } catch (error) {
      if (error.name !== "AbortError") images.replaceChildren(element("p", { class: "hint" }, error.message));
    }
  };
  await draw();
  return whole;
}

const loadColumns = (unit) => [
  { name: "connection", text: (row) => row.name },
  { name: "shards", text: (row) => number(row.load), value: (row) => row.load, number: true },
  { name: `bandwidth (${unit === "link" ? "links" : unit})`, text: (row) => number(row.bandwidth), value: (row) => row.bandwidth, number: true },
  { name: "of the busiest", text: (row) => `${Math.round(100 * row.share)} %`, value: (row) => row.share, number: true },
];

// Shows the complete collective, one step, or all steps one after the other; returns a function that stops this.
function player(picture, { images, controls }, shown) {
  const told = element("p", { class: "hint", role: "status" });
  const load = loads(picture), route = tree(picture);
  const show = (step) => {
    load.show(step);
    route.show(step);
    told.textContent = step === null ? (picture.steps ? "The whole collective." : "The whole collective; this one has too many steps to draw each.") : stepSummary(picture, step);
  };
  images.replaceChildren(load.view, route.view);
  show(null);
  if (!picture.steps) { controls.replaceChildren(told); return () => {}; }
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
  controls.replaceChildren(play, field("Step", slider), all, told);
  return stop;
}

export async function boundOf(_key, { document: report }) {
  const { unit, in_network: switches, collective, topology: { spec } } = report;
  const isFile = spec.startsWith("file:");
  const view = isFile ? null : await post("/v1/topologies", { topology: spec });
  const about = facts([
    ["network", spec],
    ["time per byte", `at least ${timePerByte(report.time_per_byte, unit)}`],
    ["algbw", `at most ${rate(report.algbw, unit)}`],
    ["because", report.because],
    ["trees per root", report.k ?? report.k_optimal],
    ["with switches that add or multicast", switches && `at least ${timePerByte(switches.time_per_byte, unit)}: algbw at most ${rate(switches.algbw, unit)}, ${gainOf(switches.algbw / report.algbw)}`],
    ["because, with switches", switches && report.because_in_network],
    ["certificate", "checked by separate code"],
  ]);
  const design = isFile ? null : element("p", {}, element("a", { href: hashOf(["design"], { topology: spec, collective }) }, "Design a schedule that comes close to it"));
  const cuts = element("div", { class: "halves" }, cutOf(view, report.bottleneck_cut, switches ? "Ranks alone" : "The bottleneck"),
    switches && cutOf(view, switches.bottleneck_cut, "With switches that add or multicast"));
  return panel(`Bound of ${collective}`, about, design, cuts);
}

function gainOf(ratio) {
  return ratio > 1.0005 ? `${number(ratio, 3)} times that of ranks alone` : "no more than ranks alone";
}

function cutOf(view, cut, title) {
  const inside = new Set(cut);
  const names = cut.length > SHOWN_NODES ? [...cut.slice(0, SHOWN_NODES), "…"] : cut;
  const text = element("p", {}, element("strong", {}, title), `: the data that must cross the border of ${names.join(", ")}.`);
  const { picture, unit, why } = view ?? {};
  if (!picture) return element("div", {}, text, why && element("p", { class: "hint" }, why));
  return element("div", {}, text, network(picture, unit, (node) => (inside.has(picture.nodes[node].id) ? "cut" : "")));
}
