// Small helpers to build elements. Text is always set as text, never as markup.

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

export function choice(name, values, chosen) {
  const options = values.map((value) => element("option", { value, selected: value === chosen }, value));
  return element("select", { name }, options);
}

export function facts(entries) {
  const rows = entries.filter(([, value]) => value !== null && value !== undefined);
  return element("dl", {}, rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// columns: [heading, function of a row, whether it is a number]
export function table(caption, columns, rows) {
  const head = columns.map(([heading, , number]) => element("th", { scope: "col", class: number ? "number" : null }, heading));
  const body = rows.map((row) =>
    element("tr", {}, columns.map(([, cell, number]) => element("td", { class: number ? "number" : null }, cell(row) ?? ""))));
  const whole = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, head)), element("tbody", {}, body));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole);
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
