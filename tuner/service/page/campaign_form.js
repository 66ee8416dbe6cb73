// A campaign as a form with YAML next to it: the form writes the YAML, and reads it after changes by hand.

import { hashOf } from "./address.js";
import { catalog, pause, post } from "./api.js";
import { choice, element, errorOf, field, panel, tell } from "./dom.js";

const FIRST = {
  name: "first-campaign", topology: "hypercube:3", collective: "allreduce", sizes: ["64KiB", "1MiB"],
  runner: { kind: "simulated", link_mbps: 1000, alpha_us: 5 },
  search: { methods: ["bfb", "ring", "swing", "recursive-doubling"], chunks: [null, 1, 2], channels: [1, 2] },
  budget: { trials: 12 },
};
const SAMPLERS = ["sizes-gp", "tpe", "random", "gp", "nsga2", "qmc", "grid"];
const TUNED = ["allreduce", "allgather", "reduce_scatter", "broadcast", "reduce", "alltoall"];
const KEPT = "chorale-campaign";

const words = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);
const numbers = (text) => words(text).map((word) => (["optimal", "null"].includes(word) ? null : Number(word)));
const told = (values) => [values ?? []].flat().map((value) => value ?? "optimal").join(", ");

// name of the field: [label, path of its key, function from text to value, function from value to text, attributes]
const FIELDS = [
  ["Name", ["name"], (text) => text, String, { required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._-]{0,63}" }],
  ["Network", ["topology"], (text) => text, String, { required: true, spellcheck: "false" }],
  ["Sizes", ["sizes"], words, told, { placeholder: "64KiB, 1MiB or 4KiB:1MiB:x4" }],
  ["Link rate (Mbit/s)", ["runner", "link_mbps"], Number, String, { type: "number", min: 0, step: "any" }],
  ["Per message (us)", ["runner", "alpha_us"], Number, String, { type: "number", min: 0, step: "any" }],
  ["Chunks", ["search", "chunks"], numbers, told, { placeholder: "optimal, 1, 2" }],
  ["Channels", ["search", "channels"], numbers, told, { placeholder: "1, 2" }],
  ["Instances", ["search", "instances"], numbers, told, { placeholder: "1, 2" }],
  ["Trials at most", ["budget", "trials"], Number, String, { type: "number", min: 1 }],
  ["Minutes at most", ["budget", "minutes"], Number, String, { type: "number", min: 0, step: "any" }],
  ["Seed", ["seed"], Number, String, { type: "number", min: 0 }],
];

const at = (campaign, path) => path.reduce((value, key) => value?.[key], campaign);

function put(campaign, path, value) {
  const last = path.at(-1), owner = path.slice(0, -1).reduce((section, key) => (section[key] ??= {}), campaign);
  if (value === undefined) delete owner[last];
  else owner[last] = value;
}

export function launchPanel(shown) {
  let campaign = structuredClone(FIRST), isReady = false;
  const early = new Map(); // input from before the names and the earlier text were loaded
  const text = element("textarea", { name: "campaign", spellcheck: "false", required: true, rows: 18 });
  const problem = element("div", { role: "alert" }), verdict = element("p", { class: "hint", role: "status" });
  const inputs = FIELDS.map(([, path, , , attributes]) => element("input", { ...attributes, "data-key": path.join(".") }));
  const collective = choice("collective", TUNED, "allreduce"), sampler = choice("sampler", ["default", ...SAMPLERS], "default");
  const runner = element("select", {}), methods = element("fieldset", { class: "ticks wide" }, element("legend", {}, "Methods"));
  const rows = FIELDS.map(([label], index) => field(label, inputs[index]));

  function fill() {
    FIELDS.forEach(([, path, , shownAs], index) => { inputs[index].value = at(campaign, path) === undefined ? "" : shownAs(at(campaign, path)); });
    collective.value = campaign.collective ?? "allreduce";
    sampler.value = campaign.sampler ?? "default";
    runner.value = campaign.runner?.profile ? `profile ${campaign.runner.profile}` : campaign.runner?.kind ?? "simulated";
    for (const box of methods.querySelectorAll("input")) box.checked = (campaign.search?.methods ?? []).includes(box.value);
    adapt();
  }

  // Hide or disable what does not apply to the runner and the collective.
  function adapt() {
    FIELDS.forEach(([, path], index) => { rows[index].hidden = path[0] === "runner" && runner.value !== "simulated"; });
    for (const box of methods.querySelectorAll("input")) {
      box.disabled = !box.dataset.collectives.split(" ").includes(collective.value);
      if (box.disabled) box.checked = false;
    }
  }

  function read({ target }) {
    if (isReady) write();
    else early.set(target, target.value);
  }

  function write() {
    adapt();
    const [kind, profile] = runner.value.split(" ");
    const isOther = profile ? campaign.runner?.profile !== profile : campaign.runner?.kind !== kind;
    if (isOther) campaign.runner = profile ? { profile } : { kind };
    FIELDS.forEach(([, path, parsed], index) => {
      if (path[0] === "runner" && kind !== "simulated") inputs[index].value = "";
      put(campaign, path, inputs[index].value === "" ? undefined : parsed(inputs[index].value));
    });
    put(campaign, ["collective"], collective.value);
    put(campaign, ["sampler"], sampler.value === "default" ? undefined : sampler.value);
    const chosen = [...methods.querySelectorAll("input:checked")].map((box) => box.value);
    put(campaign, ["search", "methods"], chosen.length ? chosen : undefined);
    campaign = JSON.parse(JSON.stringify(campaign)); // drops undefined values
    for (const key of ["search", "budget"]) if (campaign[key] && !Object.keys(campaign[key]).length) delete campaign[key];
    text.value = toYaml(campaign);
    check(300);
  }

  let last = new AbortController();
  async function check(delay) {
    last.abort();
    const { signal } = (last = new AbortController());
    sessionStorage.setItem(KEPT, text.value);
    await pause(delay, signal);
    if (signal.aborted || shown.signal.aborted) return null;
    try {
      const checked = await post("/v1/campaigns/checks", { yaml: text.value }, signal);
      said(null);
      verdict.textContent = `Valid: ${checked.ranks} ranks, ${checked.points} configurations, up to ${checked.trials} trials.`;
      return checked;
    } catch (error) {
      if (signal.aborted) return null;
      verdict.textContent = "";
      said(error);
      return null;
    }
  }

  // Show an error below the text and next to the field that caused it.
  function said(error) {
    const value = String(error?.facts?.value ?? ""), [key] = value.split(":");
    const about = error && inputs.find((input) => key === input.dataset.key || key.startsWith(`${input.dataset.key}.`) || value === input.value);
    for (const input of inputs) tell(input, input === about ? error.message : "");
    problem.replaceChildren(error === null ? "" : error.facts ? errorOf(error.facts) : element("p", { class: "error" }, error.message));
  }

  async function readText(delay) {
    const checked = await check(delay);
    if (checked) { campaign = checked.document; fill(); }
  }

  const form = element("form", { class: "fields", input: read },
    rows.slice(0, 2), field("Collective", collective), rows[2], field("Runner", runner), rows.slice(3), field("Sampler", sampler), methods);
  text.addEventListener("input", () => { early.clear(); readText(400); });
  const launch = element("button", { type: "button", click: async () => {
    launch.disabled = true;
    try {
      const { name } = await post("/v1/campaigns", { yaml: text.value });
      location.hash = hashOf(["campaigns", name]);
    } catch (error) {
      said(error);
    } finally {
      launch.disabled = false;
    }
  } }, "Launch");

  const kept = sessionStorage.getItem(KEPT);
  text.value = kept ?? toYaml(campaign);
  if (!kept) { fill(); check(0); }
  Promise.all([catalog(), kept && readText(0)]).then(([names]) => {
    runner.replaceChildren(...names.runners.map((name) => element("option", {}, name)), ...names.profiles.map((name) => element("option", {}, `profile ${name}`)));
    methods.append(...names.methods.filter((one) => one.collectives.some((name) => TUNED.includes(name)) && one.name !== "auto").map((one) =>
      element("label", { class: "tick", title: one.summary }, element("input", { type: "checkbox", value: one.name, "data-collectives": one.collectives.join(" ") }), one.name)));
    fill();
    isReady = true;
    for (const [input, value] of early) input.value = value;
    if (early.size) write();
  }).catch(shown.alert);
  const right = element("div", { class: "stack" }, element("label", {}, "Campaign, as YAML", text), element("p", { class: "hint" }, "The keys are those of a campaign file; what the form does not have is written here."), verdict, problem, launch);
  return panel("Launch a campaign", element("div", { class: "halves" }, form, right));
}

// Write plain data as YAML: mappings and lists as blocks, short ones on one line.

const PLAIN = /^[A-Za-z_][A-Za-z0-9_.:-]*$/;
const RESERVED = /^(true|false|null|yes|no|on|off|y|n|~)$/i;

function scalar(value) {
  if (value === null) return "null";
  if (typeof value !== "string") return String(value);
  return PLAIN.test(value) && !RESERVED.test(value) && !value.endsWith(":") ? value : JSON.stringify(value);
}

const isShort = (value) => Array.isArray(value) && value.every((one) => one === null || typeof one !== "object");

function toYaml(document, indent = "") {
  return Object.entries(document).map(([key, value]) => {
    if (isShort(value)) return `${indent}${scalar(key)}: [${value.map(scalar).join(", ")}]\n`;
    if (Array.isArray(value)) return `${indent}${scalar(key)}: ${JSON.stringify(value)}\n`;
    if (value === null || typeof value !== "object") return `${indent}${scalar(key)}: ${scalar(value)}\n`;
    if (!Object.keys(value).length) return `${indent}${scalar(key)}: {}\n`;
    return `${indent}${scalar(key)}:\n${toYaml(value, `${indent}  `)}`;
  }).join("");
}
