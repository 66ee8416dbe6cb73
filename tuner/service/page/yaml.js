// Plain data as YAML: mappings and lists in blocks, what is short on one line.

const PLAIN = /^[A-Za-z_][A-Za-z0-9_.:-]*$/;
const RESERVED = /^(true|false|null|yes|no|on|off|y|n|~)$/i;

function scalar(value) {
  if (value === null) return "null";
  if (typeof value !== "string") return String(value);
  return PLAIN.test(value) && !RESERVED.test(value) && !value.endsWith(":") ? value : JSON.stringify(value);
}

const isShort = (value) => Array.isArray(value) && value.every((one) => one === null || typeof one !== "object");

export function toYaml(document, indent = "") {
  return Object.entries(document).map(([key, value]) => {
    if (isShort(value)) return `${indent}${scalar(key)}: [${value.map(scalar).join(", ")}]\n`;
    if (Array.isArray(value)) return `${indent}${scalar(key)}: ${JSON.stringify(value)}\n`;
    if (value === null || typeof value !== "object") return `${indent}${scalar(key)}: ${scalar(value)}\n`;
    if (!Object.keys(value).length) return `${indent}${scalar(key)}: {}\n`;
    return `${indent}${scalar(key)}:\n${toYaml(value, `${indent}  `)}`;
  }).join("");
}
