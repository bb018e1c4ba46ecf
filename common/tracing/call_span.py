"""The span of one generation request, with the attributes of OpenTelemetry's conventions for generative AI.

What callers send and get is never told: no prompts, answers, stop strings, grammars.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from common.grammar import Grammar
from common.parameters import GenerationParameters
from common.validation import ValidRequest
from common.wire import FinishReason, Tokens

if TYPE_CHECKING:
    from common.tracing.tracing import Attributes, Span, Tracing

Operation = Literal["chat", "text_completion"]
"""The conventions' names."""

_REASONS: dict[FinishReason, str] = {"length": "length", "eos_token": "stop", "stop_sequence": "stop"}
_LARGEST_INTEGER = 2**63 - 1


class CallSpan:
    """`chat MODEL` or `text_completion MODEL`: from the begin of a request to what its caller was sent last.

    Its child `relay` is the part behind the first tokens: taking them in, making the answer of them, writing it.
    """

    def __init__(
        self,
        tracing: Tracing,
        parent: Span | Mapping[str, str] | None,
        operation: Operation,
        model: str,
        *,
        stream: bool,
        sequences: int,
    ) -> None:
        """
        Args:
            parent: see `Tracing.begin`.
            sequences: to be generated, all prompts and children together.
        """
        self._tracing = tracing
        self._model = model
        self._stream = stream
        self._began = time.time_ns()
        self._first_tokens: int | None = None
        self._prompt_tokens = 0
        self._generated = 0
        self._reasons: dict[int, str] = {}
        attributes: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "tgq",
            "gen_ai.request.model": model,
            "gen_ai.request.stream": stream,
            "gen_ai.request.choice.count": sequences if sequences != 1 else None,
        }
        self._span = tracing.begin(f"{operation} {model}", "internal", parent, attributes, at=self._began)
        self.headers = self._span.headers
        """The context of the request's jobs."""

    def validated(self, valid: ValidRequest) -> None:
        """One prompt of the request is ready."""
        self._prompt_tokens += len(valid.prompt_ids)
        self._span.set(request_attributes(valid.parameters))
        self._span.set({"gen_ai.response.model": valid.adapter or self._model})

    def received(self, tokens: Tokens) -> None:
        """Tokens have arrived that are going to be told."""
        if self._first_tokens is None:
            self._first_tokens = time.time_ns()
        self._generated += len(tokens.tokens)
        if tokens.finish is not None:
            self._reasons[tokens.child] = _REASONS[tokens.finish.reason]

    def end(self, cause: str, error_type: str | None) -> None:
        """All is sent, or nobody waits for it any more.

        Args:
            cause: how the request ended.
            error_type: of one that failed.
        """
        now, first = time.time_ns(), self._first_tokens
        if first is not None:
            self._tracing.begin("relay", "internal", self._span, at=first).end(now)
        self._span.set(
            {
                "gen_ai.usage.input_tokens": self._prompt_tokens or None,
                "gen_ai.usage.output_tokens": self._generated or None,
                "gen_ai.response.finish_reasons": [reason for _, reason in sorted(self._reasons.items())] or None,
                "gen_ai.response.time_to_first_chunk": (first - self._began) / 1e9 if self._stream and first else None,
                "tgq.cause": cause,
            }
        )
        if error_type is not None:
            self._span.fail(error_type)
        self._span.end(now)


def request_attributes(parameters: GenerationParameters) -> Attributes:
    """What a request asks for; rules that are off are left out."""
    frequency = parameters.openai_frequency_penalty or parameters.frequency_penalty
    sampled: Attributes = {
        "gen_ai.request.temperature": parameters.temperature,
        "gen_ai.request.top_p": parameters.top_p,
        "gen_ai.request.top_k": parameters.top_k or None,
        # Larger ones are no integers to OpenTelemetry.
        "gen_ai.request.seed": parameters.seed if parameters.seed <= _LARGEST_INTEGER else None,
    }
    return {
        "gen_ai.request.max_tokens": parameters.max_new_tokens,
        "gen_ai.request.frequency_penalty": frequency or None,
        "gen_ai.request.presence_penalty": parameters.presence_penalty or None,
        "gen_ai.output.type": _output_type(parameters.grammar),
        **(sampled if parameters.sample else {}),
    }


def _output_type(grammar: Grammar | None) -> str:
    return "json" if grammar is not None and grammar.kind == "json" else "text"
