// A request as code that makes it. Keys are read from the environment: code is pasted where others see it.

import { pythonCall } from "./python_literals.js";

/**
 * @typedef {{request: import("./requests.js").Request, base: string, key: boolean,
 *   model: {id: string, parent: string | null, isDefault: boolean} | null}} Asked
 *
 * @type {Record<string, (asked: Asked) => string>}
 */
export const SNIPPETS = { curl, openai, huggingface_hub: huggingfaceHub };

const ANSWERED_BY_CHUNKS = ["stream", "stream_options"];
const OPENAI_COMPLETION = [
  "model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty", "logprobs",
];
const OPENAI_CHAT = [...OPENAI_COMPLETION.filter((name) => name !== "prompt"), "messages", "response_format", "top_logprobs"];

function curl({ request, base, key }) {
  const quoted = JSON.stringify(request.body, null, 2).replaceAll("'", String.raw`'\''`);
  return [
    `curl -N ${base}/${request.path}`,
    `  -H 'Content-Type: application/json'`,
    ...(key ? ['  -H "Authorization: Bearer $TGQ_KEY"'] : []),
    `  -d '${quoted}'`,
  ].join(" \\\n");
}

function openai({ request, base, key }) {
  const chat = request.path.includes("chat");
  const { named, others } = split(request.body, chat ? OPENAI_CHAT : OPENAI_COMPLETION);
  const call = pythonCall(`client.${chat ? "chat.completions" : "completions"}.create`, [], {
    ...named,
    ...(Object.keys(others).length ? { extra_body: others } : {}),
    stream: true,
  });
  return `${imports("from openai import OpenAI", key)}

client = OpenAI(base_url="${base}/v1", api_key=${key ? KEY : '"-"'})
for chunk in ${call}:
    if chunk.choices:
        print(chunk.choices[0].${chat ? "delta.content" : "text"} or "", end="", flush=True)
print()`;
}

function huggingfaceHub(asked) {
  return asked.request.path.includes("chat") ? hubChat(asked) : hubText(asked);
}

function hubChat({ request, base, key }) {
  const { messages, ...body } = request.body;
  const { named, others } = split(body, OPENAI_CHAT);
  const call = pythonCall("client.chat_completion", [messages], {
    ...named,
    ...(Object.keys(others).length ? { extra_body: others } : {}),
    stream: true,
  });
  return `${hubClient(base, key)}
for chunk in ${call}:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()`;
}

/** TGI's native route: other names, other neutral values, and no draw unless it is asked for. */
function hubText({ request, base, key, model }) {
  const { prompt, temperature, top_p, top_k, max_tokens, response_format, ...body } = request.body;
  const draws = temperature !== 0 && top_p !== 0;
  const missing = ["min_p", "frequency_penalty", "presence_penalty"].filter((name) => body[name]);
  if (model && !model.isDefault && !model.parent) missing.unshift("model");
  const named = {
    ...(model?.parent ? { adapter_id: model.id } : {}),
    max_new_tokens: max_tokens ?? 16,
    ...(draws ? { do_sample: true } : {}),
    ...(draws && temperature !== undefined ? { temperature } : {}),
    ...(draws && top_p !== undefined && top_p < 1 ? { top_p } : {}),
    ...(draws && top_k ? { top_k } : {}),
    ...pick(body, ["repetition_penalty", "seed", "stop"]),
    ...(response_format ? { grammar: { type: "json", value: response_format.json_schema.schema } } : {}),
    stream: true,
    details: true,
  };
  const note = missing.length ? `# Not to be had this way: ${missing.join(", ")}.\n` : "";
  return `${hubClient(base, key)}
${note}for event in ${pythonCall("client.text_generation", [prompt], named)}:
    if not event.token.special:
        print(event.token.text, end="", flush=True)
print()`;
}

const KEY = 'os.environ["TGQ_KEY"]';

const imports = (line, key) => (key ? `import os\n\n${line}` : line);

const hubClient = (base, key) =>
  `${imports("from huggingface_hub import InferenceClient", key)}

client = InferenceClient(base_url="${base}"${key ? `, api_key=${KEY}` : ""})`;

function split(body, known) {
  const others = Object.keys(body).filter((name) => !known.includes(name) && !ANSWERED_BY_CHUNKS.includes(name));
  return { named: pick(body, known), others: pick(body, others) };
}

/** Those of the names that are there, in the object's own order. */
function pick(object, names) {
  return Object.fromEntries(Object.entries(object).filter(([name]) => names.includes(name)));
}
