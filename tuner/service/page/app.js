// Which view is shown, whether the service answers, and what went wrong.

import { get, takeToken } from "./api.js";
import { campaigns } from "./campaigns.js";
import { compare } from "./compare.js";
import { design } from "./design.js";
import { jobs } from "./jobs.js";

const VIEWS = { design, jobs, compare, campaigns };
let shown = { stopped: false };

function alertOf(error) {
  const place = document.getElementById("alert");
  place.textContent = error ? error.message : "";
  place.hidden = !error;
}

async function show() {
  takeToken();
  const [name, ...rest] = location.hash.slice(1).split("/");
  const view = VIEWS[name] ? name : "design";
  shown.stopped = true;
  shown = { stopped: false };
  alertOf(null);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const main = document.getElementById("main");
  main.replaceChildren();
  try {
    await VIEWS[view](main, rest.map(decodeURIComponent), shown);
  } catch (error) {
    alertOf(error);
  }
}

async function watchHealth() {
  const place = document.getElementById("health");
  for (;;) {
    try {
      const health = await get("/healthz");
      place.textContent = `version ${health.version}: ${health.running} running, ${health.queued} queued`;
      place.className = "";
    } catch {
      place.textContent = "the service does not answer";
      place.className = "error";
    }
    await new Promise((resolve) => setTimeout(resolve, 3000));
  }
}

window.addEventListener("hashchange", show);
window.addEventListener("unhandledrejection", (event) => alertOf(event.reason));
show();
watchHealth();
