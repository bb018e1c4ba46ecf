// The page, wired: what is asked becomes a request, what is heard becomes an exchange.

import { readEvent } from "./answers.js";
import { ApiError, stream, useKey } from "./api.js";
import { setUpCodeDialog, showCode } from "./code_dialog.js";
import { announce, byId, chosen } from "./dom.js";
import { Exchange } from "./exchange.js";
import { Log, following } from "./log.js";
import { chosenModel } from "./models.js";
import { blame, readParameters, setUpParameters } from "./parameters.js";
import { chatRequest, completionRequest } from "./requests.js";
import { lastStatus, watchStatus } from "./status.js";
import { setUpTheme } from "./theme.js";

const MODES = {
  chat: { log: new Log("chat-log"), label: "Message", send: "Send", speakers: ["You", "Model"] },
  completion: { log: new Log("completion-log"), label: "Text to go on with", send: "Complete", speakers: ["Text", "How it goes on"] },
};
const EXAMPLE = { chat: "Hello!", completion: "Once upon a time" };

const prompt = byId("prompt");
const send = byId("send");
const stop = byId("stop-answer");
const showTokens = byId("show-tokens");
let running = null; // the AbortController of the answer that is coming

const mode = () => chosen("mode");
const log = () => MODES[mode()].log;

/** What sending this text now would ask for; null when a parameter is wrong. */
function requestFor(text) {
  const parameters = readParameters();
  if (parameters === null) return null;
  const asked = {
    model: chosenModel()?.id,
    tokens: showTokens.checked,
    most: lastStatus()?.max_top_logprobs ?? 0,
  };
  if (mode() === "completion") return completionRequest(text, parameters, asked);
  return chatRequest(history(), text, parameters, asked);
}

/** The conversation so far; what got no answer is not part of it. */
function history() {
  return MODES.chat.log.exchanges
    .filter(({ text }) => text !== "")
    .flatMap(({ said, text }) => [
      { role: "user", content: said },
      { role: "assistant", content: text },
    ]);
}

async function ask() {
  const said = prompt.value;
  if (running || said.trim() === "") return prompt.focus();
  const request = requestFor(said);
  if (request === null) return;
  const exchange = new Exchange(request, { said, speakers: MODES[mode()].speakers, tokens: showTokens.checked });
  log().add(exchange);
  if (mode() === "chat") prompt.value = "";
  running = new AbortController();
  busy(true);
  try {
    await hear(exchange, running.signal);
    announce(`Answer: ${exchange.text}`);
  } catch (error) {
    following(() => ended(exchange, error));
  } finally {
    running = null;
    busy(false);
  }
}

async function hear(exchange, signal) {
  let reason = null;
  let tokens = null;
  for await (const event of stream(exchange.request.path, exchange.request.body, signal)) {
    const { token, finish, usage } = readEvent(event);
    if (token) exchange.add(token);
    reason = finish ?? reason;
    tokens = usage?.completion_tokens ?? tokens;
  }
  following(() => exchange.finish({ reason, tokens }));
}

function ended(exchange, error) {
  if (error.name === "AbortError") {
    exchange.stopped();
    return announce(`Stopped: ${exchange.text}`);
  }
  if (!(error instanceof ApiError)) {
    exchange.fail(new ApiError("Something went wrong on this page."));
    throw error;
  }
  exchange.fail(error);
  blame(error.param, error.message);
  // What got no answer is there to be sent again.
  if (exchange.text === "" && prompt.value === "") prompt.value = exchange.said;
}

function busy(now) {
  const lost = document.activeElement === (now ? send : stop);
  stop.hidden = !now;
  send.disabled = now;
  if (lost) (now ? stop : prompt).focus();
}

function changeMode() {
  for (const [name, { log }] of Object.entries(MODES)) log.hidden = name !== mode();
  byId("prompt-label").textContent = MODES[mode()].label;
  send.textContent = MODES[mode()].send;
  document.body.dataset.mode = mode();
}

function changeView() {
  byId("legend").hidden = byId("tokens-help").hidden = !showTokens.checked;
  for (const { log } of Object.values(MODES)) log.exchanges.forEach((exchange) => exchange.showTokens(showTokens.checked));
}

/** Where the default model has no chat template, begin with what it can do. */
function suggestMode() {
  if (lastStatus()?.chat !== false || log().exchanges.length) return;
  document.querySelector('input[name="mode"][value="completion"]').checked = true;
  changeMode();
}

function setUp() {
  setUpTheme();
  setUpParameters();
  setUpCodeDialog();
  byId("settings").open = matchMedia("(min-width: 60rem)").matches;
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  prompt.addEventListener("keydown", (event) => {
    // The Enter that ends an input method's composition is not meant for us.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
  });
  stop.addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !byId("code-dialog").open) running?.abort();
  });
  byId("clear").addEventListener("click", () => {
    running?.abort();
    log().clear();
    announce("Cleared");
    prompt.focus();
  });
  byId("code").addEventListener("click", () => {
    const text = prompt.value.trim() === "" ? null : prompt.value;
    const request = text === null && log().last ? log().last.request : requestFor(text ?? EXAMPLE[mode()]);
    if (request) showCode(request);
  });
  byId("key").addEventListener("change", (event) => {
    useKey(event.target.value);
    watchStatus();
  });
  for (const radio of document.querySelectorAll('input[name="mode"]')) radio.addEventListener("change", changeMode);
  showTokens.addEventListener("change", changeView);
  // Browsers put back what was chosen before a reload.
  changeMode();
  changeView();
  watchStatus().then(suggestMode);
}

setUp();
