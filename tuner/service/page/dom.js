// Small helpers to build elements. Text is always set as text, never as markup.

import { finished, get, post, remove } from "./api.js";

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function panel(title, ...children) {
  return element("section", { class: "panel" }, element("h2", {}, title), ...children);
}

let fields = 0;

// A labelled input, with room below it for a hint and for an error; see `tell`.
export function field(label, input, hint = null) {
  const id = `field-${fields += 1}`;
  const problem = element("span", { class: "problem", id: `${id}-problem`, "aria-live": "polite" });
  const note = hint && element("span", { class: "hint", id: `${id}-hint` }, hint);
  const described = [input.getAttribute("aria-describedby"), note && note.id, problem.id].filter(Boolean).join(" ");
  input.setAttribute("aria-describedby", described);
  return element("div", { class: "field" }, element("label", {}, label, input), note, problem);
}

// Show an error next to an input; "" removes it.
export function tell(input, text) {
  input.closest(".field").querySelector(".problem").textContent = text;
  if (text) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
}

export function choice(name, values, chosen, attributes = {}) {
  const options = values.map((value) => element("option", { value, selected: value === chosen }, value));
  return element("select", { name, ...attributes }, options);
}

export function facts(entries) {
  const rows = entries.filter(([, value]) => value !== null && value !== undefined);
  return element("dl", {}, rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

const ROWS = 200; // number that a table shows at first, because more are slow to draw

// columns: {name, label?, text(row), value?(row), cell?(row), number?, long?}. The table sorts by its headings;
// `show(rows)` fills it and keeps the focus. The tab remembers the sorting under `name`.
export function dataTable(caption, columns, name) {
  const KEPT = `table:${name}`;
  const state = { column: null, descending: false, ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") };
  let rows = [], limit = ROWS;
  const body = element("tbody");
  const heads = columns.map((column) => headOf(column, () => sortBy(column)));
  const head = element("thead", {}, element("tr", {}, heads));
  const whole = element("table", {}, element("caption", {}, caption), head, body);
  const more = element("button", { type: "button", class: "quiet", hidden: true, click: () => { limit = Infinity; draw(); } });
  const view = element("div", {}, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole), more);

  function sortBy(column) {
    state.descending = state.column === column.name ? !state.descending : false;
    state.column = column.name;
    draw();
  }

  function sorted() {
    const column = columns.find((one) => one.name && one.name === state.column);
    if (!column) return rows;
    const key = column.value ?? column.text, sign = state.descending ? -1 : 1;
    return rows.toSorted((a, b) => compared(key(a), key(b), sign));
  }

  function draw() {
    sessionStorage.setItem(KEPT, JSON.stringify(state));
    columns.forEach((column, index) => { if (column.name) heads[index].setAttribute("aria-sort", column.name !== state.column ? "none" : state.descending ? "descending" : "ascending"); });
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    body.replaceChildren(...sorted().slice(0, limit).map((row) => element("tr", {}, columns.map((column) => cellOf(column, row)))));
    more.hidden = rows.length <= limit;
    more.textContent = `Show all ${rows.length} rows`;
    if (focused) body.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  view.show = (all) => { rows = all; draw(); return view; };
  return view;
}

function headOf(column, sort) {
  const attributes = { scope: "col", class: column.number ? "number" : null };
  if (!column.name) return element("th", attributes, element("span", { class: "unseen" }, column.label));
  return element("th", { ...attributes, "aria-sort": "none" }, element("button", { type: "button", class: "sort", click: sort }, column.name));
}

function cellOf(column, row) {
  return element("td", { class: column.number ? "number" : column.long ? "long" : null }, (column.cell ?? column.text)(row) ?? "");
}

// Missing values come last in either order.
function compared(a, b, sign) {
  const lacks = (value) => value === null || value === undefined;
  if (lacks(a) || lacks(b)) return lacks(a) - lacks(b);
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
}

export function errorOf(facts) {
  return element("p", { class: "error" }, errorText(facts));
}

export function errorText(facts) {
  return `${facts.rule}; ${facts.way_out}`;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${Number(count.toPrecision(4))} ${units[unit]}`;
}

export function number(value, digits = 4) {
  return value === null || value === undefined ? "" : String(Number(value.toPrecision(digits)));
}

// A fraction given as text, such as 1/63.
export function percent(text) {
  const [above, below = "1"] = text.split("/");
  return `${number((100 * Number(above)) / Number(below), 3)} %`;
}

// A time for display, in a suitable unit.
export function duration(seconds) {
  const units = [[60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "us"]];
  const [scale, unit] = units.find(([one]) => seconds >= one) ?? units.at(-1);
  return `${number(seconds / scale, 3)} ${unit}`;
}

// The time of day, with the date unless it is today.
export function moment(seconds) {
  const then = new Date(seconds * 1000);
  return then.toDateString() === new Date().toDateString() ? then.toLocaleTimeString() : then.toLocaleString();
}

// A number with its noun: 1 switch, 2 switches.
export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;
}

const PICOSECONDS = { "GB/s": 1000, "Gbit/s": 8000 };

// A time per byte for display, with the exact fraction.
export function timePerByte(text, unit) {
  const [above, below = "1"] = text.split("/");
  const value = Number(above) / Number(below);
  if (unit in PICOSECONDS) return `${number(value * PICOSECONDS[unit], 3)} ps/byte (${text} per ${unit})`;
  return `${number(value, 3)} × size / link rate (${text})`;
}

export function rate(algbw, unit) {
  return unit === "link" ? `${number(algbw)} × link rate` : `${number(algbw)} ${unit}`;
}

// The result that the address names, if there is one; the alert line says why it cannot be shown.
export async function namedResult(key, shown) {
  return key ? get(`/v1/results/${key}`).catch((error) => { shown.alert(error); return null; }) : null;
}

// A form that submits a job to `path`: `body(values)` returns the request, `done(key, result)` shows the result. `status`
// shows progress and errors.
export function jobForm(path, body, done, status, shown, ...parts) {
  const form = element("form", { class: "fields", submit: async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      const job = await finished(await post(path, await body(new FormData(form))), (now) => status.replaceChildren(stateOf(now)), shown.signal);
      if (job.state !== "done" || shown.signal.aborted) return;
      const result = await get(`/v1/results/${job.result}`);
      status.replaceChildren();
      done(job.result, result);
    } catch (error) {
      status.replaceChildren(element("p", { class: "error" }, error.message));
    } finally {
      button.disabled = false;
    }
  } }, ...parts);
  return form;
}

// A panel that shows the rows of a topic's events in `table`, or `empty` if there are none.
export function liveList(title, topic, table, empty, shown, seen = () => {}) {
  const list = element("div");
  shown.listen([topic], (_topic, { [topic]: rows }) => {
    seen(rows);
    if (!rows.length) return list.replaceChildren(element("p", { class: "hint" }, empty));
    if (!table.isConnected) list.replaceChildren(table);
    return table.show(rows);
  });
  return panel(title, list);
}

// A job's progress, and a button to cancel it.
export function stateOf(job) {
  if (job.error) return errorOf(job.error);
  if (job.state === "done") return element("p", { class: "hint" }, "drawing");
  if (job.state === "cancelled") return element("p", { class: "hint" }, "Cancelled.");
  const bar = element("progress", { ...(job.progress ? { max: job.progress.total, value: job.progress.done } : {}), "aria-label": "progress" });
  const cancel = element("button", { type: "button", class: "quiet", click: (event) => { event.target.disabled = true; return remove(`/v1/jobs/${job.id}`); } }, "Cancel");
  return element("p", { class: "row" }, bar, `${job.state}, at most ${bytes(job.memory_bytes)} of memory`, cancel);
}
