"""The body of `/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from common.protocols.json_body import Int32, UInt32
from common.protocols.openai_request import OpenAIRequest, shaped

Prompt = Annotated[
    str | list[Int32] | list[str] | list[list[Int32]],
    shaped("must be a string, an array of strings, an array of token ids, or an array of those"),
]


class CompletionRequest(OpenAIRequest):
    refused: ClassVar[frozenset[str]] = frozenset(("functions", "tools"))

    prompt: Prompt
    best_of: UInt32 | None = None
    echo: bool = False
    logprobs: UInt32 | None = None
    suffix: str | None = None

    # not OpenAI's
    response_format: Any = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each one by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        one = [token for token in self.prompt if isinstance(token, int)]
        return [one] if one else [prompt for prompt in self.prompt if not isinstance(prompt, int)]
