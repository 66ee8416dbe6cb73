// A campaign file as text: checked while it is edited, then launched.

import { hashOf } from "./address.js";
import { catalog, pause, post } from "./api.js";
import { element, errorOf, panel } from "./dom.js";

const FIRST = `name: first-campaign
topology: hypercube:3
collective: allreduce
sizes: [64KiB, 1MiB]
runner: {kind: simulated, link_mbps: 1000, alpha_us: 5}
search:
  methods: [bfb, ring, swing, recursive-doubling]
  chunks: [null, 1, 2]    # null: the smallest number that reaches the optimum
  channels: [1, 2]
budget: {trials: 12}
`;
const KEPT = "chorale-campaign";
const CHECK_MS = 400;

export function launchPanel(shown) {
  const text = element("textarea", { name: "campaign", spellcheck: "false", required: true, rows: 14, input: () => check(CHECK_MS) });
  const problem = element("div", { role: "alert" }), verdict = element("p", { class: "hint", role: "status" });
  const names = element("p", { class: "hint" });
  text.value = sessionStorage.getItem(KEPT) ?? FIRST;

  let last = new AbortController();
  async function check(delay) {
    last.abort();
    const { signal } = (last = new AbortController());
    sessionStorage.setItem(KEPT, text.value);
    await pause(delay, signal);
    if (signal.aborted || shown.signal.aborted) return;
    try {
      const checked = await post("/v1/campaigns/checks", { yaml: text.value }, signal);
      problem.replaceChildren();
      verdict.textContent = `Valid: ${checked.ranks} ranks, ${checked.points} configurations, up to ${checked.trials} trials.`;
    } catch (error) {
      if (!signal.aborted) refused(error);
    }
  }

  function refused(error) {
    verdict.textContent = "";
    problem.replaceChildren(error.facts ? errorOf(error.facts) : element("p", { class: "error" }, error.message));
  }

  const launch = element("button", { type: "button", click: async () => {
    launch.disabled = true;
    try {
      const { name } = await post("/v1/campaigns", { yaml: text.value });
      location.hash = hashOf(["campaigns", name]);
    } catch (error) {
      refused(error);
    } finally {
      launch.disabled = false;
    }
  } }, "Launch");

  catalog().then(({ methods, runners, profiles }) => {
    const listed = [["methods", methods.map((one) => one.name)], ["runners", runners], ["profiles of runners", profiles]];
    names.textContent = listed.filter(([, all]) => all.length).map(([what, all]) => `${what}: ${all.join(", ")}`).join("; ");
  }).catch(shown.alert);
  check(0);
  return panel("Launch a campaign", element("div", { class: "stack" }, element("label", {}, "Campaign, as YAML", text),
    element("p", { class: "hint" }, "chorale tune --schema explains every key."), names, verdict, problem, launch));
}
