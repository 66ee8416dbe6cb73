// Zoom and save pictures: buttons, Ctrl and the wheel, dragging, arrow keys. Names show where they are large enough.

import { save } from "./api.js";
import { element } from "./dom.js";

const FACTOR = 1.5, MOST = 40;
const READABLE = 8; // pixels of the letters
const LETTERS = 10; // units of the drawing

export function zoomTools(image, name) {
  const whole = image.getAttribute("viewBox").split(" ").map(Number);
  let [x, y, width, height] = whole;

  function draw() {
    image.setAttribute("viewBox", [x, y, width, height].join(" "));
    const isZoomed = width < whole[2];
    image.classList.toggle("zoomed", isZoomed);
    if (isZoomed) image.setAttribute("tabindex", "0");
    else image.removeAttribute("tabindex");
    named();
  }

  function named() {
    const { clientWidth, clientHeight } = image;
    const scale = Math.min(clientWidth / width, clientHeight / height);
    image.classList.toggle("nameless", scale * LETTERS < READABLE);
  }

  function moveTo(left, top) {
    x = Math.min(Math.max(left, whole[0]), whole[0] + whole[2] - width);
    y = Math.min(Math.max(top, whole[1]), whole[1] + whole[3] - height);
    draw();
  }

  // factor: above 1 closer; about: a point of the drawing that stays where it is
  function zoom(factor, about = [x + width / 2, y + height / 2]) {
    const next = Math.min(whole[2], Math.max(whole[2] / MOST, width / factor)), ratio = next / width;
    width = next;
    height *= ratio;
    moveTo(about[0] - (about[0] - x) * ratio, about[1] - (about[1] - y) * ratio);
  }

  const pointOf = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(image.getScreenCTM().inverse());
    return [at.x, at.y];
  };
  image.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // else the page scrolls
    event.preventDefault();
    zoom(event.deltaY < 0 ? FACTOR : 1 / FACTOR, pointOf(event));
  }, { passive: false });
  image.addEventListener("pointerdown", (event) => {
    if (width === whole[2]) return;
    const [left, top] = pointOf(event);
    image.setPointerCapture(event.pointerId);
    const drag = (moved) => { const [right, bottom] = pointOf(moved); moveTo(x + left - right, y + top - bottom); };
    image.addEventListener("pointermove", drag);
    image.addEventListener("lostpointercapture", () => image.removeEventListener("pointermove", drag), { once: true });
  });
  image.addEventListener("keydown", (event) => {
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!(event.key in ways)) return;
    event.preventDefault();
    const [right, down] = ways[event.key];
    moveTo(x + right * width / 5, y + down * height / 5);
  });
  new ResizeObserver(named).observe(image);

  const tool = (text, label, click) => element("button", { type: "button", class: "tool", "aria-label": label, title: label, click }, text);
  return element("div", { class: "tools", role: "group", "aria-label": "Picture" },
    tool("+", "Zoom in", () => zoom(FACTOR)), tool("−", "Zoom out", () => zoom(1 / FACTOR)),
    tool("⤢", "Show all", () => { [x, y, width, height] = whole; draw(); }), tool("↓", "Save as SVG", () => saveImage(image, whole, name)));
}

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "text-anchor", "dominant-baseline", "paint-order", "stroke-linejoin"];

// The picture as a file of its own: what the style sheet gives it is written into it.
function saveImage(image, whole, name) {
  const copy = image.cloneNode(true);
  const originals = [image, ...image.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, index) => {
    const style = getComputedStyle(originals[index]);
    for (const property of STYLES) if (node.localName !== "title") node.setAttribute(property, style.getPropertyValue(property));
  });
  for (const attribute of ["class", "tabindex"]) copy.removeAttribute(attribute);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", whole.join(" "));
  copy.setAttribute("width", whole[2]);
  copy.setAttribute("height", whole[3]);
  const text = new XMLSerializer().serializeToString(copy);
  save(new Blob([text], { type: "image/svg+xml" }), `${name.replace(/[^\w.-]+/g, "-")}.svg`);
}
