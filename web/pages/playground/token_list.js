// An answer as its tokens: coloured by likelihood, one stop for the Tab key, walked with the arrow keys.

import { make } from "./dom.js";
import { grade, visible } from "./likelihood.js";
import * as details from "./token_details.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };

const isToken = (element) => element.classList.contains("token");

export class TokenList {
  #tokens = [];

  constructor() {
    this.element = make("div", {
      class: "tokens",
      role: "listbox",
      "aria-label": "Tokens",
      onkeydown: (event) => this.#walk(event),
      onfocusin: (event) => this.#show(event.target),
      onfocusout: details.hide,
      onpointerover: (event) => this.#show(event.target),
      onpointerout: details.hideSoon,
      onclick: (event) => isToken(event.target) && this.#focus(event.target),
    });
  }

  /** @param {import("./answers.js").Token[]} tokens */
  add(tokens) {
    const from = this.#tokens.length;
    this.#tokens.push(...tokens);
    this.element.append(...tokens.map((token, index) => this.#option(token, from + index)));
  }

  #option(token, index) {
    return make(
      "span",
      {
        class: token.text === "" ? "token silent" : "token",
        role: "option",
        tabindex: index === 0 ? 0 : -1,
        "aria-selected": "false",
        "data-likely": grade(token.logprob),
        "data-index": index,
        ...(token.text.trim() === "" ? { "aria-label": visible(token.text) } : {}),
      },
      token.text,
    );
  }

  #walk(event) {
    const step = STEPS[event.key];
    const index = Number(event.target.dataset.index);
    if (step === undefined || Number.isNaN(index)) return;
    event.preventDefault();
    this.#focus(this.element.children[Math.max(0, Math.min(index + step, this.#tokens.length - 1))]);
  }

  #focus(option) {
    const before = this.element.querySelector('[tabindex="0"]');
    before.tabIndex = -1;
    before.ariaSelected = "false";
    option.tabIndex = 0;
    option.ariaSelected = "true";
    option.focus();
  }

  #show(option) {
    if (!isToken(option)) return;
    details.show(this.#tokens[Number(option.dataset.index)], option);
    option.setAttribute("aria-describedby", "token-details");
  }
}
