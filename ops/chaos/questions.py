"""What is asked, and how it is known what the right answer is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

STEP_MS = 40
"""Between two tokens of the scripted model."""
STREAM, WHOLE = "/generate_stream", "/generate"

# Characters of one to four bytes, so that a failover may fall between two tokens of one character.
_PHRASES = (
    "the café is open 🙂 until ten",
    "日本語のテキスト, mixed with English",
    "naïve Füße run over 12 hills",
    "one <b>bold</b> & two “quoted” words",
    "🧪🧬 fact number",
)
_OPENINGS = (
    "The river rises in the hills north of the town, and",
    "In the spring of that year the miller's daughter",
    "To bake bread without an oven, you first",
    "The three reasons why the bridge fell were",
    "A letter found in the attic began with the words",
    "Ships that pass the cape in winter",
)


@dataclass(frozen=True, eq=False)
class Question:
    """One request."""

    name: str
    path: str
    payload: bytes
    text: str | None
    """What the answer has to say, where that is known beforehand; otherwise only undisturbed runs tell."""

    @property
    def streams(self) -> bool:
        return self.path == STREAM


def scripted_question(number: int, rng: Random, *, tokens: int = 150, path: str = STREAM) -> Question:
    """A text of about `tokens` tokens that no other question's answer holds, greedy or sampled by turns."""
    phrase = f"[{number}] {rng.choice(_PHRASES)} {rng.randrange(10**6)}. "
    repeat = max(1, tokens // 20)
    script = {"text": phrase, "repeat": repeat, "step_ms": STEP_MS}
    prompt = f"<<script {json.dumps(script)}>>"
    return _question(number, path, prompt, 4 * len(phrase.encode()) * repeat, rng, text=phrase * repeat)


def real_question(number: int, rng: Random, *, tokens: int = 48, path: str = STREAM) -> Question:
    """A prompt whose answer only an undisturbed run knows."""
    prompt = f"Chapter {number + 1}. {_OPENINGS[number % len(_OPENINGS)]}"
    return _question(number, path, prompt, tokens, rng, text=None)


def _question(number: int, path: str, prompt: str, most: int, rng: Random, *, text: str | None) -> Question:
    parameters: dict[str, Any] = {"max_new_tokens": min(most, 1500), "details": True}
    if number % 2:
        # Every draw of the scripted model falls on its script, but goes through the same sampling as any other.
        parameters |= {"do_sample": True, "seed": rng.getrandbits(32), "temperature": 0.9, "top_p": 0.95}
    payload = json.dumps({"inputs": prompt, "parameters": parameters}).encode()
    return Question(f"{'sampled' if number % 2 else 'greedy'}-{number}{path}", path, payload, text)
