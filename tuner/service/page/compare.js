// Schedules side by side: the simulated time of each at every size.

import { hashOf, noteAddress } from "./address.js";
import { finished, get, post } from "./api.js";
import { chart, lineOption } from "./chart.js";
import { bytes, dataTable, element, field, number, panel } from "./dom.js";

const SIZES = Array.from({ length: 10 }, (_, index) => 4096 * 4 ** index);

const MOST = 8;

export async function compare(main, { parts: [keys], query }, shown) {
  const { jobs } = await get("/v1/jobs", { state: "done", limit: 1000 });
  const known = new Map(jobs.filter((job) => job.kind === "synthesis").map((job) => [job.result, nameOf(job)]));
  const asked = (keys ?? "").split(",").filter(Boolean);
  for (const key of asked.filter((one) => !known.has(one))) known.set(key, titleOf((await get(`/v1/results/${key}`)).document));
  const outcome = element("div", { class: "result" });
  if (!known.size) {
    main.append(panel("Compare", element("p", { class: "hint" }, "No schedules yet. ", element("a", { href: "#design" }, "Design"), " two of them first.")));
    return;
  }
  const boxes = [...known].map(([result, name], index) =>
    element("label", { class: "tick" }, element("input", { type: "checkbox", name: "result", value: result, checked: keys === undefined ? index < 3 : asked.includes(result) }), name));
  const limit = () => { const full = form.querySelectorAll(":checked").length >= MOST; for (const { firstChild: box } of boxes) box.disabled = full && !box.checked; };
  const form = element("form", { input: limit, submit: (event) => { event.preventDefault(); draw(form, known, outcome, shown); } },
    element("fieldset", {}, element("legend", {}, `Schedules, at most ${MOST}`), boxes),
    element("div", { class: "row bottom" }, field("Gbit/s of a link, where the network has none", element("input", { name: "link_gbps", type: "number", min: 0.001, step: "any", value: query.link_gbps ?? 100, required: true })),
      field("Microseconds per message", element("input", { name: "alpha_us", type: "number", min: 0, step: "any", value: query.alpha_us ?? 1, required: true })), element("button", {}, "Compare")));
  main.append(panel("Compare", form), outcome);
  limit();
  await draw(form, known, outcome, shown);
}

function nameOf(job) {
  const network = typeof job.request.topology === "string" ? job.request.topology : "JSON topology";
  const k = job.request.k ? ` k=${job.request.k}` : "";
  return `${job.request.method}${k} ${job.request.collective} on ${network}`;
}

function titleOf({ method, collective, topology }) {
  return `${method} ${collective} on ${topology.spec}`;
}

async function draw(form, known, outcome, shown) {
  const given = new FormData(form), chosen = given.getAll("result");
  if (shown.signal.aborted) return;
  noteAddress(hashOf(["compare", chosen.join(",")], { link_gbps: given.get("link_gbps"), alpha_us: given.get("alpha_us") }));
  if (!chosen.length) {
    outcome.replaceChildren(element("p", { class: "hint" }, "Choose the schedules to compare."));
    return;
  }
  outcome.replaceChildren(element("p", { class: "row" }, element("progress", { "aria-label": "progress" }), "simulating"));
  try {
    const series = await Promise.all(chosen.map((key) => priced(key, known.get(key), given, shown.signal)));
    if (!shown.signal.aborted) outcome.replaceChildren(panel("Time by size", ...viewsOf(series)));
  } catch (error) {
    outcome.replaceChildren(element("p", { class: "error" }, error.message));
  }
}

async function priced(key, name, given, signal) {
  const body = { result: key, sizes_bytes: SIZES, alpha_us: Number(given.get("alpha_us")), link_gbps: Number(given.get("link_gbps")) };
  const job = await finished(await post("/v1/prices", body), () => {}, signal);
  if (job.error) throw new Error(`${name}: ${job.error.rule}`);
  const { document: found } = await get(`/v1/results/${job.result}`);
  return { name, points: found.results.map((row) => [row.size_bytes, row.time_us]) };
}

function viewsOf(series) {
  const axes = { x: { label: "buffer size", text: bytes, log: true, base: 2 }, y: { label: "microseconds", unit: "us", text: (value) => number(value, 3), log: true } };
  const rows = SIZES.map((size, index) => ({ size, times: series.map((one) => one.points[index][1]) }));
  const columns = [{ name: "size", text: (row) => bytes(row.size), value: (row) => row.size, number: true },
    ...series.map((one, index) => ({ name: one.name, text: (row) => number(row.times[index]), value: (row) => row.times[index], cell: (row) => cell(row.times, index), number: true }))];
  return [chart("Time of the collective by size", lineOption(series, axes), 380), dataTable("Microseconds; the fastest in bold", columns, "compare").show(rows)];
}

function cell(times, index) {
  const text = number(times[index]);
  return times[index] === Math.min(...times) ? element("strong", {}, text) : text;
}
