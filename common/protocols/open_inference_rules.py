"""What a request of the Open Inference Protocol asks for: its own defaults and ranges, TGI's rules for the rest.

It samples unless told otherwise, for its temperature is 1 by default; at temperature 0 or `top_p` 0 the likeliest token
is taken.
"""

from __future__ import annotations

import msgspec

from common.errors import InvalidRequest
from common.limits import Limits
from common.protocols import tgi_request, tgi_rules
from common.protocols.open_inference_request import GenerateParameters, GenerateRequest
from common.protocols.tgi_answer import Answer
from common.settings import Settings
from common.validation import Ask, ValidRequest

DEFAULT_MAX_TOKENS = 20
_NAMES = {"inputs": "text_input", "max_new_tokens": "max_tokens"}


def check_combination(p: GenerateParameters, settings: Settings, *, stream: bool) -> None:
    """Rules that need no permit.

    Raises:
        InvalidRequest: the parameters contradict each other, or a stream asks for what only a whole answer has.
    """
    if None not in (p.max_tokens, p.max_new_tokens) and p.max_tokens != p.max_new_tokens:
        raise InvalidRequest(
            f"`max_tokens` is {p.max_tokens} and `max_new_tokens` {p.max_new_tokens}: give one of them"
        )
    tgi_rules.check_combination(p, settings, stream=stream)


def ask(request: GenerateRequest, settings: Settings, limits: Limits) -> Ask:
    """Apply the rules of value and resolve defaults.

    Raises:
        InvalidRequest: names the first rule broken, with its limit.
    """
    if not request.text_input:
        raise InvalidRequest("`text_input` must not be empty")
    asked = tgi_rules.ask(_as_native(request), settings, limits)
    parameters = asked.parameters
    if _greedy(request.parameters):
        parameters = msgspec.structs.replace(parameters, sample=False)
    return msgspec.structs.replace(asked, parameters=parameters, names=_NAMES)


def answer(request: GenerateRequest, valid: ValidRequest) -> Answer:
    """What the answer to the request shows."""
    return tgi_rules.answer(_as_native(request), valid)


def _as_native(request: GenerateRequest) -> tgi_request.GenerateRequest:
    """The same request in TGI's words, where a neutral value is none at all."""
    p = request.parameters
    changes = {
        "do_sample": not _greedy(p) and (p.do_sample or "do_sample" not in p.model_fields_set),
        "temperature": p.temperature or None,
        "top_p": p.top_p if p.top_p and p.top_p < 1 else None,
    }
    if p.max_tokens is not None or "max_new_tokens" not in p.model_fields_set:
        changes["max_new_tokens"] = p.max_tokens or DEFAULT_MAX_TOKENS
    return tgi_request.GenerateRequest.model_construct(
        inputs=request.text_input, parameters=p.model_copy(update=changes)
    )


def _greedy(p: GenerateParameters) -> bool:
    return p.temperature == 0 or p.top_p == 0
