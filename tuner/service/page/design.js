// Request a schedule or a bound; the network is drawn while its spec is typed.

import { address, hashOf, noteAddress } from "./address.js";
import { catalog, finished, get, post } from "./api.js";
import { choice, counted, element, field, namedResult, panel, stateOf, tell } from "./dom.js";
import { network } from "./picture.js";
import { boundOf, resultOf } from "./result.js";

const KEPT = "chorale-design";
const FIRST = { topology: "torus:4x4", method: "auto", collective: "allreduce", root: "0", k: "", chunks: "" };
const COLLECTIVES = ["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall"];
const FILES = "JSON or GraphML; a dump of NCCL or RCCL; or what nvidia-smi topo -m, rocm-smi, lstopo or ibnetdiscover printed";
const MEANINGS = {
  allgather: "Every rank ends with the shards of all ranks.", reduce_scatter: "Every rank ends with the sum of one shard.",
  allreduce: "Every rank ends with the sum of all vectors.", broadcast: "Every rank ends with the vector of the root.",
  reduce: "The root ends with the sum of all vectors.", alltoall: "Every rank sends a different block to every other rank.",
};
const OPTIONS = {
  k: "k: spanning trees for each root; fewer give simpler programs, more come closer to the bound.",
  chunks: "Chunks per shard: equal parts that are sent separately; by default the fewest that lose nothing.",
};
const ROOTED = ["broadcast", "reduce"];
const EXAMPLES = ["torus:4x4", "a100:2", "h100:2", "mi300x:1", "dragonfly:4,2,2", "without(torus:4x4;link=0-1)"];
const TYPING_MS = 250;
const count = (text) => (text ? Number(text) : null);

export const design = (main, address, shown) => view(main, address, shown, resultOf, examples);
export const bound = (main, address, shown) => view(main, address, shown, boundOf, () => "");

// resultView: shows the result that the address names; otherwise: shown if the address names none
async function view(main, { parts: [key], query }, shown, resultView, otherwise) {
  const result = await namedResult(key, shown);
  const outcome = designPanel(main, valuesOf(query, result?.document), shown);
  outcome.replaceChildren(result ? await resultView(key, result, shown) : otherwise());
}

function examples() {
  const links = EXAMPLES.map((topology) => element("a", { href: hashOf(["design"], { topology }) }, topology));
  return element("p", { class: "row hint" }, "Press Design, or begin with", links);
}

// Initial content of the form: from the address, else from the result's request, else as it was last.
function valuesOf(query, report) {
  const given = Object.fromEntries(Object.entries(query).filter(([name]) => name in FIRST));
  if (!report || Object.keys(given).length) return { ...FIRST, ...(Object.keys(given).length ? given : kept()) };
  const { topology: { spec }, collective, method, parameters = {}, root } = report;
  const named = (value) => (value === null || value === undefined ? "" : String(value));
  return { ...FIRST, topology: spec, collective, method: method ?? "auto", root: named(root ?? parameters.root ?? 0), k: named(parameters.k), chunks: named(parameters.chunks) };
}

const kept = () => JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");

// The form with its preview, and below it the place for the result, which is returned.
function designPanel(main, values, shown) {
  const outcome = element("div", { class: "result" });
  const preview = element("div", { class: "preview" }, element("p", { class: "hint" }, "The network is drawn here.")), status = element("div", { role: "status" });
  const form = formOf(values, { preview, status, outcome }, shown);
  main.append(panel("Design a schedule", element("div", { class: "halves" }, form, preview), status), outcome);
  return outcome;
}

function formOf(values, regions, shown) {
  const families = element("datalist", { id: "families" });
  const topology = element("input", { name: "topology", required: true, value: values.topology, spellcheck: "false", autocomplete: "off", list: "families" });
  const file = element("input", { name: "file", type: "file", title: FILES });
  const number = (name, attributes) => element("input", { name, type: "number", value: values[name], ...attributes });
  const root = field("Root", number("root", { min: 0 })), trees = field("k (trees per root)", number("k", { min: 1, placeholder: "optimal" }));
  const chunks = field("Chunks per shard", number("chunks", { min: 1, placeholder: "optimal" }));
  const method = choice("method", [values.method], values.method, { "aria-describedby": "method-summary" });
  const summary = element("p", { class: "hint wide", id: "method-summary" });
  const form = element("form", { class: "fields", submit: (event) => { event.preventDefault(); order(form, event.submitter?.value ?? "syntheses", regions, shown); } },
    families, element("div", { class: "wide" }, field("Topology", topology)), field("or a file of the machine", file), field("Method", method),
    field("Collective", choice("collective", COLLECTIVES, values.collective)), root, trees, chunks, summary,
    element("div", { class: "row wide" }, element("button", { value: "syntheses" }, "Design"), element("button", { value: "bounds", class: "quiet" }, "Bound only")));
  const look = previewer(form, regions.preview, shown);
  const adapt = async () => {
    const { methods, families: forms } = await catalog();
    if (!families.childElementCount) families.append(...forms.map((one) => element("option", { value: one.example }, `${one.syntax}: ${one.summary}`)));
    const now = typed(form);
    const able = (one) => one.collectives.includes(now.collective);
    const chosen = methods.find((one) => one.name === now.method && able(one)) ?? methods.find((one) => one.name === "auto");
    method.replaceChildren(...methods.toSorted((a, b) => (b.name === "auto") - (a.name === "auto")).map((one) =>
      element("option", { value: one.name, selected: one === chosen, disabled: !able(one) }, one.name)));
    root.hidden = !ROOTED.includes(now.collective);
    trees.hidden = !chosen.options.includes("k");
    chunks.hidden = !chosen.options.includes("chunks");
    const explained = Object.entries(OPTIONS).filter(([name]) => chosen.options.includes(name)).map(([, text]) => text);
    summary.textContent = [`${chosen.name}: ${chosen.summary}`, `${now.collective}: ${MEANINGS[now.collective]}`, ...explained].join(" ");
  };
  form.addEventListener("input", async (event) => {
    if (event.target === topology) file.value = ""; // the network that was entered last is used
    if (event.target !== file) tell(event.target, "");
    await adapt();
    note(form);
  });
  topology.addEventListener("input", () => look(TYPING_MS));
  file.addEventListener("change", () => look(0));
  adapt().catch(shown.alert);
  look(0);
  return form;
}

