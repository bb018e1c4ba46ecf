// From what is on the page to requests of OpenAI's API.

import { byId } from "./dom.js";

/** Alternatives shown for each token, where the service gives so many. */
const ALTERNATIVES = 5;

/**
 * @typedef {{path: string, body: object}} Request
 *
 * @param {object} parameters fields from the form
 * @param {{model: string, tokens: boolean, most: number}} asked `most`: alternatives that the service gives at most
 */
export function chatRequest(history, text, parameters, asked) {
  const system = byId("system").value.trim();
  const messages = [
    ...(system ? [{ role: "system", content: system }] : []),
    ...history,
    { role: "user", content: text },
  ];
  const logprobs = asked.tokens ? { logprobs: true, top_logprobs: Math.min(ALTERNATIVES, asked.most) } : {};
  return request("v1/chat/completions", { messages, ...parameters, ...logprobs }, asked.model);
}

export function completionRequest(text, parameters, asked) {
  const logprobs = asked.tokens ? { logprobs: Math.min(ALTERNATIVES, asked.most) } : {};
  return request("v1/completions", { prompt: text, ...parameters, ...logprobs }, asked.model);
}

function request(path, fields, model) {
  return { path, body: { ...(model ? { model } : {}), ...fields, stream: true, stream_options: { include_usage: true } } };
}
