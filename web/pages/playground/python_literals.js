// JSON values as Python writes them.

const INDENT = "    ";

export function python(value, indent = "") {
  const inner = indent + INDENT;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value); // strings and numbers are written alike
  const entries = Array.isArray(value)
    ? value.map((entry) => python(entry, inner))
    : Object.entries(value).map(([name, entry]) => `${JSON.stringify(name)}: ${python(entry, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = open + entries.join(", ") + close;
  if (line.length + indent.length <= 88 && !line.includes("\n")) return line;
  return `${open}\n${entries.map((entry) => `${inner}${entry},\n`).join("")}${indent}${close}`;
}

/** A call with one argument a line. */
export function pythonCall(name, positional, named) {
  const lines = [
    ...positional.map((value) => python(value, INDENT)),
    ...Object.entries(named).map(([key, value]) => `${key}=${python(value, INDENT)}`),
  ];
  return `${name}(\n${lines.map((line) => `${INDENT}${line},\n`).join("")})`;
}
