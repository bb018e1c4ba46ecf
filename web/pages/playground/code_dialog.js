// The dialog that shows a request as code, and copies it.

import { BASE, hasKey } from "./api.js";
import { byId, chosen } from "./dom.js";
import { chosenModel } from "./models.js";
import { SNIPPETS } from "./snippets.js";

const dialog = byId("code-dialog");
const text = byId("code-text");
const copied = byId("code-copied");
let request = null;

export function setUpCodeDialog() {
  byId("code-close").addEventListener("click", () => dialog.close());
  byId("code-copy").addEventListener("click", copy);
  for (const radio of document.querySelectorAll('input[name="language"]')) radio.addEventListener("change", write);
  // A click beside the dialog is one on its backdrop.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

/** @param {import("./requests.js").Request} shown */
export function showCode(shown) {
  request = shown;
  write();
  dialog.showModal();
}

function write() {
  const asked = { request, base: BASE.href.replace(/\/$/, ""), key: hasKey(), model: chosenModel() };
  text.textContent = SNIPPETS[chosen("language")](asked);
  copied.textContent = "";
}

async function copy() {
  try {
    await navigator.clipboard.writeText(text.textContent);
    copied.textContent = "Copied.";
  } catch {
    // Browsers give the clipboard to pages from https and localhost alone.
    getSelection().selectAllChildren(text);
    copied.textContent = "Selected: copy it with Ctrl+C.";
  }
}
