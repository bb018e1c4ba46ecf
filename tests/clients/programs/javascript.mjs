// JavaScript clients: OpenAI's, Hugging Face's, and Vercel's AI SDK. Started as `node javascript.mjs SERVICES`;
// standard output is that of `run_checks.py`.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { InferenceClient } from "@huggingface/inference";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const services = JSON.parse(process.argv[2]);
const TEXT = "naïve 🤗 words\u2028and\u0085more";
const CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>';
const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const TOOL = { type: "function", function: { name: "get_weather", description: "Now", parameters: PARAMETERS } };

const script = (text, fields = {}) => `<<script ${JSON.stringify({ text, ...fields })}>>`;
const said = (text, fields) => [{ role: "user", content: script(text, fields) }];

const openai = new OpenAI({ baseURL: `${services.scripted}/v1`, apiKey: services.key, maxRetries: 0 });
const hub = new InferenceClient(services.key, { endpointUrl: services.scripted });
const compatible = createOpenAICompatible({
  name: "tgq",
  baseURL: `${services.scripted}/v1`,
  apiKey: services.key,
  includeUsage: true,
  supportsStructuredOutputs: true,
});

async function gathered(stream, piece) {
  let text = "";
  for await (const chunk of stream) text += piece(chunk) ?? "";
  return text;
}

const checks = {
  async "openai chat"() {
    const answer = await openai.chat.completions.create({ model: "tgi", messages: said(TEXT) });
    assert.equal(answer.choices[0].message.content, TEXT);
  },
  async "openai chat stream"() {
    const stream = await openai.chat.completions.create({ model: "tgi", messages: said(TEXT), stream: true });
    assert.equal(await gathered(stream, (chunk) => chunk.choices[0].delta.content), TEXT);
  },
  async "openai tools"() {
    const stream = openai.chat.completions.stream({ model: "tgi", messages: said(CALL), tools: [TOOL] });
    const answer = await stream.finalChatCompletion();
    assert.deepEqual(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments), { city: "Paris" });
  },
  async "openai completions and models"() {
    const answer = await openai.completions.create({ model: "tgi", prompt: [script(TEXT), script("two")] });
    assert.deepEqual(answer.choices.map((choice) => choice.text), [TEXT, "two"]);
    assert.deepEqual((await openai.models.list()).data.map((model) => model.id), ["scripted"]);
  },
  async "openai errors"() {
    const asked = { model: "tgi", messages: said("a b", { raise_at: 1 }) };
    await assert.rejects(openai.chat.completions.create({ ...asked, max_tokens: 999999 }), OpenAI.UnprocessableEntityError);
    const stream = await openai.chat.completions.create({ ...asked, stream: true });
    await assert.rejects(gathered(stream, () => ""), OpenAI.APIError);
  },
  async "huggingface textGeneration"() {
    const answer = await hub.textGeneration({ inputs: script(TEXT), parameters: { max_new_tokens: 50 } });
    assert.equal(answer.generated_text, TEXT);
  },
  async "huggingface textGenerationStream"() {
    // It goes to /v1/completions and hands that route's chunks on, whatever its types say.
    const stream = hub.textGenerationStream({ inputs: script(TEXT), parameters: { max_new_tokens: 50 } });
    assert.equal(await gathered(stream, (chunk) => chunk.choices[0]?.text), TEXT);
  },
  async "huggingface chatCompletion"() {
    const answer = await hub.chatCompletion({ messages: said(TEXT) });
    assert.equal(answer.choices[0].message.content, TEXT);
    const stream = hub.chatCompletionStream({ messages: said(TEXT) });
    assert.equal(await gathered(stream, (chunk) => chunk.choices[0]?.delta.content), TEXT);
  },
  async "ai generateText"() {
    const answer = await generateText({ model: compatible("tgi"), prompt: script(TEXT), maxRetries: 0 });
    assert.equal(answer.text, TEXT);
    assert.equal(answer.finishReason, "stop");
  },
  async "ai streamText"() {
    const answer = streamText({ model: compatible("tgi"), prompt: script(TEXT), maxRetries: 0 });
    assert.equal(await gathered(answer.textStream, (piece) => piece), TEXT);
    assert.ok((await answer.usage).outputTokens > 0);
  },
  async "ai tools"() {
    const tools = { get_weather: tool({ description: "Now", inputSchema: z.object({ city: z.string() }) }) };
    const answer = await generateText({ model: compatible("tgi"), prompt: script(CALL), tools, maxRetries: 0 });
    assert.deepEqual(answer.toolCalls[0].input, { city: "Paris" });
    const stream = streamText({ model: compatible("tgi"), prompt: script(CALL), tools, maxRetries: 0 });
    assert.deepEqual((await stream.toolCalls)[0].input, { city: "Paris" });
  },
  async "ai generateObject"() {
    const schema = z.object({ name: z.string(), people: z.number() });
    const prompt = script('{"name": "Rome", "people": 3}');
    const answer = await generateObject({ model: compatible("tgi"), schema, prompt, maxRetries: 0 });
    assert.deepEqual(answer.object, { name: "Rome", people: 3 });
  },
};

const say = (fields) => console.log(JSON.stringify(fields));
const names = ["openai", "@huggingface/inference", "ai", "@ai-sdk/openai-compatible"];
const manifest = (name) => JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)));
say({ versions: Object.fromEntries(names.map((name) => [name, manifest(name).version])) });
for (const [check, run] of Object.entries(checks)) {
  const started = performance.now();
  let error = null;
  try {
    await run();
  } catch (raised) {
    console.error(check, raised);
    error = `${raised.name}: ${raised.message}`;
  }
  say({ check, seconds: Math.round(performance.now() - started) / 1000, error });
}
