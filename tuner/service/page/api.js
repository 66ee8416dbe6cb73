// Calls the API. An error response is thrown as a Refusal with the rule, the value and the fix.

export class Refusal extends Error {
  constructor(status, facts) {
    super(`${facts.rule}; ${facts.way_out}`);
    this.status = status;
    this.facts = facts;
  }
}

const TOKEN = "chorale-token";

// The link that `chorale serve` prints has a token after the #, which browsers never send. We move it from the address
// bar, and thus from the history, into this tab's storage.
export function takeToken() {
  const [, token] = location.hash.match(/^#token=([A-Za-z0-9_.-]+)$/) ?? [];
  if (!token) return;
  sessionStorage.setItem(TOKEN, token);
  history.replaceState(null, "", location.pathname);
}

async function send(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...(options.headers ?? {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  if (response.status === 401 && (await askForToken())) return send(path, options);
  throw new Refusal(response.status, await refusalOf(response));
}

async function refusalOf(response) {
  try {
    return (await response.json()).error;
  } catch {
    return { rule: "the service must answer", value: `status ${response.status}`, way_out: "look at its log" };
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

export async function get(path, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given).toString();
  return (await send(text ? `${path}?${text}` : path, { signal })).json();
}

export async function post(path, body = {}, signal = undefined) {
  const headers = { "Content-Type": "application/json" };
  return (await send(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

export async function remove(path) {
  return (await send(path, { method: "DELETE" })).json();
}

export async function download(path, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await (await send(path)).blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

const SILENCE_MS = 10_000; // the service sends a keep-alive message every three seconds
export const OFFLINE = "offline";

// Call `seen(topic, data)` for every event on the topics until `signal` aborts, and `seen(OFFLINE)` if the service is
// silent. Lost connections are reopened.
export async function events(topics, seen, signal) {
  const query = new URLSearchParams(topics.map((topic) => ["topic", topic])).toString();
  while (!signal.aborted) {
    try {
      await readEvents(`/v1/events?${query}`, seen, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refusal && error.status < 500 && error.status !== 429) throw error;
      seen(OFFLINE, null);
    }
    await pause(1000, signal);
  }
}

async function readEvents(path, seen, signal) {
  const connection = new AbortController();
  const cut = () => connection.abort();
  signal.addEventListener("abort", cut);
  window.addEventListener("offline", cut);
  let watchdog = setTimeout(cut, SILENCE_MS);
  try {
    const reader = (await send(path, { signal: connection.signal })).body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(cut, SILENCE_MS);
      const parts = (text + value).split("\n\n");
      text = parts.pop();
      for (const part of parts) dispatch(part, seen);
    }
  } finally {
    clearTimeout(watchdog);
    signal.removeEventListener("abort", cut);
    window.removeEventListener("offline", cut);
  }
}

function dispatch(part, seen) {
  const [, topic] = part.match(/^event: (.*)$/m) ?? [];
  const [, data] = part.match(/^data: (.*)$/m) ?? [];
  if (topic && data) seen(topic, JSON.parse(data));
}

// Follow a job until it has ended; `seen` is called with each of its states.
export async function finished(job, seen = () => {}, signal = new AbortController().signal) {
  seen(job);
  if (!isUnfinished(job)) return job;
  const over = new AbortController();
  const cut = () => over.abort();
  signal.addEventListener("abort", cut);
  await events([`job/${job.id}`], (topic, now) => {
    if (topic === OFFLINE) return;
    if (now.error && !now.id) throw new Refusal(now.error.status, now.error);
    job = now;
    seen(job);
    if (!isUnfinished(job)) over.abort();
  }, over.signal);
  signal.removeEventListener("abort", cut);
  return job;
}

const isUnfinished = (job) => ["queued", "running"].includes(job.state);

export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", resolve, { once: true });
  });
}

let names = null;

// The names that requests may use; fetched once.
export function catalog() {
  names ??= get("/v1/catalog").catch((error) => { names = null; throw error; });
  return names;
}
