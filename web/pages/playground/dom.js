// Elements by id, and new ones. Text goes in as text: nothing on this page makes HTML of a string.

export const byId = (id) => document.getElementById(id);

/** An element with properties or attributes, and what is in it. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** The value of the chosen one of some radio buttons. */
export const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;

/** Let screen readers say something once, when they have time. */
export function announce(text) {
  byId("announcer").textContent = text;
}
