// The address bar: #view/part/part?name=value. It describes what a view shows, so that reload, back and links work.

export function address() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [view, ...parts] = path.split("/").map(decoded);
  return { view, parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // not written by encodeURIComponent: use it unchanged
  }
}

// Empty values are left out; the characters that specs consist of stay readable.
export function hashOf(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = given.map(([name, value]) => `${name}=${readable(value)}`).join("&");
  return `#${parts.map(readable).join("/")}${text ? `?${text}` : ""}`;
}

function readable(value) {
  return encodeURIComponent(String(value)).replace(/%(3A|2C|2F|3B)/g, (code) => decodeURIComponent(code));
}

// Set the address of what is shown: replace the current history entry or, with `isNew`, add one.
export function noteAddress(hash, isNew = false) {
  if (hash !== location.hash) history[isNew ? "pushState" : "replaceState"](null, "", hash);
}
