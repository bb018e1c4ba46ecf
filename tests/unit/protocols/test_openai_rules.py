"""What chat and completions requests ask for, and what is refused; the names are those of the callers' fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.chat_template import ChatTemplate
from common.errors import InvalidRequest
from common.parameters import GenerationParameters
from common.protocols import openai_chat_rules as chat
from common.protocols.json_body import parse_body
from common.protocols.openai_answer import Head, Stops, UsageReport
from common.protocols.openai_chat_request import ChatRequest
from common.settings import Settings
from common.validation import Ask, ValidRequest

SETTINGS = Settings.of()
TEMPLATE = ChatTemplate(
    {"default": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ guideline }}{{ mood }}<assistant>"},
    {},
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def request(**fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse_body(ChatRequest, json.dumps(body).encode())


def ask(**fields: Any) -> Ask:
    body = request(**fields)
    chat.check_combination(body, SETTINGS)
    conversation = chat.read_conversation(body)
    asked = chat.ask(body, conversation, chat.prompt(body, conversation, TEMPLATE), TEMPLATE, SETTINGS)
    asked.parameters.check()
    return asked


def parameters(**fields: Any) -> GenerationParameters:
    return ask(**fields).parameters


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        ask(**fields)
    return refused.value.message


def test_defaults_are_openais() -> None:
    asked = ask(seed=1)
    assert asked.parameters == GenerationParameters(max_new_tokens=1, seed=1, sample=True)
    assert asked.fills_context
    assert not asked.special_tokens
    assert asked.prompt == "<user>Hi<assistant>"
    assert asked.grammar is None
    assert parameters() != parameters(), "seeds are drawn"


def test_every_parameter_arrives() -> None:
    asked = ask(
        max_tokens=7,
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        min_p=0.125,
        typical_p=0.75,
        repetition_penalty=1.5,
        frequency_penalty=-2,
        presence_penalty=2,
        logit_bias={"5": -100, "6": 1.5},
        seed=-1,
        stop="x",
        stop_token_ids=[9],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=20,
        n=3,
    )
    assert asked.parameters == GenerationParameters(
        max_new_tokens=7,
        seed=2**64 - 1,
        sample=True,
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        min_p=0.125,
        typical_p=0.75,
        repetition_penalty=1.5,
        openai_frequency_penalty=-2,
        presence_penalty=2,
        logit_bias={5: -100, 6: 1.5},
        stop=["x"],
        stop_token_ids=[9],
        ignore_eos=True,
        top_n_tokens=20,
        children=3,
    )
    assert not asked.fills_context


def test_null_is_absent_for_every_field() -> None:
    fields = {name: None for name in ChatRequest.model_fields if name not in ("messages", "seed")}
    assert ask(seed=1, **fields) == ask(seed=1)
    assert request(**fields).ignored == []


@pytest.mark.parametrize(
    ("fields", "sample"),
    [
        ({"temperature": 0}, False),
        ({"temperature": 0, "n": 2}, False),
        ({"top_p": 0}, False),
        ({"temperature": 1, "top_p": 1}, True),
        ({"top_k": -1}, True),
        ({"top_k": 0}, True),
    ],
)
def test_neutral_and_greedy_values(fields: dict[str, Any], sample: bool) -> None:
    resolved = parameters(**fields)
    assert (resolved.sample, resolved.temperature, resolved.top_p, resolved.top_k) == (sample, 1.0, 1.0, 0)


def test_penalties_that_are_absent_are_zero() -> None:
    assert parameters(seed=1, presence_penalty=0, frequency_penalty=0) == parameters(seed=1)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "`max_new_tokens`"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "`max_completion_tokens`"),
        ({"temperature": -0.5}, "`temperature`"),
        ({"top_p": 1.5}, "`top_p`"),
        ({"top_k": -2}, "`top_k`"),
        ({"min_p": 2}, "`min_p`"),
        ({"typical_p": 0}, "`typical_p`"),
        ({"repetition_penalty": 0}, "`repetition_penalty`"),
        ({"presence_penalty": 2.5}, "`presence_penalty`"),
        ({"n": 0}, "`n`"),
        ({"n": 17}, "`n`"),
        ({"top_logprobs": 1}, "`logprobs`"),
        ({"top_logprobs": 21, "logprobs": True}, "`top_logprobs`"),
        ({"stop": ""}, "`stop`"),
        ({"stop": ["a", ""]}, "`stop`"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "`stop`"),
        ({"stream_options": {"include_usage": True}}, "`stream_options`"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "`stream_options.include_obfuscation`"),
        ({"store": True}, "`store`"),
        ({"modalities": ["text", "audio"]}, "`modalities`"),
        ({"verbosity": "low"}, "`verbosity`"),
        ({"audio": {"voice": "x"}}, "`audio`"),
        ({"functions": [{"name": "f"}]}, "`functions`"),
        ({"function_call": "auto"}, "`function_call`"),
        ({"prediction": {"type": "content"}}, "`prediction`"),
        ({"web_search_options": {"user_location": None}}, "`web_search_options`"),
        ({"chat_template": "{{ 1 }}"}, "`chat_template`"),
        ({"chat_template_kwargs": {"messages": []}}, "`chat_template_kwargs`"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "`response_format`"),
        ({"tool_choice": "required"}, "`tool_choice`"),
        ({"messages": []}, "`messages`"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], named: str) -> None:
    assert named in refusal(**fields)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"n": True}, "`n`"),
        ({"max_tokens": 1.5}, "`max_tokens`"),
        ({"max_tokens": "5"}, "`max_tokens`"),
        ({"stop": [None]}, "`stop`"),
        ({"stop": 5}, "`stop`"),
        ({"stream": "yes"}, "`stream`"),
        ({"temperature": "hot"}, "`temperature`"),
        ({"logit_bias": [1.0]}, "`logit_bias`"),
        ({"messages": "Hi"}, "`messages`"),
        ({"seed": 2**64}, "`seed`"),
    ],
)
def test_wrong_types_name_the_field(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request(**fields)
    assert path in refused.value.message
    assert "str]" not in refused.value.message, "no words of the validation library's"


def test_what_cannot_change_the_answer_is_taken_and_other_keys_are_told() -> None:
    fields: dict[str, Any] = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "flex",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "implicit"},
        "modalities": ["text"],
        "verbosity": "medium",
    }
    assert ask(seed=1, **fields) == ask(seed=1)
    assert request(**fields).ignored == []
    odd = request(best_friend=1, stream=True, stream_options={"include_usage": True, "sound": 1})
    assert odd.ignored == ["best_friend", "stream_options.sound"]


def test_more_sequences_than_the_service_takes_at_once() -> None:
    with pytest.raises(InvalidRequest, match="`n` must be at most 2"):
        chat.check_combination(request(n=3), Settings.of(max_concurrent_requests=2))


def test_either_name_limits_the_answer() -> None:
    for fields in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 5, "max_completion_tokens": 5}):
        asked = ask(**fields)
        assert (asked.parameters.max_new_tokens, asked.fills_context) == (5, False)
    assert ask(max_completion_tokens=5).names["max_new_tokens"] == "max_completion_tokens"
    assert ask(max_tokens=5).names["max_new_tokens"] == "max_tokens"


def test_variables_reach_the_template() -> None:
    assert ask(guideline="Be kind", chat_template_kwargs={"mood": "!"}).prompt == "<user>HiBe kind!<assistant>"


def test_tools_and_formats_make_grammars() -> None:
    tools = ask(tools=[TOOL])
    assert tools.grammar is not None
    assert tools.grammar().kind == "tools"
    assert tools.names["grammar"] == "tools"
    formatted = ask(response_format={"type": "regex", "value": "a+"})
    assert formatted.grammar is not None
    assert (formatted.grammar().kind, formatted.grammar().text) == ("regex", "a+")
    assert ask(tools=[TOOL], tool_choice="none").grammar is None


def test_what_the_answer_shows() -> None:
    body = request(
        logprobs=True,
        stop="x",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        n=2,
    )
    conversation = chat.read_conversation(body)
    valid = ValidRequest([1, 2, 3], GenerationParameters(max_new_tokens=5, seed=1, children=2))
    shown = chat.answer(body, conversation, valid, TEMPLATE, Head("i", 1, "m", "f"), "key")
    assert (shown.choices, shown.prompt_tokens, shown.top_logprobs) == (2, 3, 0)
    assert shown.stops == Stops(["x"])
    assert shown.usage == UsageReport(at_end=True, always=True)
    assert shown.tool_format is None
    assert conversation.characters == 2


def test_limits_are_those_of_the_parameters() -> None:
    """What no rule here looks at is refused before it is queued."""
    assert "`openai_frequency_penalty`" in refusal(frequency_penalty=2.5)
    assert ask().names["openai_frequency_penalty"] == "frequency_penalty"
