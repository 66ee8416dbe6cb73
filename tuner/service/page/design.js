// Ask for a schedule or a bound; the network is drawn while its spec is typed.

import { catalog, finished, get, post } from "./api.js";
import { boundOf } from "./bound.js";
import { bytes, choice, element, errorOf, field, panel } from "./dom.js";
import { network } from "./picture.js";
import { resultOf } from "./result.js";

const KEPT = "chorale-design";
const FIRST = { topology: "torus:4x4", method: "auto", collective: "allreduce", root: "0", k: "", chunks: "" };
const COLLECTIVES = ["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall"];
const ROOTED = ["broadcast", "reduce"];
const TYPING_MS = 250;
const count = (text) => (text ? Number(text) : null);

export function keptDesign() {
  return { ...FIRST, ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") };
}

export function keepDesign(values) {
  sessionStorage.setItem(KEPT, JSON.stringify({ ...keptDesign(), ...values }));
}

export async function design(main, [key], shown) {
  const { outcome } = designPanel(main, shown);
  if (key) outcome.replaceChildren(await resultOf(key, shown));
  else outcome.replaceChildren(element("p", { class: "hint" }, "Nothing designed yet: press Design, or try a100:2."));
}

// The form with its preview, and below it the place of what comes of it.
export function designPanel(main, shown) {
  const outcome = element("div", { "aria-live": "polite" });
  const preview = element("div", { class: "preview", "aria-live": "polite" });
  const form = formOf(preview, outcome, shown);
  main.append(panel("Design a schedule", element("div", { class: "halves" }, form, preview)), outcome);
  return { outcome };
}

function formOf(preview, outcome, shown) {
  const kept = keptDesign();
  const families = element("datalist", { id: "families" });
  const topology = element("input", { name: "topology", required: true, value: kept.topology, spellcheck: "false", autocomplete: "off", list: "families" });
  const file = element("input", { name: "file", type: "file", accept: ".json" });
  const number = (name, attributes) => element("input", { name, type: "number", value: kept[name], ...attributes });
  const root = field("Root", number("root", { min: 0 })), trees = field("k (trees per root)", number("k", { min: 1, placeholder: "optimal" }));
  const chunks = field("Chunks per shard", number("chunks", { min: 1, placeholder: "optimal" }));
  const method = choice("method", [kept.method], kept.method, { "aria-describedby": "method-summary" });
  const summary = element("p", { class: "hint wide", id: "method-summary" });
  const form = element("form", { class: "fields", submit: (event) => { event.preventDefault(); order(form, event.submitter?.value ?? "syntheses", outcome, shown); } },
    families, field("Topology", topology), field("or a JSON topology", file), field("Method", method),
    field("Collective", choice("collective", COLLECTIVES, kept.collective)), root, trees, chunks, summary,
    element("div", { class: "row wide" }, element("button", { value: "syntheses" }, "Design"), element("button", { value: "bounds", class: "quiet" }, "Bound only")));
  const look = previewer(form, preview, shown);
  const adapt = async () => {
    const { methods, families: forms } = await catalog();
    if (!families.childElementCount) families.append(...forms.map((one) => element("option", { value: one.example }, `${one.syntax}: ${one.summary}`)));
    const values = Object.fromEntries(new FormData(form));
    const chosen = methods.find((one) => one.name === values.method) ?? methods.find((one) => one.name === "auto");
    method.replaceChildren(...methods.toSorted((a, b) => (b.name === "auto") - (a.name === "auto")).map((one) =>
      element("option", { value: one.name, selected: one === chosen, disabled: !one.collectives.includes(values.collective) }, one.name)));
    summary.textContent = chosen.summary;
    root.hidden = !ROOTED.includes(values.collective);
    trees.hidden = !chosen.options.includes("k");
    chunks.hidden = !chosen.options.includes("chunks");
  };
  form.addEventListener("input", () => { const { file: _, ...values } = Object.fromEntries(new FormData(form)); keepDesign(values); adapt(); });
  topology.addEventListener("input", () => look(TYPING_MS));
  file.addEventListener("change", () => look(0));
  adapt().catch(() => {});
  look(0);
  return form;
}

async function networkOf(form) {
  const file = new FormData(form).get("file");
  return file?.size ? JSON.parse(await file.text()) : form.elements.topology.value;
}

// Draws the network `delay` milliseconds after the last change; what it asked for before is given up.
function previewer(form, preview, shown) {
  let last = new AbortController(), timer = 0;
  shown.signal.addEventListener("abort", () => { clearTimeout(timer); last.abort(); });
  const look = async () => {
    last.abort();
    const { signal } = (last = new AbortController());
    try {
      const source = await networkOf(form);
      const view = await (typeof source === "string" ? get("/v1/topologies", { topology: source }, signal) : post("/v1/topologies", { topology: source }, signal));
      if (!signal.aborted) preview.replaceChildren(...described(view));
    } catch (error) {
      if (!signal.aborted) preview.replaceChildren(element("p", { class: "hint" }, error.message));
    }
  };
  return (delay) => { clearTimeout(timer); timer = setTimeout(look, delay); };
}

export function described({ topology, unit, picture, why }, marked) {
  const facts = [`${topology.nodes} ranks`, topology.switches ? `${topology.switches} switches` : null, `${topology.links} links`,
    topology.degree === null ? null : `degree ${topology.degree}`, `diameter ${topology.diameter}`];
  return [element("p", {}, element("strong", {}, topology.spec ?? "network"), `: ${facts.filter(Boolean).join(", ")}`),
    picture ? network(picture, unit, marked) : element("p", { class: "hint" }, why)];
}

async function order(form, kind, outcome, shown) {
  const buttons = form.querySelectorAll("button");
  buttons.forEach((button) => { button.disabled = true; });
  try {
    const values = new FormData(form), collective = values.get("collective");
    const isShown = (name) => !form.elements[name].closest("label").hidden;
    const body = { topology: await networkOf(form), collective };
    if (isShown("root")) body.root = Number(values.get("root"));
    if (kind === "syntheses") body.method = values.get("method");
    if (kind === "syntheses" && isShown("chunks")) body.chunks = count(values.get("chunks"));
    if (isShown("k") && (kind === "syntheses" || !["allreduce", "alltoall"].includes(collective))) body.k = count(values.get("k"));
    const job = await finished(await post(`/v1/${kind}`, body), (now) => outcome.replaceChildren(stateOf(now)), shown.signal);
    if (job.state !== "done") return;
    history.pushState(null, "", `#${kind === "bounds" ? "bound" : "design"}/${job.result}`); // the form stays as it is
    outcome.replaceChildren(kind === "bounds" ? await boundOf(job.result) : await resultOf(job.result, shown));
  } catch (error) {
    outcome.replaceChildren(element("p", { class: "error" }, error.message));
  } finally {
    buttons.forEach((button) => { button.disabled = false; });
  }
}

export function stateOf(job) {
  if (job.error) return errorOf(job.error);
  const bar = element("progress", { ...(job.progress ? { max: job.progress.total, value: job.progress.done } : {}), "aria-label": "progress" });
  return element("p", { class: "row" }, bar, `${job.state}, at most ${bytes(job.memory_bytes)} of memory`);
}
