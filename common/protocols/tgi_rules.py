"""TGI's rules for the values of a generate request, in TGI's order and meaning, and what it asks for by them.

Two kinds of rule: of combination, which come before admission, and of value, which come after it.
"""

from __future__ import annotations

import secrets

from common.errors import InvalidRequest
from common.grammar import read_grammar
from common.limits import Limits
from common.parameters import GenerationParameters, Watermark, check_stop_strings
from common.protocols.tgi_answer import Answer
from common.protocols.tgi_request import GenerateParameters, GenerateRequest
from common.settings import Settings
from common.validation import Ask, ValidRequest


def check_combination(p: GenerateParameters, settings: Settings, *, stream: bool) -> None:
    """Rules that need no permit.

    Raises:
        InvalidRequest: a stream asks for what only a whole answer has, or `best_of` is above its limit.
    """
    if stream:
        if p.best_of is not None and p.best_of != 1:
            raise InvalidRequest(f"`best_of` must be 1 on a stream, given {p.best_of}")
        if p.decoder_input_details:
            raise InvalidRequest("`decoder_input_details` is not available on a stream")
    elif p.best_of is not None and p.best_of > settings.max_best_of:
        raise InvalidRequest(f"`best_of` must be at most {settings.max_best_of}, given {p.best_of}")


def ask(request: GenerateRequest, settings: Settings, limits: Limits) -> Ask:
    """Apply the rules of value and resolve defaults.

    Raises:
        InvalidRequest: names the first rule broken, with its limit.
    """
    p = request.parameters
    _check_values(p, request.inputs, settings, limits)
    grammar = p.grammar
    return Ask(
        prompt=request.inputs,
        parameters=_resolve(p, settings),
        fills_context=p.fills_context,
        truncate=p.truncate,
        grammar=None if grammar is None else lambda: read_grammar(grammar.type, grammar.value),
        adapter=p.adapter_id,
    )


def answer(request: GenerateRequest, valid: ValidRequest) -> Answer:
    """What the answer to the request shows.

    `return_full_text` is false unless given, on `/` as on `/generate`. TGI's `/` depends on the pipeline tag that
    the hub has for the model and makes it true where there is none; the clients that post to `/` expect the answer
    alone.
    """
    p, resolved = request.parameters, valid.parameters
    return Answer(
        details=p.details,
        prefill=p.decoder_input_details,
        top_tokens=resolved.top_n_tokens > 0,
        full_text_of=request.inputs if p.return_full_text else "",
        seed=resolved.seed if resolved.sample else None,
        sibling_seeds=[
            resolved.child_seed(child) if resolved.sample else None for child in range(1, resolved.children)
        ],
        input_length=len(valid.prompt_ids),
    )


def _check_values(p: GenerateParameters, inputs: str, settings: Settings, limits: Limits) -> None:
    best_of = p.best_of or 1
    if best_of > 1 and not _asks_for_sampling(p):
        raise InvalidRequest(f"`best_of` above 1 needs sampling, given {best_of} without it")
    _positive("temperature", p.temperature)
    _positive("repetition_penalty", p.repetition_penalty)
    _within_two("frequency_penalty", p.frequency_penalty)
    _within_two("presence_penalty", p.presence_penalty)
    _fraction("top_p", p.top_p)
    _fraction("typical_p", p.typical_p)
    if p.min_p is not None and not 0 <= p.min_p <= 1:
        raise InvalidRequest(f"`min_p` must be >= 0.0 and <= 1.0, given {p.min_p:g}")
    _positive("top_k", p.top_k)
    _positive("max_new_tokens", p.max_new_tokens)
    if len(p.stop) > settings.max_stop_sequences:
        raise InvalidRequest(f"`stop` takes at most {settings.max_stop_sequences} sequences, given {len(p.stop)}")
    check_stop_strings(p.stop)
    if p.seed is not None and best_of > 1:
        raise InvalidRequest("`seed` must not be set when `best_of` is above 1")
    if p.top_n_tokens is not None and p.top_n_tokens > settings.max_top_n_tokens:
        raise InvalidRequest(f"`top_n_tokens` must be at most {settings.max_top_n_tokens}, given {p.top_n_tokens}")
    if not inputs:
        raise InvalidRequest("`inputs` must not be empty")
    if p.truncate is not None and not 1 <= p.truncate <= limits.max_input_tokens:
        raise InvalidRequest(
            f"`truncate` must be strictly positive and at most {limits.max_input_tokens}, given {p.truncate}"
        )


def _resolve(p: GenerateParameters, settings: Settings) -> GenerationParameters:
    temperature = 1.0 if p.temperature is None else p.temperature
    # Neutral values do not turn sampling on; this is where TGI's shards decide.
    warped = temperature != 1.0 or p.top_k is not None or p.top_p is not None or p.min_p or p.typical_p is not None
    return GenerationParameters(
        max_new_tokens=p.max_new_tokens or settings.default_max_new_tokens,
        seed=secrets.randbits(64) if p.seed is None else p.seed,
        sample=p.do_sample or bool(warped),
        temperature=temperature,
        top_k=p.top_k or 0,
        top_p=1.0 if p.top_p is None else p.top_p,
        min_p=p.min_p or 0.0,
        typical_p=1.0 if p.typical_p is None else p.typical_p,
        repetition_penalty=1.0 if p.repetition_penalty is None else p.repetition_penalty,
        frequency_penalty=p.frequency_penalty or 0.0,
        presence_penalty=p.presence_penalty or 0.0,
        logit_bias={int(token_id): bias for token_id, bias in p.logit_bias.items()},
        watermark=Watermark(settings.watermark_gamma, settings.watermark_delta, settings.watermark_key)
        if p.watermark
        else None,
        stop=p.stop,
        stop_token_ids=p.stop_token_ids,
        ignore_eos=p.ignore_eos,
        top_n_tokens=p.top_n_tokens or 0,
        prefill_logprobs=p.decoder_input_details,
        children=p.best_of or 1,
    )


def _asks_for_sampling(p: GenerateParameters) -> bool:
    """TGI's wording for `best_of`: naming a warper counts, even with its neutral value."""
    return p.do_sample or any(value is not None for value in (p.temperature, p.top_k, p.top_p, p.min_p, p.typical_p))


def _positive(field: str, value: float | None) -> None:
    if value is not None and value <= 0:
        raise InvalidRequest(f"`{field}` must be strictly positive, given {value:g}")


def _within_two(field: str, value: float | None) -> None:
    if value is not None and not -2 <= value <= 2:
        raise InvalidRequest(f"`{field}` must be >= -2.0 and <= 2.0, given {value:g}")


def _fraction(field: str, value: float | None) -> None:
    # TGI refuses 1.0 too, although its schema allows it.
    if value is not None and not 0 < value < 1:
        raise InvalidRequest(f"`{field}` must be > 0.0 and < 1.0, given {value:g}")
