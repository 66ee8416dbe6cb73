// Calls of the API. A refusal becomes a Refusal with the rule, the value and the way out.

export class Refusal extends Error {
  constructor(status, facts) {
    super(`${facts.rule}; got ${facts.value}; ${facts.way_out}`);
    this.status = status;
    this.facts = facts;
  }
}

const TOKEN = "chorale-token";

// The link that `chorale serve` prints carries a token behind the #, which browsers send nowhere. It moves from the
// address bar, and thus from the history, into the storage of this tab.
export function takeToken() {
  const [, token] = location.hash.match(/^#token=([A-Za-z0-9_.-]+)$/) ?? [];
  if (!token) return;
  sessionStorage.setItem(TOKEN, token);
  history.replaceState(null, "", location.pathname);
}

async function send(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...(options.headers ?? {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  if (answer.status === 401 && (await askForToken())) return send(path, options);
  throw new Refusal(answer.status, await refusalOf(answer));
}

async function refusalOf(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return { rule: "the service must answer", value: `status ${answer.status}`, way_out: "look at its log" };
  }
}

let asking = null;

function askForToken() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    const input = document.getElementById("token");
    input.value = "";
    dialog.addEventListener("close", () => {
      asking = null;
      if (input.value) sessionStorage.setItem(TOKEN, input.value);
      resolve(Boolean(input.value));
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

export async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given).toString();
  return (await send(text ? `${path}?${text}` : path)).json();
}

export async function post(path, body = {}) {
  const headers = { "Content-Type": "application/json" };
  return (await send(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

export async function remove(path) {
  return (await send(path, { method: "DELETE" })).json();
}

export async function download(path, name) {
  const content = await (await send(path)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

// Ask for a job until it has ended; `seen` is called with every state of it.
export async function finished(job, seen = () => {}, signal = { stopped: false }) {
  let pause = 150;
  while (!signal.stopped) {
    seen(job);
    if (!["queued", "running"].includes(job.state)) return job;
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(1500, pause * 1.3);
    job = await get(`/v1/jobs/${job.id}`);
  }
  return job;
}
