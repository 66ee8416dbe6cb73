// Shows the current view, whether the service responds, and errors.

import { address } from "./address.js";
import { OFFLINE, events, takeToken } from "./api.js";
import { campaigns } from "./campaigns.js";
import { compare } from "./compare.js";
import { bound, design } from "./design.js";
import { find } from "./find.js";
import { jobs } from "./jobs.js";
import { judge } from "./judge.js";

const VIEWS = { design, bound, find, judge, jobs, compare, campaigns };
const TAB = { bound: "design" };
let current = new AbortController(), before = null;

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

// One stream of events per page: health, and the topics of the current view.
function listen(topics, seen, signal) {
  events(["health", ...topics], (topic, data) => {
    if (topic === "health") healthOf(data);
    else if (topic === OFFLINE) healthOf(null);
    else if (!signal.aborted) Promise.resolve(seen(topic, data)).catch(alertOf);
  }, signal).catch(alertOf);
}

function tabOf(view) {
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${TAB[view] ?? view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function show() {
  takeToken();
  const { view: name, parts, query } = address();
  const view = Object.hasOwn(VIEWS, name) ? name : "design";
  current.abort();
  current = new AbortController();
  const { signal } = current;
  alertOf(name && view !== name ? new Error(`there is no view ${name}; take one of those above`) : null);
  tabOf(view);
  document.title = [parts[0]?.slice(0, 24), view[0].toUpperCase() + view.slice(1), "Chorale"].filter(Boolean).join(" · ");
  if (view !== before) window.scrollTo(0, 0);
  before = view;
  const main = document.getElementById("main");
  main.replaceChildren();
  let heard = false;
  const shown = { signal, alert: alertOf, listen: (topics, seen) => { heard = true; listen(topics, seen, signal); } };
  try {
    await VIEWS[view](main, { parts, query }, shown);
  } catch (error) {
    if (!signal.aborted) alertOf(error);
  }
  if (!heard && !signal.aborted) listen([], () => {}, signal);
}

// The part after # names a view, so a link to a place in the page would be mistaken for a view.
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
window.addEventListener("hashchange", show);
window.addEventListener("unhandledrejection", (event) => alertOf(event.reason));
show();