function typed(form) {
  const { file: _, ...values } = Object.fromEntries(new FormData(form));
  return values;
}

// Store the form's content in the tab and in the address; the displayed result stays.
function note(form) {
  const values = typed(form);
  sessionStorage.setItem(KEPT, JSON.stringify(values));
  const { view, parts } = address();
  noteAddress(hashOf([view || "design", ...parts], asked(form, values)));
}

// The values of the visible fields.
function asked(form, values) {
  return Object.fromEntries(Object.entries(values).filter(([name]) => isShown(form, name)));
}

const isShown = (form, name) => !form.elements[name].closest(".field").hidden;

async function networkOf(form) {
  const file = new FormData(form).get("file");
  if (!file?.size) return form.elements.topology.value;
  const text = await file.text();
  return text.trimStart().startsWith("{") ? JSON.parse(text) : { file: text };
}

// Draws the network `delay` milliseconds after the last change and drops earlier requests. An error is shown next to
// the field, and the last picture stays, but pale.
function previewer(form, preview, shown) {
  let last = new AbortController(), timer = 0;
  shown.signal.addEventListener("abort", () => { clearTimeout(timer); last.abort(); });
  const draw = async () => {
    last.abort();
    const { signal } = (last = new AbortController());
    const { topology, file } = form.elements, given = file.files.length ? file : topology;
    try {
      const view = await post("/v1/topologies", { topology: await networkOf(form) }, signal);
      if (signal.aborted) return;
      form.elements.root.max = view.topology.nodes - 1;
      preview.replaceChildren(...described(view));
      preview.classList.remove("stale");
      tell(topology, "");
      tell(file, "");
    } catch (error) {
      if (signal.aborted) return;
      tell(given, error.message);
      preview.classList.add("stale");
    }
  };
  return (delay) => { clearTimeout(timer); timer = setTimeout(draw, delay); };
}

function described({ topology, unit, picture, why }) {
  const facts = [counted(topology.nodes, "rank"), topology.switches ? counted(topology.switches, "switch") : null, counted(topology.links, "link"),
    topology.degree === null ? null : `degree ${topology.degree}`, `diameter ${topology.diameter}`];
  return [element("p", { class: "spec" }, element("strong", {}, topology.spec ?? "network"), `: ${facts.filter(Boolean).join(", ")}`),
    picture ? network(picture, unit) : element("p", { class: "hint" }, why)];
}

async function order(form, kind, { status, outcome }, shown) {
  const buttons = form.querySelectorAll("button");
  buttons.forEach((button) => { button.disabled = true; });
  const view = kind === "bounds" ? "bound" : "design";
  if (!outcome.querySelector("section")) outcome.replaceChildren(); // remove the text shown without a result
  try {
    const job = await finished(await post(`/v1/${kind}`, await requestOf(form, kind)), (now) => status.replaceChildren(stateOf(now)), shown.signal);
    if (job.state !== "done" || shown.signal.aborted) return;
    noteAddress(hashOf([view, job.result], asked(form, typed(form))), true); // the form does not change
    const result = await get(`/v1/results/${job.result}`);
    outcome.replaceChildren(await (kind === "bounds" ? boundOf : resultOf)(job.result, result, shown));
    status.replaceChildren(element("p", { class: "hint" }, job.cached === "no" ? "Done." : "Done: this was computed before."));
    outcome.scrollIntoView({ block: outcome.getBoundingClientRect().top > 0.6 * innerHeight ? "start" : "nearest" });
  } catch (error) {
    status.replaceChildren();
    refused(form, error, status);
  } finally {
    buttons.forEach((button) => { button.disabled = false; });
  }
}

async function requestOf(form, kind) {
  const values = asked(form, typed(form)), { collective } = values;
  const body = { topology: await networkOf(form), collective };
  if (values.root) body.root = Number(values.root);
  if (kind === "syntheses") body.method = values.method;
  if (kind === "syntheses" && "chunks" in values) body.chunks = count(values.chunks);
  if ("k" in values && (kind === "syntheses" || !["allreduce", "alltoall"].includes(collective))) body.k = count(values.k);
  return body;
}

// Show an error next to the field that it names, or else below the form.
function refused(form, error, status) {
  const [, name] = String(error.facts?.value ?? "").match(/^body\.(\w+)/) ?? [];
  const input = name && form.elements[name];
  if (input && isShown(form, name)) {
    tell(input, error.message);
    input.focus();
  } else status.replaceChildren(element("p", { class: "error" }, error.message));
}
