// How likely a token was, in words and in grades.

const GRADES = [0.05, 0.2, 0.5, 0.9];

/** 1, hardly, to 5, almost surely; nothing when it is not known. */
export function grade(logprob) {
  if (logprob === null) return "";
  return 1 + GRADES.filter((bound) => Math.exp(logprob) >= bound).length;
}

export function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  if (share >= 99.95) return "100 %";
  return share < 0.1 ? "< 0.1 %" : `${share.toFixed(1)} %`;
}

/** A token's text with its spaces and line ends to be seen. */
export function visible(text) {
  if (text === "") return "(no text)";
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}
