// Charts with ECharts (vendored): zoom, hover, saving as images; redrawn when colours or sizes change.

import { element } from "./dom.js";
import { COLOURS } from "./picture.js";

let library = null;
const load = () => (library ??= import("./vendor/echarts-6.1.0.min.js"));
const dark = matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  // light-dark() is resolved when it is used, not when it is read
  const probe = element("span", { class: `colour-${name}`, hidden: true });
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function themed(option) {
  const ink = colour("ink"), line = colour("line");
  const axis = (one) => ({
    ...one, nameTextStyle: { color: ink }, axisLabel: { color: ink, hideOverlap: true, ...one.axisLabel },
    axisLine: { lineStyle: { color: ink } }, splitLine: { lineStyle: { color: line } },
  });
  const tools = { feature: { dataZoom: { title: { zoom: "zoom", back: "undo" } }, restore: { title: "reset" }, saveAsImage: { title: "save", name: "chorale", pixelRatio: 2, backgroundColor: colour("ground") } }, iconStyle: { borderColor: ink }, right: 8, top: 0 };
  return {
    color: COLOURS, backgroundColor: "transparent", textStyle: { color: ink, fontFamily: "system-ui, sans-serif", fontSize: 13 },
    animation: !matchMedia("(prefers-reduced-motion: reduce)").matches, animationDuration: 200, toolbox: tools,
    aria: { enabled: true },
    ...option,
    legend: { textStyle: { color: ink }, type: "scroll", left: 0, right: 110, top: 0 },
    // as text on the canvas, because the content security policy forbids styles in markup
    tooltip: { renderMode: "richText", confine: true, ...option.tooltip },
    xAxis: axis(option.xAxis), yAxis: axis(option.yAxis),
  };
}

// option: an ECharts option; `chart(…).update(option)` replaces it and keeps the zoom
export function chart(title, option, height = 340) {
  const canvas = element("div", { class: "chart", role: "img", "aria-label": title });
  canvas.style.height = `${height}px`;
  const whole = element("figure", {}, element("figcaption", {}, title), canvas);
  let instance = null;
  const draw = () => instance?.setOption(themed(option), { replaceMerge: ["series"] }); // merging keeps the axes in place
  const begin = async () => {
    const echarts = await load();
    if (!canvas.isConnected) return;
    instance = echarts.init(canvas, null, { renderer: "canvas" });
    draw();
    canvas.setAttribute("role", "img");
    whole.dataset.drawn = "yes";
    const sizes = new ResizeObserver(() => (canvas.isConnected ? instance.resize() : end()));
    const end = () => { sizes.disconnect(); dark.removeEventListener("change", draw); instance.dispose(); };
    sizes.observe(canvas);
    dark.addEventListener("change", draw);
  };
  requestAnimationFrame(begin);
  whole.update = (next) => { option = next; draw(); };
  return whole;
}

// Zoom with Ctrl and the wheel; the wheel alone scrolls the page.
const inside = { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false };
const zoom = [inside, { ...inside, yAxisIndex: 0 }];

// series: [{name, points: [[x, y]…], step?, dots?}]; axes: {x: {label, text, log, base?, whole?}, y: {…}}
export function lineOption(series, axes) {
  const axis = (one) => ({
    type: one.log ? "log" : "value", logBase: one.base ?? 10, name: one.label, nameLocation: "middle", nameGap: one === axes.x ? 28 : 52,
    scale: true, axisLabel: { formatter: one.text }, ...(one.whole ? { minInterval: 1, boundaryGap: ["4%", "4%"] } : {}),
  });
  return {
    grid: { left: 70, right: 24, top: 40, bottom: 48 }, dataZoom: zoom, xAxis: axis(axes.x), yAxis: axis(axes.y),
    tooltip: {
      trigger: "item",
      formatter: ({ seriesName, data }) => `${seriesName}\n${axes.x.label} ${axes.x.text(data[0])}: ${axes.y.text(data[1])} ${axes.y.unit ?? ""}${data[2] ? `\n${data[2]}` : ""}`,
    },
    series: series.filter((one) => one.points.length).map((one) => ({
      name: one.name, data: one.points, type: one.dots ? "scatter" : "line", step: one.step ? "end" : undefined, symbolSize: 8, emphasis: { focus: "series" },
    })),
  };
}
