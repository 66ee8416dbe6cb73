// Ask for a schedule, see what it costs, look at it, take it along.

import { download, finished, get, post } from "./api.js";
import { bytes, choice, element, facts, field, number, panel } from "./dom.js";
import { loads, tree } from "./picture.js";

const METHODS = ["bfb", "forest", "swing", "swing-latency", "ring", "biring", "hamiltonian-ring", "bucket", "recursive-doubling", "rabenseifner", "double-binary-tree", "blink", "traditional-torus", "expand", "auto"];
const COLLECTIVES = ["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall"];
const TARGETS = ["msccl-xml", "msccl-executor-xml", "oneccl-xml", "mscclpp-json"];
const count = (text) => (text ? Number(text) : null);

export async function design(main, [key], shown) {
  const outcome = element("div", { "aria-live": "polite" });
  main.append(panel("Design a schedule", formOf(outcome, shown)), outcome);
  if (key) outcome.replaceChildren(await resultOf(key));
  else outcome.replaceChildren(element("p", { class: "hint" }, "Nothing asked for yet: try torus:4x4 with bfb, or a100:2 with forest."));
}

function formOf(outcome, shown) {
  const topology = element("input", { name: "topology", required: true, value: "torus:4x4", spellcheck: "false" });
  const file = element("input", { name: "file", type: "file", accept: ".json" });
  const form = element("form", { class: "fields", submit: (event) => { event.preventDefault(); order(form, outcome, shown); } },
    field("Topology", topology), field("or a JSON topology", file),
    field("Method", choice("method", METHODS, "bfb")), field("Collective", choice("collective", COLLECTIVES, "allreduce")),
    field("Root", element("input", { name: "root", type: "number", min: 0, value: 0 })),
    field("k (trees per root)", element("input", { name: "k", type: "number", min: 1, placeholder: "optimal" })),
    field("Chunks per shard", element("input", { name: "chunks", type: "number", min: 1, placeholder: "optimal" })),
    element("button", {}, "Design"));
  return form;
}

async function order(form, outcome, shown) {
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const given = new FormData(form), file = given.get("file");
    const topology = file && file.size ? JSON.parse(await file.text()) : given.get("topology");
    const body = { topology, method: given.get("method"), collective: given.get("collective"), root: Number(given.get("root")), k: count(given.get("k")), chunks: count(given.get("chunks")) };
    const job = await finished(await post("/v1/syntheses", body), (now) => outcome.replaceChildren(stateOf(now)), shown);
    if (job.state === "done") location.hash = `#design/${job.result}`;
  } catch (error) {
    outcome.replaceChildren(element("p", { class: "error" }, error.message));
  } finally {
    button.disabled = false;
  }
}

export function stateOf(job) {
  if (job.error) return element("p", { class: "error" }, `${job.error.rule}; got ${job.error.value}; ${job.error.way_out}`);
  const bar = element("progress", job.progress ? { max: job.progress.total, value: job.progress.done } : {});
  return element("p", { class: "row" }, bar, `${job.state}, at most ${bytes(job.memory_bytes)} of memory`);
}

async function resultOf(key) {
  const { document: found, files } = await get(`/v1/results/${key}`);
  const gap = found.optimality.gap;
  const verdict = gap === "0" ? element("span", { class: "good" }, "optimal, with a proof") : `${gap} above the bound`;
  const trees = found.schedule.trees_per_root;
  const about = facts([
    ["network", `${found.topology.spec}: ${found.topology.nodes} ranks, ${found.topology.links} links`],
    ["schedule", `${found.schedule.kind}, ${found.schedule.steps} steps, ${found.schedule.transfers} transfers${trees ? `, ${trees} trees per root` : ""}`],
    ["time per byte", `${found.cost.time_per_byte} per ${found.unit}`],
    ["algbw", `${number(found.cost.algbw)} ${found.unit}`],
    ["lower bound", found.optimality.lower_bound],
    ["quality", verdict],
    ["verified", found.verified ? "yes" : "NO"],
    ["schedule id", found.schedule.id],
  ]);
  const buttons = files.map((name) => element("button", { class: "quiet", click: () => download(`/v1/results/${key}/files/${name}`, name) }, `Download ${name}`));
  const whole = element("div", { class: "result" }, panel(`${found.method} ${found.collective}`, about, element("div", { class: "row" }, buttons, element("a", { href: `#compare/${key}` }, "Compare"))));
  whole.append(programPanel(key), await picturePanel(key, found.topology.nodes));
  return whole;
}

function programPanel(key) {
  const outcome = element("div", { "aria-live": "polite" });
  const form = element("form", { class: "fields", submit: async (event) => {
    event.preventDefault();
    const given = new FormData(form);
    try {
      const body = { result: key, target: given.get("target"), channels: Number(given.get("channels")), instances: Number(given.get("instances")), protocol: given.get("protocol") };
      const job = await finished(await post("/v1/programs", body), (now) => outcome.replaceChildren(stateOf(now)));
      if (job.state === "done") {
        await offer(job.result, outcome);
      }
    } catch (error) {
      outcome.replaceChildren(element("p", { class: "error" }, error.message));
    }
  } }, field("Runtime", choice("target", TARGETS)), field("Channels", element("input", { name: "channels", type: "number", min: 1, value: 1 })),
  field("Instances", element("input", { name: "instances", type: "number", min: 1, value: 1 })), field("Protocol", choice("protocol", ["Simple", "LL", "LL128"])),
  element("button", {}, "Make the program"));
  return panel("Program", form, outcome);
}

async function offer(key, outcome) {
  const { document: found, files } = await get(`/v1/results/${key}`);
  const buttons = files.map((name) => element("button", { class: "quiet", click: () => download(`/v1/results/${key}/files/${name}`, name) }, `Download ${name}`));
  outcome.replaceChildren(element("p", { class: "row" }, `${found.target}: ${found.ranks} ranks, ${found.chunks} chunks, checked.`, buttons));
}

async function picturePanel(key, ranks) {
  const place = element("div", { class: "halves" });
  const root = element("input", { type: "number", min: 0, max: ranks - 1, value: 0, change: () => draw(key, root.value, place) });
  const whole = panel("On the fabric", element("div", { class: "row" }, field("Root", root)), place);
  await draw(key, 0, place);
  return whole;
}

async function draw(key, root, place) {
  try {
    const picture = await get(`/v1/results/${key}/picture`, { root });
    place.replaceChildren(loads(picture), tree(picture));
  } catch (error) {
    place.replaceChildren(element("p", { class: "hint" }, error.message));
  }
}
