// The address bar: #view/part/part?name=value. What a view shows is in it, so that reload, back and links work.

export function address() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [view, ...parts] = path.split("/").map(decoded);
  return { view, parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // not what encodeURIComponent makes: taken as it is
  }
}

// Values that are empty are left out; what specs are made of stays readable.
export function hashOf(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = given.map(([name, value]) => `${name}=${readable(value)}`).join("&");
  return `#${parts.map(readable).join("/")}${text ? `?${text}` : ""}`;
}

function readable(value) {
  return encodeURIComponent(String(value)).replace(/%(3A|2C|2F|3B)/g, (code) => decodeURIComponent(code));
}

// The address of what is shown now: the present entry of the history, or with `isNew` another one after it.
export function noteAddress(hash, isNew = false) {
  if (hash !== location.hash) history[isNew ? "pushState" : "replaceState"](null, "", hash);
}
