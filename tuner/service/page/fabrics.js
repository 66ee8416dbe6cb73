// Fabrics under watch.

import { element, panel } from "./dom.js";

export async function fabrics(main) {
  main.append(panel("Fabrics", element("p", { class: "hint" }, "No fabric is watched. Start one: chorale watch fabric.yaml.")));
}
