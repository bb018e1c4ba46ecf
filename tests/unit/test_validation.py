"""TGI's rules, one by one and in their order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ValidationError

from common.errors import InvalidRequest, UnknownAdapter
from common.grammar import Grammar as WireGrammar
from common.grammar_checker import GrammarChecker
from common.limits import Limits, resolve_limits
from common.model_files import ModelFiles, default_model_folder
from common.parameters import GenerationParameters, Watermark
from common.protocols import tgi_rules
from common.protocols.tgi_answer import Answer
from common.protocols.tgi_request import GenerateParameters, GenerateRequest, Grammar
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.validation import Validator
from tests.byte_model import write_byte_model

SETTINGS = Settings.of()


@dataclass(frozen=True)
class Valid:
    prompt_ids: list[int]
    parameters: GenerationParameters
    adapter: str | None
    answer: Answer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    cache = tmp_path_factory.mktemp("model")
    write_byte_model(cache)
    return ModelFiles("scripted", default_model_folder(Settings.of(cache_dir=cache)))


@contextmanager
def validator_of(files: ModelFiles, settings: Settings) -> Iterator[Validator]:
    grammars = GrammarChecker(5)
    with ThreadPoolExecutor(1) as threads:
        yield Validator(settings, Limits(20, 130), Tokenizer(files), grammars, threads)
    grammars.close()


@pytest.fixture(scope="module")
def validator(files: ModelFiles) -> Iterator[Validator]:
    with validator_of(files, SETTINGS) as validator:
        yield validator


async def validate_request(
    validator: Validator,
    request: GenerateRequest,
    known_adapters: Collection[str] | None = None,
    settings: Settings = SETTINGS,
) -> Valid:
    valid = await validator.validate(tgi_rules.ask(request, settings, validator.limits), known_adapters)
    return Valid(valid.prompt_ids, valid.parameters, valid.adapter, tgi_rules.answer(request, valid))


async def validate(validator: Validator, inputs: str = "hello", **parameters: Any) -> Valid:
    return await validate_request(
        validator, GenerateRequest(inputs=inputs, parameters=GenerateParameters(**parameters))
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"best_of": 2}, "`best_of` above 1 needs sampling"),
        ({"temperature": 0}, "`temperature` must be strictly positive"),
        ({"temperature": -1.0}, "`temperature` must be strictly positive"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be strictly positive"),
        ({"repetition_penalty": -1}, "`repetition_penalty` must be strictly positive"),
        ({"frequency_penalty": 2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"presence_penalty": -2.1}, "`presence_penalty` must be >= -2.0 and <= 2.0"),
        ({"min_p": 1.5}, "`min_p` must be >= 0.0 and <= 1.0"),
        ({"logit_bias": {"1": 101.0}}, "`logit_bias` must hold values between -100.0 and 100.0"),
        ({"logit_bias": {"257": 1.0}}, "`logit_bias` must hold token ids between 0 and 256, given 257"),
        ({"stop_token_ids": [300]}, "`stop_token_ids` must hold token ids between 0 and 256, given 300"),
        ({"stop_token_ids": list(range(65))}, "`stop_token_ids` takes at most 64 ids, given 65"),
        ({"top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"typical_p": 1.0}, "`typical_p` must be > 0.0 and < 1.0"),
        ({"top_k": 0}, "`top_k` must be strictly positive"),
        ({"top_k": -1}, "`top_k` must be strictly positive"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "`stop` takes at most 4 sequences, given 5"),
        ({"stop": ["a", ""]}, "`stop` must not hold an empty string"),
        ({"stop": ["a", "x" * 1025]}, "`stop` strings have at most 1024 characters, given 1025"),
        ({"best_of": 2, "do_sample": True, "seed": 1}, "`seed` must not be set"),
        ({"top_n_tokens": 6}, "`top_n_tokens` must be at most 5, given 6"),
        ({"truncate": 0}, "`truncate` must be strictly positive and at most 20, given 0"),
        ({"truncate": 21}, "`truncate` must be strictly positive and at most 20, given 21"),
        ({"max_new_tokens": 126}, "must be at most 130, given 5 `inputs` tokens and 126 `max_new_tokens`"),
    ],
)
async def test_each_rule_names_its_field_and_limit(
    validator: Validator, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await validate(validator, **parameters)
    assert caught.value.message.startswith("Input validation error: ")
    assert message in caught.value.message


async def test_adapters_that_are_not_loaded_are_refused(validator: Validator) -> None:
    request = GenerateRequest(inputs="Hello", parameters=GenerateParameters(adapter_id="mine"))
    with pytest.raises(UnknownAdapter, match="`adapter_id` names `mine`, which is not loaded; there are: `one`, `two`"):
        await validate_request(validator, request, {"two", "one"})
    with pytest.raises(UnknownAdapter, match="there are: none"):
        await validate_request(validator, request, frozenset())
    assert (await validate_request(validator, request, {"mine"})).adapter == "mine"
    # No worker is there to ask: the one that gets the job decides.
    assert (await validate_request(validator, request)).adapter == "mine"


@pytest.mark.parametrize(
    "parameters", [{"frequency_penalty": -2}, {"top_n_tokens": 0}, {"best_of": 1, "seed": 0}, {"stop": []}]
)
async def test_the_edges_that_are_allowed(validator: Validator, parameters: dict[str, Any]) -> None:
    await validate(validator, **parameters)


def test_rules_of_combination(validator: Validator) -> None:
    def check(*, stream: bool, **parameters: Any) -> None:
        tgi_rules.check_combination(GenerateParameters(**parameters), SETTINGS, stream=stream)

    check(stream=True, best_of=1)
    for best_of in (0, 2):
        with pytest.raises(InvalidRequest, match="`best_of` must be 1 on a stream"):
            check(stream=True, best_of=best_of)
    with pytest.raises(InvalidRequest, match="decoder_input_details"):
        check(stream=True, decoder_input_details=True)
    check(stream=False, best_of=2, decoder_input_details=True)
    with pytest.raises(InvalidRequest, match="at most 2, given 3"):
        check(stream=False, best_of=3)


async def test_an_empty_prompt_is_refused_and_a_space_is_not(validator: Validator) -> None:
    with pytest.raises(InvalidRequest, match="`inputs` must not be empty"):
        await validate(validator, "")
    assert len((await validate(validator, " ")).prompt_ids) == 1


async def test_the_longest_prompt_is_accepted_and_one_more_is_not(validator: Validator) -> None:
    assert len((await validate(validator, "x" * 20)).prompt_ids) == 20
    with pytest.raises(InvalidRequest, match="at most 20 tokens, given 21"):
        await validate(validator, "x" * 21, max_new_tokens=1)


async def test_too_long_with_the_default_answer_tells_the_true_numbers(validator: Validator) -> None:
    with pytest.raises(InvalidRequest, match="given 31 `inputs` tokens and 100 `max_new_tokens`"):
        await validate(validator, "x" * 31)


@pytest.mark.parametrize("length", [1, 20])
async def test_an_explicit_null_fills_the_context(validator: Validator, length: int) -> None:
    valid = await validate(validator, "x" * length, max_new_tokens=None)
    assert valid.parameters.max_new_tokens == 130 - length


async def test_a_prompt_too_long_for_any_answer_breaks_the_rule_of_prompts(validator: Validator) -> None:
    for length in (21, 130, 200):
        with pytest.raises(InvalidRequest, match=f"`inputs` must have at most 20 tokens, given {length}"):
            await validate(validator, "x" * length, max_new_tokens=None)


async def test_truncation_keeps_the_last_tokens(validator: Validator) -> None:
    whole = (await validate(validator, "abcdef")).prompt_ids
    valid = await validate(validator, "abcdef", truncate=2, return_full_text=True)
    assert valid.prompt_ids == whole[-2:]
    assert valid.answer.input_length == 2
    assert valid.answer.full_text_of == "abcdef"


async def test_defaults(validator: Validator) -> None:
    valid = await validate(validator)
    assert valid.parameters.max_new_tokens == 100
    assert not valid.parameters.sample
    assert valid.answer.seed is None


async def test_parameters_of_our_own_reach_the_engine(validator: Validator) -> None:
    given: dict[str, Any] = {
        "min_p": 0.25,
        "presence_penalty": 0.5,
        "stop_token_ids": [3],
        "ignore_eos": True,
        "watermark": True,
    }
    resolved = (await validate(validator, **given, logit_bias={"5": -1.5, "6": 100})).parameters
    assert (resolved.min_p, resolved.presence_penalty, resolved.openai_frequency_penalty) == (0.25, 0.5, 0.0)
    assert (resolved.logit_bias, resolved.stop_token_ids, resolved.ignore_eos) == ({5: -1.5, 6: 100.0}, [3], True)
    assert resolved.watermark == Watermark()


@pytest.mark.parametrize("key", ["", "x", "-1", "1.0", "1" * 11, "１"])
def test_keys_of_a_bias_are_token_ids(key: str) -> None:
    with pytest.raises(ValidationError):
        GenerateParameters(logit_bias={key: 1.0})


async def test_settings_make_the_watermark_and_turn_grammars_off(files: ModelFiles) -> None:
    settings = Settings.of(watermark_gamma=0.25, watermark_delta=1.5, watermark_key=9, disable_grammar_support=True)
    with validator_of(files, settings) as validator:
        request = GenerateRequest(inputs="hello", parameters=GenerateParameters(watermark=True))
        valid = await validate_request(validator, request, settings=settings)
        assert valid.parameters.watermark == Watermark(0.25, 1.5, 9)
        with pytest.raises(InvalidRequest, match="`grammar` is not supported"):
            await validate(validator, grammar=Grammar(type="regex", value="a"))


async def test_a_grammar_is_compiled_on_trial(validator: Validator) -> None:
    valid = await validate(validator, grammar=Grammar(type="regex", value="[ab]+"))
    assert valid.parameters.grammar == WireGrammar("regex", "[ab]+")
    with pytest.raises(InvalidRequest, match="unclosed character class"):
        await validate(validator, grammar=Grammar(type="regex", value="[ab"))


@pytest.mark.parametrize(
    ("parameters", "samples"),
    [
        ({"do_sample": True}, True),
        ({"temperature": 0.5}, True),
        ({"temperature": 1.0}, False),
        ({"top_k": 5}, True),
        ({"top_p": 0.5}, True),
        ({"min_p": 0.5}, True),
        ({"min_p": 0.0}, False),
        ({"typical_p": 0.5}, True),
        ({"seed": 3}, False),
    ],
)
async def test_when_sampling_happens(validator: Validator, parameters: dict[str, Any], samples: bool) -> None:
    valid = await validate(validator, **parameters)
    assert valid.parameters.sample is samples
    assert (valid.answer.seed is not None) is samples


async def test_a_seed_is_drawn_unless_given(validator: Validator) -> None:
    drawn = {(await validate(validator, do_sample=True)).parameters.seed for _ in range(8)}
    assert len(drawn) == 8
    assert (await validate(validator, do_sample=True, seed=2**64 - 1)).answer.seed == 2**64 - 1


def test_limits_come_from_settings_and_model(files: ModelFiles) -> None:
    assert resolve_limits(Settings.of(), files.context_length) == Limits(255, 256)
    assert resolve_limits(Settings.of(max_total_tokens=100, max_input_tokens=10), files.context_length) == Limits(
        10, 100
    )
    with pytest.raises(ValueError, match=r"MAX_TOTAL_TOKENS \(300\).*256"):
        resolve_limits(Settings.of(max_total_tokens=300), files.context_length)
    with pytest.raises(ValueError, match=r"MAX_INPUT_TOKENS \(256\)"):
        resolve_limits(Settings.of(max_input_tokens=256), files.context_length)


async def test_best_of_makes_children_with_seeds_of_their_own(validator: Validator) -> None:
    valid = await validate(validator, best_of=2, do_sample=True)
    assert valid.parameters.children == 2
    assert valid.answer.seed == valid.parameters.seed
    assert valid.answer.sibling_seeds == [valid.parameters.child_seed(1)]
    assert valid.parameters.child_seed(1) != valid.parameters.seed == valid.parameters.child_seed(0)
    # Naming a neutral warper is asking for sampling, and then nothing is drawn.
    greedy = await validate(validator, best_of=2, temperature=1.0)
    assert (greedy.answer.seed, greedy.answer.sibling_seeds) == (None, [None])
    alone = await validate(validator, best_of=1)
    assert (alone.parameters.children, alone.answer.sibling_seeds) == (1, [])
