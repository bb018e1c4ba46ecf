// The models to choose from.

import { getJson } from "./api.js";
import { byId, make } from "./dom.js";

const select = byId("model");
let models = [];

/** Read the list again; what is chosen stays chosen while it is there. */
export async function loadModels() {
  models = (await getJson("v1/models")).data;
  const before = select.value;
  select.replaceChildren(
    ...models.map(({ id, parent }) => make("option", { value: id }, parent ? `${id} (adapter of ${parent})` : id)),
  );
  if (models.some(({ id }) => id === before)) select.value = before;
}

/**
 * The model chosen; nothing while none is known.
 * @returns {{id: string, parent: string | null, isDefault: boolean} | null}
 */
export function chosenModel() {
  const found = models.find(({ id }) => id === select.value);
  return found ? { id: found.id, parent: found.parent, isDefault: found === models[0] } : null;
}
