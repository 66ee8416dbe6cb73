// Small helpers to build elements. Text is always set as text, never as markup.

import { save } from "./api.js";

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

export function field(label, input) {
  return element("label", {}, label, input);
}

export function choice(name, values, chosen, attributes = {}) {
  const options = values.map((value) => element("option", { value, selected: value === chosen }, value));
  return element("select", { name, ...attributes }, options);
}

export function facts(entries) {
  const rows = entries.filter(([, value]) => value !== null && value !== undefined);
  return element("dl", {}, rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// columns: {name, label?, text(row), value?(row), cell?(row), number?}. The table sorts by its headings, filters by a
// text and exports what it shows as CSV; `show(rows)` fills it, and keeps sort, filter and focus.
export function dataTable(caption, columns, fileName, tools = true) {
  const state = { rows: [], column: null, descending: false, filter: "" };
  const body = element("tbody");
  const heads = columns.map((column) => headOf(column, () => sortBy(column)));
  const head = element("thead", {}, element("tr", {}, heads));
  const whole = element("table", {}, element("caption", {}, caption), head, body);
  const count = element("span", { class: "hint", role: "status" });
  const filter = element("input", { type: "search", "aria-label": `Filter: ${caption}`, placeholder: "filter", input: () => { state.filter = filter.value.toLowerCase(); draw(); } });
  const csv = element("button", { type: "button", class: "quiet", click: () => saveText(csvOf(columns, visible()), `${fileName}.csv`) }, "CSV");
  const bar = tools ? element("div", { class: "row tools" }, filter, csv, count) : null;
  const view = element("div", {}, bar, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole));

  function sortBy(column) {
    state.descending = state.column === column ? !state.descending : false;
    state.column = column;
    columns.forEach((other, index) => heads[index].setAttribute("aria-sort", other !== column ? "none" : state.descending ? "descending" : "ascending"));
    draw();
  }

  function visible() {
    const rows = state.rows.filter((row) => !state.filter || columns.some((column) => String(column.text(row) ?? "").toLowerCase().includes(state.filter)));
    if (!state.column) return rows;
    const key = state.column.value ?? state.column.text, sign = state.descending ? -1 : 1;
    return [...rows].sort((a, b) => sign * compared(key(a), key(b)));
  }

  function draw() {
    const focused = document.activeElement?.dataset?.focus;
    const rows = visible();
    body.replaceChildren(...rows.map((row) => element("tr", {}, columns.map((column) => cellOf(column, row)))));
    count.textContent = state.filter ? `${rows.length} of ${state.rows.length} rows` : "";
    if (focused) body.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  view.show = (rows) => { state.rows = rows; draw(); return view; };
  return view;
}

function headOf(column, sort) {
  const attributes = { scope: "col", class: column.number ? "number" : null };
  if (!column.name) return element("th", attributes, element("span", { class: "unseen" }, column.label));
  return element("th", { ...attributes, "aria-sort": "none" }, element("button", { type: "button", class: "sort", click: sort }, column.name));
}

function cellOf(column, row) {
  return element("td", { class: column.number ? "number" : null }, (column.cell ?? column.text)(row) ?? "");
}

function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function csvOf(columns, rows) {
  const named = columns.filter((column) => column.name);
  const quoted = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const lines = [named.map((column) => quoted(column.name)), ...rows.map((row) => named.map((column) => quoted((column.value ?? column.text)(row))))];
  return `${lines.map((line) => line.join(",")).join("\n")}\n`;
}

export function saveText(text, name) {
  save(new Blob([text], { type: "text/plain" }), name);
}

export function errorOf(facts) {
  return element("p", { class: "error" }, `${facts.rule}; got ${facts.value}; ${facts.way_out}`);
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

const PICOSECONDS = { "GB/s": 1000, "Gbit/s": 8000 };

// A time per byte as people read it, with the exact fraction.
export function timePerByte(text, unit) {
  const [above, below = "1"] = text.split("/");
  const value = Number(above) / Number(below);
  if (unit in PICOSECONDS) return `${number(value * PICOSECONDS[unit], 3)} ps/byte (${text} per ${unit})`;
  return `${number(value, 3)} × size / link rate (${text})`;
}

export function rate(algbw, unit) {
  return unit === "link" ? `${number(algbw)} × link rate` : `${number(algbw)} ${unit}`;
}
