// What the events of both routes say, in one form.

/**
 * @typedef {{text: string, logprob: number}} Alternative
 * @typedef {{text: string, logprob: number | null, alternatives: Alternative[]}} Token
 *
 * @returns {{token: Token | null, finish: string | null, usage: object | null}}
 */
export function readEvent(event) {
  const choice = event.choices[0];
  if (!choice) return { token: null, finish: null, usage: event.usage ?? null };
  const token = choice.delta ? chatToken(choice) : completionToken(choice);
  return { token, finish: choice.finish_reason ?? null, usage: event.usage ?? null };
}

function chatToken({ delta, logprobs }) {
  const text = delta.content ?? "";
  const told = logprobs?.content?.[0];
  if (told) {
    const alternatives = told.top_logprobs.map(({ token, logprob }) => ({ text: token, logprob }));
    return { text, logprob: told.logprob, alternatives: sorted(alternatives) };
  }
  return text ? { text, logprob: null, alternatives: [] } : null;
}

function completionToken({ text, logprobs }) {
  if (logprobs?.tokens.length) {
    const alternatives = Object.entries(logprobs.top_logprobs?.[0] ?? {}).map(([text, logprob]) => ({ text, logprob }));
    return { text, logprob: logprobs.token_logprobs[0], alternatives: sorted(alternatives) };
  }
  return text ? { text, logprob: null, alternatives: [] } : null;
}

const sorted = (alternatives) => alternatives.sort((a, b) => b.logprob - a.logprob);
