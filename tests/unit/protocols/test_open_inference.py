"""What the Open Inference Protocol asks for and hears."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.errors import InvalidRequest, Overloaded, UnknownModelVersion
from common.limits import Limits
from common.parameters import GenerationParameters
from common.protocols import open_inference_rules as rules
from common.protocols.json_body import parse_body
from common.protocols.open_inference_answer import OpenInferenceFold, error_body
from common.protocols.open_inference_request import GenerateRequest
from common.settings import Settings
from common.validation import Ask, ValidRequest
from common.wire import Finish, PrefillToken, Token, Tokens, TopToken

LIMITS = Limits(max_input_tokens=50, max_total_tokens=100)
MODEL = {"model_name": "org/m", "model_version": "1"}
TOKENS = [
    Token(5, " Hé", -0.5, False, [TopToken(5, " Hé", -0.5, False)]),
    Token(6, "", -1.25, False, [TopToken(6, "", -1.25, False)]),
    Token(2, "</s>", -0.125, True, [TopToken(2, "</s>", -0.125, True)]),
]
FINISH = Finish("eos_token", 3, 0.5, prefill=[PrefillToken(9, "P", None)])


def parse(**body: Any) -> GenerateRequest:
    return parse_body(GenerateRequest, json.dumps({"text_input": "Hi", **body}).encode())


def ask(**parameters: Any) -> Ask:
    request, settings = parse(parameters=parameters), Settings.of()
    rules.check_combination(request.parameters, settings, stream=False)
    return rules.ask(request, settings, LIMITS)


def resolved(**parameters: Any) -> GenerationParameters:
    return ask(**parameters).parameters


def fold(parameters: dict[str, Any], **changes: Any) -> OpenInferenceFold:
    request = parse(parameters=parameters)
    asked = rules.ask(request, Settings.of(), LIMITS).parameters
    answer = rules.answer(request, ValidRequest([1, 2, 3], asked))
    return OpenInferenceFold(answer, details=request.parameters.details, **(MODEL | changes))


def body(parameters: dict[str, Any], *steps: Tokens) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(fold(parameters).body(steps))
    return decoded


def stream(parameters: dict[str, Any], *steps: Tokens) -> list[dict[str, Any]]:
    folding = fold(parameters)
    return [json.loads(event) for step in steps for event in folding.stream_events(step)]


def test_defaults_are_the_protocols() -> None:
    for request in (parse(), parse(parameters=None), parse(parameters={"max_tokens": None, "temperature": None})):
        asked = rules.ask(request, Settings.of(), LIMITS)
        assert asked.prompt == "Hi"
        assert not asked.fills_context
        assert asked.parameters.max_new_tokens == 20
        assert asked.parameters.sample
        assert asked.parameters.temperature == 1.0
        assert asked.parameters.top_p == 1.0
    assert ask().names == {"inputs": "text_input", "max_new_tokens": "max_tokens"}


def test_the_edges_of_its_ranges_are_legal() -> None:
    for greedy in ({"temperature": 0}, {"top_p": 0}, {"temperature": 0, "top_k": 4, "do_sample": True}):
        parameters = resolved(**greedy)
        assert not parameters.sample
        assert parameters.temperature == 1.0
        assert parameters.top_p == 1.0
    assert resolved(top_p=1).sample
    assert resolved(top_p=1).top_p == 1.0
    assert resolved(top_p=0.5).top_p == 0.5
    assert resolved(temperature=0.5).temperature == 0.5


def test_sampling_can_be_turned_off_as_on_native_routes() -> None:
    assert not resolved(do_sample=False).sample
    assert resolved(do_sample=False, temperature=0.5).sample


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"max_tokens": 0}, "parameters.max_tokens"),
        ({"max_tokens": -1}, "parameters.max_tokens"),
        ({"max_tokens": 1.5}, "parameters.max_tokens"),
        ({"max_tokens": "5"}, "parameters.max_tokens"),
        ({"max_tokens": 2**31}, "parameters.max_tokens"),
        ({"temperature": -0.1}, "parameters.temperature"),
        ({"temperature": "hot"}, "parameters.temperature"),
        ({"top_p": 1.1}, "parameters.top_p"),
        ({"top_p": -0.1}, "parameters.top_p"),
        ({"stop": "x"}, "parameters.stop"),
        ({"stop": ["a", ""]}, "`stop`"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "`stop`"),
        ({"details": "yes"}, "parameters.details"),
        ({"top_k": 0}, "`top_k`"),
        ({"repetition_penalty": 0}, "`repetition_penalty`"),
        ({"best_of": 2, "temperature": 0}, "`best_of`"),
        ({"best_of": 3}, "`best_of`"),
        ({"max_tokens": 5, "max_new_tokens": 6}, "`max_tokens` is 5"),
    ],
)
def test_what_breaks_a_rule_is_named(parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match="Input validation error: ") as caught:
        ask(**parameters)
    assert named in caught.value.message


def test_the_prompt_is_called_text_input() -> None:
    with pytest.raises(InvalidRequest, match="`text_input`: is required"):
        parse_body(GenerateRequest, b'{"inputs":"Hi"}')
    with pytest.raises(InvalidRequest, match="`text_input` must not be empty"):
        rules.ask(parse(text_input=""), Settings.of(), LIMITS)


def test_native_parameters_work_and_unknown_ones_are_named() -> None:
    asked = ask(max_new_tokens=7, seed=3, top_k=5, typical_p=0.5, truncate=2, adapter_id="a", logit_bias={"4": 1.5})
    assert asked.parameters.max_new_tokens == 7
    assert asked.parameters.seed == 3
    assert asked.parameters.top_k == 5
    assert asked.parameters.typical_p == 0.5
    assert asked.parameters.logit_bias == {4: 1.5}
    assert (asked.truncate, asked.adapter) == (2, "a")
    assert ask(max_tokens=5, max_new_tokens=5).parameters.max_new_tokens == 5
    assert ask(max_new_tokens=None).fills_context
    assert parse(id="x", stream=True, parameters={"num_beams": 2}).ignored == ["id", "stream", "parameters.num_beams"]


def test_streams_refuse_what_only_a_whole_answer_has() -> None:
    for parameters in ({"best_of": 2}, {"decoder_input_details": True}):
        with pytest.raises(InvalidRequest, match="stream"):
            rules.check_combination(parse(parameters=parameters).parameters, Settings.of(), stream=True)


def test_the_body_without_and_with_details() -> None:
    steps = (Tokens(0, TOKENS[:1]), Tokens(1, TOKENS[1:], FINISH))
    assert body({}, *steps) == {"text_output": " Hé", **MODEL}
    details = body({"details": True, "seed": 8}, *steps)["details"]
    assert details == {
        "finish_reason": "eos_token",
        "logprobs": [
            {"id": 5, "text": " Hé", "logprob": -0.5, "special": False},
            {"id": 6, "text": "", "logprob": -1.25, "special": False},
            {"id": 2, "text": "</s>", "logprob": -0.125, "special": True},
        ],
        "generated_tokens": 3,
        "seed": 8,
    }
    assert body({"details": True, "temperature": 0}, *steps)["details"]["seed"] is None


def test_native_details_are_there_when_asked_for() -> None:
    whole = Tokens(0, TOKENS, FINISH)
    answer = body({"decoder_input_details": True, "top_n_tokens": 1, "return_full_text": True}, whole)
    assert answer["text_output"] == "Hi Hé"
    assert answer["details"]["prefill"] == [{"id": 9, "text": "P", "logprob": None}]
    assert [[top["id"] for top in tops] for tops in answer["details"]["top_tokens"]] == [[5], [6], [2]]
    second = Tokens(0, [Token(7, "!", -3.0, False)], Finish("length", 1, 0.5), child=1)
    details = body({"best_of": 2, "details": True}, Tokens(0, TOKENS, FINISH, unfinished=1), second)["details"]
    (other,) = details["best_of_sequences"]
    assert (other["text_output"], other["finish_reason"], other["generated_tokens"]) == ("!", "length", 1)
    assert [token["id"] for token in other["logprobs"]] == [7]
    assert other["seed"] != details["seed"]


def test_a_stream_has_one_event_a_token() -> None:
    at_once = stream({}, Tokens(0, TOKENS, FINISH))
    one_by_one = stream({}, *(Tokens(i, [t], FINISH if i == 2 else None) for i, t in enumerate(TOKENS)))
    assert at_once == one_by_one == [{"text_output": text, **MODEL} for text in (" Hé", "", "")]


def test_stream_details_have_the_token_and_at_the_end_the_reason() -> None:
    events = stream({"details": True, "seed": 8}, Tokens(0, TOKENS[:2]), Tokens(2, TOKENS[2:], FINISH))
    assert [event["details"]["token"]["id"] for event in events] == [5, 6, 2]
    assert [event["details"]["finish_reason"] for event in events] == [None, None, "eos_token"]
    assert set(events[0]["details"]) == {"finish_reason", "token"}
    last = events[-1]["details"]
    assert (last["generated_tokens"], last["seed"], last["input_length"]) == (3, 8, 3)
    (event,) = stream({"details": True, "top_n_tokens": 1}, Tokens(0, TOKENS[:1]))
    assert event["details"]["top_tokens"] == [{"id": 5, "text": " Hé", "logprob": -0.5, "special": False}]


@pytest.mark.parametrize("parameters", [{}, {"return_full_text": True}, {"details": True}])
def test_a_stream_joins_to_the_whole_answer(parameters: dict[str, Any]) -> None:
    steps = (Tokens(0, TOKENS[:1]), Tokens(1, TOKENS[1:], FINISH))
    joined = "".join(event["text_output"] for event in stream(parameters, *steps))
    assert joined == body(parameters, *steps)["text_output"]


def test_errors_have_one_key() -> None:
    assert json.loads(error_body(Overloaded())) == {"error": "Model is overloaded"}
    known = error_body(UnknownModelVersion("m", "7", ["1", "main"]))
    assert json.loads(known) == {"error": "The model `m` has no version `7`; there are: `1`, `main`"}
