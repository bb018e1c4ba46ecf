// The small box that says how likely a token was, and what else might have come.

import { byId, make } from "./dom.js";
import { percent, visible } from "./likelihood.js";

const box = byId("token-details");
const HIDE_AFTER = 150; // milliseconds in which the pointer may come over from the token
let hiding = 0;
let shown = null; // the token's element

box.addEventListener("pointerenter", () => clearTimeout(hiding));
box.addEventListener("pointerleave", hideSoon);
document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
// Also when a token that gets the focus is brought into view.
document.addEventListener("scroll", () => box.hidden || place(shown), { passive: true });

/** @param {import("./answers.js").Token} token */
export function show(token, element) {
  clearTimeout(hiding);
  const rows = token.alternatives.map(({ text, logprob }) => row(text, logprob, text === token.text));
  const known = token.logprob === null ? "" : `${percent(token.logprob)} likely, log probability ${token.logprob.toFixed(3).replace("-", "−")}`;
  box.replaceChildren(
    make("p", {}, make("code", {}, visible(token.text)), ` ${known}`),
    ...(rows.length ? [make("ul", { "aria-label": "Alternatives" }, ...rows)] : []),
  );
  box.hidden = false;
  shown = element;
  place(shown);
}

export function hideSoon() {
  clearTimeout(hiding);
  hiding = setTimeout(hide, HIDE_AFTER);
}

export function hide() {
  clearTimeout(hiding);
  box.hidden = true;
}

function row(text, logprob, taken) {
  const share = Math.exp(logprob);
  return make(
    "li",
    taken ? { class: "taken" } : {},
    make("code", {}, visible(text)),
    make("meter", { min: 0, max: 1, value: share, "aria-hidden": "true" }),
    make("span", {}, percent(logprob)),
  );
}

/** Below the token, or above it where there is no room, and never over the edge. */
function place(element) {
  const [line] = element.getClientRects();
  if (!line) return;
  const { width, height } = box.getBoundingClientRect();
  const below = line.bottom + 4;
  const fits = below + height <= innerHeight - 8;
  box.style.top = `${fits ? below : Math.max(8, line.top - height - 4)}px`;
  box.style.left = `${Math.max(8, Math.min(line.left, innerWidth - width - 8))}px`;
}
