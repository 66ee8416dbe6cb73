// Watched fabrics, live: links by state and rate, the current table, and what changed when and why.

import { get, post } from "./api.js";
import { chart, lineOption } from "./chart.js";
import { dataTable, element, errorText, facts, liveList, number, panel } from "./dom.js";
import { drawing, figure, swatch } from "./picture.js";

const STATES = { healthy: "#2a9134", slow: "#e0740c", flapping: "#8052b0", dead: "#c72c2c" };
const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
const mbit = (bits) => `${number(bits / 1e6)} Mbit/s`;
const SAMPLES = 600, BEFORE_S = 10;

export async function fabrics(main, { parts: [name] }, shown) {
  if (name) return watch(main, name, shown);
  const empty = element("span", {}, "No fabric is watched. Start one with ", element("code", {}, "chorale watch fabric.yaml"), ".");
  return main.append(liveList("Fabrics", "fabrics", dataTable("By name", COLUMNS, "fabrics"), empty, shown));
}

const counts = (row) => Object.entries(row.links).map(([state, count]) => `${count} ${state}`).join(", ");

const COLUMNS = [
  { name: "name", text: (row) => row.name, cell: (row) => element("a", { href: `#fabrics/${encodeURIComponent(row.name)}`, "data-focus": row.name }, row.name) },
  { name: "network", text: (row) => row.topology },
  { name: "state", text: (row) => (row.is_running ? row.state ?? "being looked at" : "not watched now") },
  { name: "links", text: counts },
  { name: "table", text: (row) => row.table?.slice(0, 12) ?? "none" },
  { name: "publication", text: (row) => (row.is_held ? "held" : "on") },
];

async function watch(main, name, shown) {
  const path = `/v1/fabrics/${encodeURIComponent(name)}`;
  const head = element("div"), image = element("div"), history = element("div"), table = element("div");
  const links = dataTable("Links", LINKS, `${name}-links`), events = dataTable("Newest first", EVENTS, `${name}-events`);
  main.append(panel(name, head), element("div", { class: "halves" }, panel("Links now", image), panel("Present table", table)),
    panel("Rates", history), panel("What changed, when and why", events), panel("Links", links));
  const picture = (await get("/v1/topologies", { topology: (await get(path)).topology })).picture;
  const rates = rateChart(history), fabric = picture && fabricDrawing(picture, name);
  image.replaceChildren(fabric ? fabric.view : element("p", { class: "hint" }, "The network is too large to draw; its links are in the table below."));
  shown.listen([`fabric/${name}`], (_topic, now) => {
    if (now.error?.rule) return head.replaceChildren(element("p", { class: "error" }, errorText(now.error)));
    headOf(head, path, now);
    fabric?.show(now);
    table.replaceChildren(...tableOf(now));
    links.show(now.links);
    events.show([...now.events].reverse());
    return rates(now);
  });
}

function headOf(head, path, now) {
  const act = (verb, text) => element("button", { class: verb === "roll-back" ? "quiet" : null, "data-focus": verb, click: (event) => { event.target.disabled = true; return post(`${path}/${verb}`); } }, text);
  const focused = head.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  head.replaceChildren(facts([
    ["network", now.topology],
    ["state", now.is_running ? now.state ?? "being looked at" : element("span", { class: "error" }, `the watch has not written since ${time(now.time_s)}`)],
    ["publication", now.is_held ? element("span", { class: "error" }, "held: nothing is published") : "on"],
  ]), element("div", { class: "row" }, now.is_held ? act("release", "Release") : act("hold", "Hold"), act("roll-back", "Roll back")));
  if (focused) head.querySelector("button")?.focus();
}

// Drawn once, so that it keeps its zoom; later, only the colours and widths of links change.
function fabricDrawing(picture, name) {
  const ranks = picture.nodes.map((node, index) => ({ node, index })).filter(({ node }) => node.kind === "compute").map(({ index }) => index);
  const names = picture.connections.map((line) => `${ranks.indexOf(line.src)}>${ranks.indexOf(line.dst)}`);
  const linesOf = (byEnds) => picture.connections.map((line, index) => {
    const link = byEnds.get(names[index]);
    if (!link) return { ...line, colour: "var(--wire)", width: 0.015, title: "not watched" };
    const share = link.in_force_bits_per_s / link.declared_bits_per_s;
    const load = loadOf(link);
    const title = `${link.link} is ${link.state} since ${time(link.since_s)}: ${mbit(link.in_force_bits_per_s)} of ${mbit(link.declared_bits_per_s)}${load === null ? "" : `, ${percent(load)} of it used`}`;
    return { ...line, colour: STATES[link.state], width: 0.025 + 0.05 * (load ?? share), dashed: ["dead", "flapping"].includes(link.state), title };
  });
  const caption = "Links by state; the more of its rate a link carries now, the thicker it is";
  const { image, paint } = drawing(picture, caption, linesOf(new Map()));
  const legend = Object.entries(STATES).map(([state, colour]) => element("li", {}, swatch(colour), state));
  return { view: figure(caption, image, legend, name), show: (now) => paint(linesOf(new Map(now.links.map((link) => [link.link, link])))) };
}

