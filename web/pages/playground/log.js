// What was said and answered in one mode, newest last.

import { byId } from "./dom.js";

const NEAR = 80; // pixels from the page's end that count as being there

export class Log {
  #element;
  #empty;
  exchanges = [];

  constructor(id) {
    this.#element = byId(id);
    this.#empty = this.#element.firstElementChild;
  }

  get last() {
    return this.exchanges.at(-1);
  }

  set hidden(hidden) {
    this.#element.hidden = hidden;
  }

  add(exchange) {
    this.#empty.remove();
    this.exchanges.push(exchange);
    this.#element.append(exchange.element);
    scrollTo(0, document.body.scrollHeight);
  }

  clear() {
    this.exchanges = [];
    this.#element.replaceChildren(this.#empty);
  }
}

/** Do what makes the page longer; whoever was at its end stays there, whoever reads further up is left alone. */
export function following(grow) {
  const page = document.documentElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < NEAR;
  grow();
  if (atEnd) page.scrollTop = page.scrollHeight;
}
