"""TGI's rules for a generate request, in TGI's order and meaning.

Two kinds of rule: of combination, which need nothing but the request and come before admission, and of value, which come
after it. Tokenizing happens in a bounded pool of threads, so that long prompts never hold up an event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from msgspec import Struct

from common.errors import InvalidRequest, UnknownAdapter
from common.grammar import Grammar, read_grammar
from common.grammar_checker import GrammarChecker
from common.limits import Limits
from common.parameters import GenerationParameters, Watermark, check_stop_strings
from common.protocols.tgi_answer import Answer, SimpleToken, simple_tokens
from common.protocols.tgi_request import GenerateParameters, GenerateRequest
from common.settings import Settings
from common.tokenizer import Tokenizer

T = TypeVar("T")


class ValidRequest(Struct, frozen=True):
    """A request that may be queued."""

    prompt_ids: list[int]
    parameters: GenerationParameters
    answer: Answer
    adapter: str | None = None


class Validator:
    """Checks requests against one model's tokenizer and limits."""

    def __init__(self, settings: Settings, limits: Limits, tokenizer: Tokenizer) -> None:
        self.limits = limits
        self._settings = settings
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(settings.validation_workers, thread_name_prefix="validation")
        self._grammars = GrammarChecker(settings.grammar_timeout)

    def close(self) -> None:
        self._grammars.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check_combination(self, parameters: GenerateParameters, *, stream: bool) -> None:
        """Rules that need no permit.

        Raises:
            InvalidRequest: a stream asks for what only a whole answer has, or `best_of` is above its limit.
        """
        best_of = parameters.best_of
        if stream:
            if best_of is not None and best_of != 1:
                raise InvalidRequest(f"`best_of` must be 1 on a stream, given {best_of}")
            if parameters.decoder_input_details:
                raise InvalidRequest("`decoder_input_details` is not available on a stream")
        elif best_of is not None and best_of > self._settings.max_best_of:
            raise InvalidRequest(f"`best_of` must be at most {self._settings.max_best_of}, given {best_of}")

    async def validate(self, request: GenerateRequest, known_adapters: Collection[str] | None = None) -> ValidRequest:
        """Apply all other rules, tokenize, and resolve defaults.

        Args:
            known_adapters: names that `adapter_id` may have; None: not known here, the worker decides.

        `return_full_text` is false unless given, on `/` as on `/generate`. TGI's `/` depends on the pipeline tag that
        the hub has for the model and makes it true where there is none; the clients that post to `/` expect the answer
        alone.

        Raises:
            InvalidRequest: names the first rule broken, with its limit.
            UnknownAdapter: `adapter_id` is none of the known names.
            ServiceUnavailable: its grammar cannot be checked now.
        """
        parameters = request.parameters
        self._check_values(parameters, request.inputs)
        adapter = parameters.adapter_id
        if adapter is not None and known_adapters is not None and adapter not in known_adapters:
            raise UnknownAdapter(adapter, known_adapters)
        ids = await self._in_thread(lambda: self._tokenizer.ids(request.inputs))
        if parameters.truncate is not None:
            ids = ids[-parameters.truncate :]
        max_new_tokens = parameters.max_new_tokens or self._settings.default_max_new_tokens
        if parameters.fills_context:
            max_new_tokens = self.limits.max_total_tokens - len(ids)
        self._check_lengths(len(ids), max_new_tokens)
        resolved = self._resolve(parameters, max_new_tokens, await self._grammar(parameters))
        resolved.check()
        resolved.check_vocabulary(self._tokenizer.vocab_size)
        answer = Answer(
            details=parameters.details,
            prefill=parameters.decoder_input_details,
            top_tokens=resolved.top_n_tokens > 0,
            full_text_of=request.inputs if parameters.return_full_text else "",
            seed=resolved.seed if resolved.sample else None,
            sibling_seeds=[
                resolved.child_seed(child) if resolved.sample else None for child in range(1, resolved.children)
            ],
            input_length=len(ids),
        )
        return ValidRequest(ids, resolved, answer, adapter)

    async def tokenize(self, text: str) -> list[SimpleToken]:
        return await self._in_thread(lambda: simple_tokens(text, self._tokenizer.encode(text)))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _check_values(self, p: GenerateParameters, inputs: str) -> None:
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
        if len(p.stop) > self._settings.max_stop_sequences:
            raise InvalidRequest(
                f"`stop` takes at most {self._settings.max_stop_sequences} sequences, given {len(p.stop)}"
            )
        check_stop_strings(p.stop)
        if p.seed is not None and best_of > 1:
            raise InvalidRequest("`seed` must not be set when `best_of` is above 1")
        if p.top_n_tokens is not None and p.top_n_tokens > self._settings.max_top_n_tokens:
            raise InvalidRequest(
                f"`top_n_tokens` must be at most {self._settings.max_top_n_tokens}, given {p.top_n_tokens}"
            )
        if not inputs:
            raise InvalidRequest("`inputs` must not be empty")
        if p.truncate is not None and not 1 <= p.truncate <= self.limits.max_input_tokens:
            raise InvalidRequest(
                f"`truncate` must be strictly positive and at most {self.limits.max_input_tokens}, given {p.truncate}"
            )

    def _check_lengths(self, inputs: int, max_new_tokens: int) -> None:
        if not inputs:
            raise InvalidRequest("`inputs` must hold at least one token")
        if inputs + max_new_tokens > self.limits.max_total_tokens:
            raise InvalidRequest(
                f"`inputs` tokens + `max_new_tokens` must be at most {self.limits.max_total_tokens}, "
                f"given {inputs} `inputs` tokens and {max_new_tokens} `max_new_tokens`"
            )
        if inputs > self.limits.max_input_tokens:
            raise InvalidRequest(f"`inputs` must have at most {self.limits.max_input_tokens} tokens, given {inputs}")

    async def _grammar(self, p: GenerateParameters) -> Grammar | None:
        asked = p.grammar
        if asked is None:
            return None
        if self._settings.disable_grammar_support:
            raise InvalidRequest("`grammar` is not supported")
        grammar = await self._in_thread(lambda: read_grammar(asked.type, asked.value))
        await self._grammars.check(grammar)
        return grammar

    def _resolve(self, p: GenerateParameters, max_new_tokens: int, grammar: Grammar | None) -> GenerationParameters:
        settings = self._settings
        temperature = 1.0 if p.temperature is None else p.temperature
        # Neutral values do not turn sampling on; this is where TGI's shards decide.
        warped = temperature != 1.0 or p.top_k is not None or p.top_p is not None or p.min_p or p.typical_p is not None
        return GenerationParameters(
            max_new_tokens=max_new_tokens,
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
            grammar=grammar,
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
