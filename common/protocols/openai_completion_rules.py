"""Rules of `/v1/completions`, and what a completion request asks for by them."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import InvalidRequest
from common.infilling import infilling_prompt
from common.protocols import openai_rules
from common.protocols.openai_answer import Head, Stops
from common.protocols.openai_completion_answer import CompletionAnswer
from common.protocols.openai_completion_request import CompletionRequest
from common.protocols.prompt_text import PromptText, prompt_text
from common.protocols.response_format import read_response_format
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.validation import Ask, ValidRequest

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, and Hugging Face's on this route. (TGI had 100, and from 3.0 the rest of the context.)"""


def choices(request: CompletionRequest) -> int:
    """To be shown for each prompt."""
    return 1 if request.n is None else request.n


def generated(request: CompletionRequest) -> int:
    """Sequences for each prompt, of which the best are shown."""
    return choices(request) if request.best_of is None else request.best_of


def check_combination(request: CompletionRequest, settings: Settings) -> None:
    """Rules that need no permit.

    Raises:
        InvalidRequest: says what is not done here, or does not go together.
    """
    r, prompts = request, len(request.prompts)
    if not 1 <= prompts <= settings.max_client_batch_size:
        raise InvalidRequest(f"`prompt` must hold 1 to {settings.max_client_batch_size} prompts, given {prompts}")
    if r.best_of is not None:
        if r.best_of < choices(r):
            raise InvalidRequest(f"`best_of` must be at least `n`, given {r.best_of} and {choices(r)}")
        if r.best_of > settings.max_choices:
            raise InvalidRequest(f"`best_of` must be at most {settings.max_choices}, given {r.best_of}")
        if r.stream and r.best_of != choices(r):
            raise InvalidRequest("`best_of` must be `n` on a stream: the best are known at the end")
    openai_rules.check_combination(r, settings, choices=choices(r), sequences=prompts * generated(r))
    if r.echo and r.stream and r.logprobs is not None:
        raise InvalidRequest("`echo` with `logprobs` is not available on a stream")
    if r.max_tokens == 0 and not r.echo:
        raise InvalidRequest("`max_tokens` must be strictly positive, or `echo` must be true")
    if r.suffix:
        if r.echo:
            raise InvalidRequest("`suffix` and `echo` cannot be used together")
        if not all(isinstance(prompt, str) for prompt in r.prompts):
            raise InvalidRequest("`suffix` needs `prompt` to be text")


def echoed(request: CompletionRequest, tokenizer: Tokenizer) -> list[PromptText] | None:
    """The prompts as their answers repeat them, if they are to. CPU-bound.

    Raises:
        InvalidRequest: a token id is none of the model's.
    """
    if not request.echo:
        return None
    for prompt in request.prompts:
        if not isinstance(prompt, str) and any(not 0 <= token < tokenizer.vocab_size for token in prompt):
            raise InvalidRequest(f"`prompt` must hold token ids between 0 and {tokenizer.vocab_size - 1}")
    return [prompt_text(tokenizer, prompt) for prompt in request.prompts]


def asks(
    request: CompletionRequest,
    echo: Sequence[PromptText] | None,
    tokenizer: Tokenizer,
    settings: Settings,
    adapter: str | None = None,
) -> list[Ask]:
    """Apply the rules of value: one `Ask` for each prompt.

    Args:
        echo: what `echoed` made of the prompts.

    Raises:
        InvalidRequest: names the first rule broken, with its limit.
    """
    openai_rules.check_top_logprobs("logprobs", request.logprobs, settings)
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    parameters = openai_rules.parameters(
        request,
        settings,
        # The engine generates one at least; the answer to a request for none does not show it.
        max_new_tokens=max(max_tokens, 1),
        top_tokens=request.logprobs or 0,
        choices=generated(request),
        prefill=request.echo and request.logprobs is not None,
    )
    grammar = read_response_format(request.response_format)
    prompts = request.prompts if echo is None else [prompt.ids for prompt in echo]
    return [
        Ask(
            prompt=_infilling(tokenizer, prompt, request.suffix) if request.suffix else prompt,
            parameters=parameters,
            grammar=grammar,
            adapter=adapter,
            names=openai_rules.NAMES | {"inputs": "prompt"},
        )
        for prompt in prompts
    ]


def answer(
    request: CompletionRequest, echo: list[PromptText] | None, requests: Sequence[ValidRequest], head: Head
) -> CompletionAnswer:
    """What the answer to the request shows."""
    return CompletionAnswer(
        head=head,
        prompts=len(requests),
        generated=generated(request),
        choices=choices(request),
        prompt_tokens=sum(len(valid.prompt_ids) for valid in requests),
        stops=Stops(request.stops, request.include_stop_str_in_output),
        logprobs=request.logprobs,
        echoed=echo,
        prompt_only=request.max_tokens == 0,
        usage=openai_rules.usage_report(request),
    )


def _infilling(tokenizer: Tokenizer, prompt: str | list[int], suffix: str) -> str:
    filled = infilling_prompt(tokenizer, prompt, suffix) if isinstance(prompt, str) else None
    if filled is None:
        raise InvalidRequest("`suffix` is not supported: this model has no tokens for infilling")
    return filled
