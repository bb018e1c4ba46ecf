// Light, dark, or what the system says; remembered in this browser.

import { byId } from "./dom.js";

const NAME = "tgq-theme";
const select = byId("theme");

export function setUpTheme() {
  select.value = remembered() ?? "system";
  if (!select.value) select.value = "system";
  apply();
  select.addEventListener("change", () => {
    apply();
    remember(select.value);
  });
}

function apply() {
  document.documentElement.dataset.theme = select.value;
}

// Browsers that keep nothing throw.
function remembered() {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
}

function remember(theme) {
  try {
    localStorage.setItem(NAME, theme);
  } catch {
    // It holds until the page is closed.
  }
}