function tableOf(now) {
  if (!now.table) return [element("p", { class: "hint" }, "Nothing is published yet.")];
  const { digest, time_s: since, why, spec, seconds, costs } = now.table;
  const rows = Object.entries(costs ?? {}).map(([collective, cost]) => [collective, Object.entries(cost).map(([key, value]) => `${key.replaceAll("_", " ")} ${typeof value === "number" ? number(value) : value}`).join(", ")]);
  return [facts([
    ["table", digest.slice(0, 24)], ["published", time(since)], ["why", why], ["for", spec],
    ["after the first sign", seconds === undefined ? null : `${number(seconds, 3)} s`], ...rows,
  ])];
}

// Rates of links that are or were unhealthy, and of the slowest link: first from past events, then live.
function rateChart(history) {
  const samples = new Map();
  let drawn = null, since = 0;
  const add = (link, seconds, bits) => {
    const points = samples.get(link) ?? samples.set(link, []).get(link);
    points.push([seconds * 1000, bits / 1e6]);
    if (points.length > SAMPLES) points.shift();
  };
  return (now) => {
    const declared = new Map(now.links.map((link) => [link.link, link.declared_bits_per_s]));
    for (const event of now.events.filter((one) => one.event === "state" && one.time_s > since)) {
      if (event.from === "healthy") add(event.link, event.time_s - BEFORE_S, declared.get(event.link));
      if (event.from === "healthy") add(event.link, event.time_s, declared.get(event.link));
      add(event.link, event.time_s, event.to === "healthy" ? declared.get(event.link) : event.to === "slow" ? event.rate : 0);
    }
    since = Math.max(since, ...now.events.map((event) => event.time_s));
    for (const link of now.links) if (link.state !== "healthy" || samples.has(link.link)) add(link.link, now.time_s, link.in_force_bits_per_s);
    if (!samples.size) {
      history.replaceChildren(element("p", { class: "hint" }, "All links have kept their rates."));
      return;
    }
    const axes = { x: { label: "time", text: (value) => new Date(value).toLocaleTimeString() }, y: { label: "Mbit/s", unit: "Mbit/s", text: (value) => number(value, 3) } };
    const option = lineOption([...samples].map(([link, points]) => ({ name: link, points, step: true })), axes);
    if (drawn) drawn.update(option);
    else history.replaceChildren((drawn = chart("Rate in force of links that changed", option, 260)));
  };
}

const percent = (share) => `${number(share * 100, 2)} %`;

// A link's current traffic as a fraction of its declared rate; null if it is not counted.
function loadOf(link) {
  return link.carried_bits_per_s == null ? null : Math.min(1, link.carried_bits_per_s / link.declared_bits_per_s);
}

const LINKS = [
  { name: "link", text: (row) => row.link },
  { name: "state", text: (row) => row.state, cell: (row) => element("span", { class: row.state === "healthy" ? "good" : "error" }, row.state) },
  { name: "since", text: (row) => time(row.since_s), value: (row) => row.since_s },
  { name: "rate in force", text: (row) => mbit(row.in_force_bits_per_s), value: (row) => row.in_force_bits_per_s, number: true },
  { name: "declared", text: (row) => mbit(row.declared_bits_per_s), value: (row) => row.declared_bits_per_s, number: true },
  { name: "load", text: (row) => (loadOf(row) === null ? "" : percent(loadOf(row))), value: loadOf, number: true },
];

const EVENTS = [
  { name: "time", text: (event) => time(event.time_s), value: (event) => event.time_s },
  { name: "event", text: (event) => event.event },
  { name: "what", text: describe },
];

function describe(event) {
  if (event.event === "state") return `link ${event.link}: ${event.from} to ${event.to}${event.rate ? `, ${mbit(event.rate)}` : ""}`;
  if (event.event === "replan") return event.error ?? `planned for: ${event.state}, ${number(event.seconds, 3)} s${event.ahead ? ", planned ahead" : ""}`;
  if (event.event === "canary") return event.rows.map((row) => `${row.collective} ${row.size_bytes} B: ${number(row.ratio, 3)} times the present time`).join("; ") || event.failures.join("; ");
  if (event.event === "publish") return `table ${event.table.slice(0, 12)}, ${number(event.seconds, 3)} s after the first sign: ${event.why}`;
  if (event.event === "rollback") return `back to ${event.table.slice(0, 12)}: ${event.why}`;
  return event.why ?? "";
}
