// One thing said and what was answered, as they grow on the page.

import { make } from "./dom.js";
import { following } from "./log.js";
import { Stopwatch } from "./stopwatch.js";
import { TokenList } from "./token_list.js";

const ENDS = { length: "cut off at the limit", stop: "" };
const REFRESH = 200; // milliseconds between two looks at the figures while tokens come

export class Exchange {
  #tokens = [];
  #unseen = []; // tokens that came since the last frame was drawn
  #text = document.createTextNode("");
  #list = null;
  #speaker;
  #answer;
  #figures = make("p", { class: "figures" });
  #stopwatch = new Stopwatch();
  #told = 0;

  /**
   * @param {import("./requests.js").Request} request
   * @param {{said: string, speakers: [string, string], tokens: boolean}} shown
   */
  constructor(request, { said, speakers, tokens }) {
    this.request = request;
    this.said = said;
    this.#answer = make("div", { class: "text answer", "aria-busy": "true" });
    this.#speaker = make("h2", {}, speakers[1]);
    this.element = make(
      "article",
      { class: "exchange" },
      make("h2", {}, speakers[0]),
      make("p", { class: "text said" }, said),
      this.#speaker,
      this.#answer,
      this.#figures,
    );
    this.showTokens(tokens);
    this.#figures.textContent = "waiting for the first token";
  }

  get text() {
    return this.#text.data;
  }

  add(token) {
    this.#stopwatch.token();
    this.#unseen.push(token);
    // Laying out a long answer takes its time: once a frame, however many tokens come.
    if (this.#unseen.length === 1) requestAnimationFrame(() => this.#show());
  }

  #show() {
    if (!this.#unseen.length) return;
    following(() => {
      this.#tokens.push(...this.#unseen);
      this.#text.appendData(this.#unseen.map(({ text }) => text).join(""));
      this.#list?.add(this.#unseen);
    });
    this.#unseen = [];
    if (performance.now() - this.#told < REFRESH) return;
    this.#told = performance.now();
    this.#tell();
  }

  /** Show the answer's tokens, where their probabilities are known, or its text. */
  showTokens(wanted) {
    const known = this.request.body.logprobs !== undefined;
    this.#list = wanted && known ? new TokenList() : null;
    this.#list?.add(this.#tokens);
    this.#answer.replaceChildren(this.#list ? this.#list.element : this.#text);
  }

  /** @param {{reason: string | null, tokens: number | null}} end */
  finish({ reason, tokens }) {
    this.#end(tokens, ENDS[reason] ?? reason);
    if (this.request.body.response_format) this.#judge();
  }

  stopped() {
    this.#end(null, "stopped");
  }

  /** @param {Error} error */
  fail(error) {
    const more = [
      error.retryAfter && `Try again in ${error.retryAfter} s.`,
      error.requestId && `Request ${error.requestId}.`,
    ].filter(Boolean);
    this.#end(null, "");
    if (!this.#tokens.length) for (const part of [this.#speaker, this.#answer, this.#figures]) part.hidden = true;
    this.element.append(
      make("p", { class: "error", role: "alert" }, error.message, ...more.map((text) => make("small", {}, ` ${text}`))),
    );
  }

  #end(tokens, note) {
    this.#show();
    this.#answer.removeAttribute("aria-busy");
    this.#tell(tokens, note);
  }

  #tell(tokens = null, note = "") {
    this.#figures.textContent = [...this.#stopwatch.figures(tokens), ...(note ? [note] : [])].join(" · ");
  }

  #judge() {
    let valid = true;
    try {
      JSON.parse(this.text);
    } catch {
      valid = false;
    }
    const text = valid ? "valid JSON" : "not complete JSON: the answer ended too early";
    this.#figures.append(make("span", { class: valid ? "badge good" : "badge bad" }, text));
  }
}
