"""Cases from other servers' bug reports, replayed on OpenAI's routes: streams, stops, parameters and their rules."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_request import CompletionRequest
from ops.local_service import LocalService
from tests.acceptance.native import TIMEOUT, script

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BOTH = pytest.mark.parametrize("path", [CHAT, TEXT])
QUESTION = "Name three colours."
LAUGH = "ha ha ha ha ha ha ha ha ha ha ha ha"


@pytest.fixture(scope="module")
def url(scripted_service: LocalService) -> str:
    return scripted_service.url


@pytest.fixture(scope="module")
def real(real_service: LocalService) -> str:
    return real_service.url


def post(url: str, prompt: str, **fields: Any) -> httpx.Response:
    """To the route at the end of `url`, the prompt as a message or as it is."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if "chat" in url else {"prompt": prompt}
    return httpx.post(url, json={"max_tokens": 60, **asked, **fields}, timeout=TIMEOUT)


def whole(url: str, prompt: str, **fields: Any) -> dict[str, Any]:
    response = post(url, prompt, **fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def text_of(body: dict[str, Any]) -> str:
    choice = body["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def stream(url: str, prompt: str, **fields: Any) -> list[dict[str, Any]]:
    response = post(url, prompt, stream=True, **fields)
    assert response.status_code == 200, response.text
    *frames, done, nothing = response.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames if frame != ":"]


def pieces(chunks: list[dict[str, Any]]) -> list[str]:
    """What each chunk adds to the first choice."""
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    return [choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices]


def refused(response: httpx.Response, param: str) -> None:
    assert response.status_code == 422, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@BOTH
def test_a01_characters_come_whole(url: str, path: str) -> None:
    said = pieces(stream(url + path, script("🤗한글")))
    assert "".join(said) == "🤗한글"
    assert not any("\ufffd" in piece for piece in said)


@BOTH
def test_a05_no_delta_has_the_beginning_of_the_stop_string(url: str, path: str) -> None:
    said = pieces(stream(url + path, script("ABC DEFGHI"), stop=["DEFGH"]))
    assert "".join(said) == "ABC "
    # What only looked like it is not lost, and does not make the answer empty.
    assert "".join(pieces(stream(url + path, script("ABC DEFGXY"), stop=["DEFGH", "zzz"]))) == "ABC DEFGXY"


@BOTH
def test_a08_a11_stop_strings_are_left_out_and_named(url: str, path: str) -> None:
    asked: dict[str, Any] = {"stop": ["never", "."]}
    body = whole(url + path, script("One. Two."), **asked)
    assert (text_of(body), body["choices"][0]["finish_reason"]) == ("One", "stop")
    assert body["choices"][0]["stop_reason"] == "."
    assert text_of(whole(url + path, script("One. Two."), include_stop_str_in_output=True, **asked)) == "One."
    natural = whole(url + path, script("One."))["choices"][0]
    assert (natural["finish_reason"], natural["stop_reason"]) == ("stop", None)


@BOTH
def test_a12_a13_odd_shapes_of_stop(url: str, path: str) -> None:
    shapes: list[Any] = [None, [], "x"]
    for stop in shapes:
        assert text_of(whole(url + path, script("ok"), stop=stop)) == "ok"
    for odd in ("", ["a", ""], [None], ["a"] * 5, 7):
        refused(post(url + path, script("ok"), stop=odd), "stop")


@BOTH
@pytest.mark.parametrize(
    ("fields", "reason"), [({}, "stop"), ({"max_tokens": 2}, "length"), ({"stop": " c"}, "stop")], ids=str
)
def test_a15_a17_one_finish_reason_for_each_choice(url: str, path: str, fields: dict[str, Any], reason: str) -> None:
    """The same whole and streamed, in a chunk of its own; the words are OpenAI's."""
    choice = whole(url + path, script("a b c d"), **fields)["choices"][0]
    assert choice["finish_reason"] == reason
    chunks = stream(url + path, script("a b c d"), **fields)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [*[None] * (len(chunks) - 1), reason]
    assert pieces(chunks)[-1] == ""


@BOTH
def test_a18_a19_usage_comes_when_asked_for(url: str, path: str) -> None:
    expected = whole(url + path, script("a b c"))["usage"]
    *others, last = stream(url + path, script("a b c"), stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], expected)
    assert all(chunk["usage"] is None for chunk in others)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in stream(url + path, script("a b c")))
    running = stream(url + path, script("a b c"), stream_options={"continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in running]
    assert counts == sorted(counts)
    assert running[-1]["usage"] == expected
    refused(post(url + path, "x", stream_options={"include_usage": True}), "stream_options")


@BOTH
def test_a27_the_type_of_the_answer_follows_the_flag(url: str, path: str) -> None:
    for flag in ({}, {"stream": False}, {"stream": None}):
        assert post(url + path, script("ok"), **flag).headers["content-type"] == "application/json"
    assert post(url + path, script("ok"), stream=True).headers["content-type"] == "text/event-stream"


@BOTH
def test_a32_all_chunks_have_one_id(url: str, path: str) -> None:
    seen = {(chunk["id"], chunk["created"], chunk["model"]) for chunk in stream(url + path, script("a b c"))}
    ((identity, created, model),) = seen
    assert len(identity) > 10
    assert created > 1_700_000_000
    assert model == "scripted"


@pytest.mark.parametrize("prompt", ["", [], [[]], [-1], [[999_999]], ["a", 1]], ids=str)
def test_c01_c02_prompts_that_are_none(url: str, prompt: Any) -> None:
    refused(post(url + TEXT, prompt), "prompt")
    assert whole(url + TEXT, " ", max_tokens=1)["usage"]["prompt_tokens"] == 1


def test_c04_no_limit_given(url: str) -> None:
    """Chat fills the context; completions have OpenAI's 16 tokens. Null is absent."""
    limit = httpx.get(f"{url}/info", timeout=TIMEOUT).json()["max_total_tokens"]
    assert whole(url + CHAT, "Talk.", max_tokens=None)["usage"]["total_tokens"] == limit
    assert whole(url + TEXT, "Talk.", max_tokens=None)["usage"]["completion_tokens"] == 16


@BOTH
@pytest.mark.parametrize("limit", [0, -1, 1.5, "5", 10**9])
def test_c05_limits_that_are_none(url: str, path: str, limit: Any) -> None:
    response = post(url + path, "x", max_tokens=limit)
    assert response.status_code == 422
    assert "`max_tokens`" in response.json()["error"]["message"]


@BOTH
def test_c08_the_prompt_limit_is_exact(url: str, path: str) -> None:
    limit = httpx.get(f"{url}/info", timeout=TIMEOUT).json()["max_input_tokens"]
    room = limit - whole(url + path, "", max_tokens=1)["usage"]["prompt_tokens"] if path == CHAT else limit
    assert whole(url + path, " a" * room, max_tokens=1)["usage"]["prompt_tokens"] == limit
    response = post(url + path, " a" * (room + 1), max_tokens=None if path == CHAT else 1)
    assert response.status_code == 422
    assert str(limit + 1) in response.json()["error"]["message"]


@BOTH
def test_c10_c11_c12_neutral_values(url: str, path: str) -> None:
    for fields in ({"temperature": 0}, {"top_p": 1.0}, {"top_p": 0}, {"top_k": 0}, {"top_k": -1}, {"top_k": 10**6}):
        assert text_of(whole(url + path, script("ok"), **fields)) == "ok", fields


@BOTH
def test_c17_null_is_absent_for_every_field(url: str, path: str) -> None:
    model = ChatRequest if path == CHAT else CompletionRequest
    nulls = {name: None for name in model.model_fields if name not in ("messages", "prompt")}
    body = whole(url + path, script("ok"), **nulls | {"max_tokens": 20})
    assert (text_of(body), body["choices"][0]["logprobs"]) == ("ok", None)


@BOTH
def test_c25_log_probabilities_without_alternatives(url: str, path: str) -> None:
    fields = {"logprobs": True} if path == CHAT else {"logprobs": 0}
    logprobs = whole(url + path, script("a b c d"), max_tokens=3, **fields)["choices"][0]["logprobs"]
    tokens = logprobs["content"] if path == CHAT else logprobs["tokens"]
    assert len(tokens) == 3
    chunks = stream(url + path, script("a b c d"), max_tokens=3, **fields)
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for one in told if one for entry in one["content" if path == CHAT else "tokens"]] == tokens


@BOTH
def test_c26_how_many_choices(url: str, path: str) -> None:
    for odd in (0, 1000, True, -1, 1.5):
        refused(post(url + path, "x", n=odd), "n")
    said = whole(url + path, script("same"), n=2, temperature=0)["choices"]
    assert [(choice["index"], choice["finish_reason"]) for choice in said] == [(0, "stop"), (1, "stop")]


@BOTH
def test_c31_wrong_types_name_the_field(url: str, path: str) -> None:
    for field, odd in (("temperature", "hot"), ("stream", "yes"), ("seed", 1.5), ("logit_bias", [1])):
        refused(post(url + path, "x", **{field: odd}), field)
    missing = httpx.post(url + path, json={"max_tokens": 1}, timeout=TIMEOUT)
    refused(missing, "messages" if path == CHAT else "prompt")


def test_c44_two_names_of_one_limit(url: str) -> None:
    for fields in ({"max_tokens": None, "max_completion_tokens": 2}, {"max_tokens": 2, "max_completion_tokens": 2}):
        assert whole(url + CHAT, script("a b c"), **fields)["usage"]["completion_tokens"] == 2
    refused(post(url + CHAT, "x", max_tokens=2, max_completion_tokens=3), "max_tokens")


def test_c13_c15_penalties_and_biases_change_the_answer(real: str) -> None:
    def say(**fields: Any) -> str:
        return text_of(whole(real + TEXT, LAUGH, temperature=0, max_tokens=3, **fields))

    plain = say()
    assert plain == " ha ha ha"
    assert say(presence_penalty=0, frequency_penalty=0, logit_bias={}) == plain
    for penalty in ({"frequency_penalty": 2}, {"presence_penalty": 2}):
        assert say(**penalty) != plain, penalty
    assert len(set(say(logit_bias={"28": 100}))) == 1
    (laugh,) = httpx.post(f"{real}/tokenize", json={"inputs": " ha"}, timeout=TIMEOUT).json()
    assert " ha" not in say(logit_bias={str(laugh["id"]): -100})


@BOTH
def test_c18_the_same_seed_draws_the_same_answer(real: str, path: str) -> None:
    first, again, other = (
        text_of(whole(real + path, QUESTION, seed=seed, max_tokens=6, temperature=1.2)) for seed in (42, 42, 43)
    )
    assert first == again
    assert first != other
    drawn = whole(real + path, QUESTION, seed=42, max_tokens=6, temperature=1.2, n=2)["choices"]
    texts = [choice["message"]["content"] if path == CHAT else choice["text"] for choice in drawn]
    assert texts[0] == first
    assert texts[1] != first
