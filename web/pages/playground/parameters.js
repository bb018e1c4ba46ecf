// The form of parameters: what is in it as fields of a request, and which field an error is about.

import { byId } from "./dom.js";

const form = byId("parameters");
const schema = byId("response_format");

const EXAMPLE = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 40 },
    age: { type: "integer", minimum: 0, maximum: 120 },
    languages: { type: "array", items: { enum: ["de", "en", "fr", "it"] }, maxItems: 3 },
  },
  required: ["name", "age", "languages"],
};

export function setUpParameters() {
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => acquit(event.target));
  byId("example-schema").addEventListener("click", () => {
    schema.value = JSON.stringify(EXAMPLE, null, 2);
    acquit(schema);
    schema.focus();
  });
}

/** The fields of a request that are filled in; null, with the first wrong field shown, when one is wrong. */
export function readParameters() {
  schema.setCustomValidity(schemaFault());
  if (!form.checkValidity()) {
    byId("settings").open = true; // what is hidden cannot be shown to be wrong
    form.reportValidity();
    return null;
  }
  const read = {};
  for (const field of form.querySelectorAll("input[type=number]")) {
    if (field.value !== "") read[field.name] = Number(field.value);
  }
  const stops = byId("stop").value.split("\n").filter((line) => line !== "");
  if (stops.length) read.stop = stops;
  if (schema.value.trim()) {
    read.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema.value) } };
  }
  return read;
}

/** Mark the field that an error of the service names. */
export function blame(param, message) {
  const field = param && form.elements.namedItem(param.split(/[.[]/)[0]);
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.title = message;
}

function acquit(field) {
  field.removeAttribute("aria-invalid");
  field.removeAttribute("title");
  field.setCustomValidity("");
}

function schemaFault() {
  if (!schema.value.trim()) return "";
  try {
    const value = JSON.parse(schema.value);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? "" : "A JSON schema is an object, in braces.";
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
}
