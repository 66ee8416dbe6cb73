// Which view is shown, whether the service answers, and what went wrong.

import { OFFLINE, events, takeToken } from "./api.js";
import { bound } from "./bound.js";
import { campaigns } from "./campaigns.js";
import { compare } from "./compare.js";
import { design } from "./design.js";
import { fabrics } from "./fabrics.js";
import { find } from "./find.js";
import { jobs } from "./jobs.js";

const VIEWS = { design, bound, find, jobs, compare, campaigns, fabrics };
const TAB = { bound: "design" };
let current = new AbortController();

function alertOf(error) {
  const line = document.getElementById("alert");
  if (error?.name === "AbortError") return;
  line.textContent = error ? error.message : "";
  line.hidden = !error;
}

function healthOf(health) {
  const line = document.getElementById("health");
  const answers = health !== null && health.ok;
  line.textContent = answers ? `version ${health.version}: ${health.running} running, ${health.queued} queued` : "the service does not answer";
  line.className = answers ? "" : "error";
}

// One stream of events per page: health, and what the view asks for.
function listen(topics, seen, signal) {
  events(["health", ...topics], (topic, data) => {
    if (topic === "health") healthOf(data);
    else if (topic === OFFLINE) healthOf(null);
    else if (!signal.aborted) Promise.resolve(seen(topic, data)).catch(alertOf);
  }, signal).catch(alertOf);
}

async function show() {
  takeToken();
  const [name, ...rest] = location.hash.slice(1).split("/");
  const view = VIEWS[name] ? name : "design";
  current.abort();
  current = new AbortController();
  const { signal } = current;
  alertOf(null);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${TAB[view] ?? view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const main = document.getElementById("main");
  main.replaceChildren();
  let heard = false;
  const shown = { signal, listen: (topics, seen) => { heard = true; listen(topics, seen, signal); } };
  try {
    await VIEWS[view](main, rest.map(decodeURIComponent), shown);
  } catch (error) {
    alertOf(error);
  }
  if (!heard && !signal.aborted) listen([], () => {}, signal);
}

window.addEventListener("hashchange", show);
window.addEventListener("unhandledrejection", (event) => alertOf(event.reason));
show();
