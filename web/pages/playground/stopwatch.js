// How long an answer takes: until its first token, and how fast the others follow.

export class Stopwatch {
  #started = performance.now();
  #first = null;
  #last = null;
  #count = 0;

  token() {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#count += 1;
  }

  /**
   * @param {number | null} tokens as the service counted them; those that were seen, if it has not said
   * @returns {string[]}
   */
  figures(tokens = null) {
    const count = tokens ?? this.#count;
    const figures = [];
    if (this.#first !== null) figures.push(`first token ${seconds(this.#first - this.#started)}`);
    // The first token waited for the prompt; speed is what comes after it.
    const spent = (this.#last - this.#first) / 1000;
    if (count > 1 && spent > 0) figures.push(`${((count - 1) / spent).toFixed(1)} tokens/s`);
    figures.push(count === 1 ? "1 token" : `${count} tokens`);
    return figures;
  }
}

const seconds = (milliseconds) =>
  milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(2)} s`;
