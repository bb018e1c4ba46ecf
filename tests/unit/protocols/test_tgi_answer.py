from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from common.protocols.tgi_answer import Answer, AnswerFold, encode, simple_tokens
from common.tokenizer import Encoding
from common.wire import Finish, PrefillToken, Token, Tokens, TopToken

TOKENS = [Token(5, "Hé", -0.5, False), Token(6, "", -1.25, False), Token(2, "</s>", -0.125, True)]
FINISH = Finish("eos_token", 3, 0.5)


def answer(**changes: Any) -> Answer:
    return msgspec.structs.replace(Answer(details=False, seed=None, input_length=4), **changes)


def stream(asked: Answer, *steps: Tokens) -> list[dict[str, Any]]:
    fold = AnswerFold(asked)
    return [json.loads(event) for step in steps for event in fold.stream_events(step)]


def body(asked: Answer, *steps: Tokens) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(AnswerFold(asked).body(steps))
    return decoded


def test_stream_events_have_tgis_keys_in_tgis_order() -> None:
    fold = AnswerFold(answer(details=True, seed=7))
    first, second, last = fold.events(Tokens(0, TOKENS, FINISH))
    assert encode(first) == (
        b'{"index":1,"token":{"id":5,"text":"H\xc3\xa9","logprob":-0.5,"special":false},'
        b'"generated_text":null,"details":null}'
    )
    assert second.index == 2
    assert encode(last) == (
        b'{"index":3,"token":{"id":2,"text":"</s>","logprob":-0.125,"special":true},"generated_text":"H\xc3\xa9",'
        b'"details":{"finish_reason":"eos_token","generated_tokens":3,"seed":7,"input_length":4}}'
    )


def test_the_stream_is_the_same_however_the_tokens_are_grouped() -> None:
    at_once = stream(answer(), Tokens(0, TOKENS, FINISH))
    one_by_one = stream(answer(), *(Tokens(i, [t], FINISH if i == 2 else None) for i, t in enumerate(TOKENS)))
    assert at_once == one_by_one
    assert [event["generated_text"] for event in at_once] == [None, None, "Hé"]
    assert all(event["details"] is None for event in at_once)


def test_the_body_without_and_with_details() -> None:
    steps = (Tokens(0, TOKENS[:1]), Tokens(1, TOKENS[1:], FINISH))
    assert body(answer(), *steps) == {"generated_text": "Hé"}
    details = body(answer(details=True, seed=7), *steps)["details"]
    assert list(details) == ["finish_reason", "generated_tokens", "seed", "prefill", "tokens"]
    assert details["tokens"][2] == {"id": 2, "text": "</s>", "logprob": -0.125, "special": True}


def test_the_prompt_is_put_in_front_when_asked_for() -> None:
    assert body(answer(full_text_of="Oh "), Tokens(0, TOKENS, FINISH)) == {"generated_text": "Oh Hé"}
    assert stream(answer(full_text_of="Oh "), Tokens(0, TOKENS, FINISH))[-1]["generated_text"] == "Oh Hé"


def test_prompt_tokens_bring_details_with_them() -> None:
    finish = Finish("length", 1, 0.1, None, [PrefillToken(1, "a", None), PrefillToken(2, "b", -2.0)])
    details = body(answer(prefill=True), Tokens(0, TOKENS[:1], finish))["details"]
    assert details["prefill"] == [{"id": 1, "text": "a", "logprob": None}, {"id": 2, "text": "b", "logprob": -2.0}]
    assert body(answer(details=True), Tokens(0, TOKENS[:1], finish))["details"]["prefill"] == []


def test_top_tokens_only_when_asked_for() -> None:
    token = Token(5, "a", -0.5, False, [TopToken(5, "a", -0.5, False), TopToken(9, "b", -1.5, False)])
    finish = Finish("length", 1, 0.1)
    (event,) = stream(answer(top_tokens=True), Tokens(0, [token], finish))
    assert list(event) == ["index", "token", "top_tokens", "generated_text", "details"]
    assert [top["id"] for top in event["top_tokens"]] == [5, 9]
    details = body(answer(details=True, top_tokens=True), Tokens(0, [token], finish))["details"]
    assert details["top_tokens"] == [event["top_tokens"]]
    assert "top_tokens" not in stream(answer(), Tokens(0, [token], finish))[0]


def test_infinite_logprobs_are_null() -> None:
    (event,) = stream(answer(), Tokens(0, [Token(5, "a", float("-inf"), False)], None))
    assert event["token"]["logprob"] is None


def test_a_sequence_without_an_end_has_no_body() -> None:
    with pytest.raises(ValueError, match="without a finish"):
        body(answer(), Tokens(0, TOKENS))


def test_offsets_are_bytes_and_texts_are_slices() -> None:
    encoding = Encoding([0, 1, 2, 3], [(0, 0), (0, 1), (1, 2), (2, 3)])
    tokens = [json.loads(encode(token)) for token in simple_tokens("aé🤗", encoding)]
    assert [(t["text"], t["start"], t["stop"]) for t in tokens] == [("", 0, 0), ("a", 0, 1), ("é", 1, 3), ("🤗", 3, 7)]
    assert [(t.start, t.stop) for t in simple_tokens("abc", encoding)] == [(0, 0), (0, 1), (1, 2), (2, 3)]


def test_the_best_of_several_is_the_answer() -> None:
    """Highest mean log probability, the first of equals; the others keep their order."""

    def sequence(child: int, text: str, *logprobs: float, unfinished: int = 0) -> Tokens:
        tokens = [Token(child, text, logprob, False) for logprob in logprobs]
        return Tokens(0, tokens, Finish("length", len(tokens), 0.1), child, unfinished)

    steps = (
        Tokens(0, [Token(9, "x", -1.0, False)], None, 3),
        sequence(1, "b", -0.5, -0.5, unfinished=3),
        sequence(0, "a", -2.0, unfinished=2),
        sequence(2, "c", -0.1, -0.9, unfinished=1),
        Tokens(1, [Token(9, "y", -0.5, False)], Finish("length", 2, 0.1), 3),
    )
    asked = answer(details=True, seed=7, sibling_seeds=[8, 9, 10])
    found = body(asked, *steps)
    assert found["generated_text"] == "bb"
    details = found["details"]
    assert list(details) == ["finish_reason", "generated_tokens", "seed", "prefill", "tokens", "best_of_sequences"]
    assert (details["seed"], details["generated_tokens"]) == (8, 2)
    others = details["best_of_sequences"]
    assert [(other["generated_text"], other["seed"]) for other in others] == [("a", 7), ("cc", 9), ("xy", 10)]
    assert list(others[0]) == ["generated_text", "finish_reason", "generated_tokens", "seed", "prefill", "tokens"]
    assert body(msgspec.structs.replace(asked, details=False), *steps) == {"generated_text": "bb"}


def test_all_sequences_have_the_prompt_and_its_details() -> None:
    prefill = [PrefillToken(1, "a", None)]
    steps = (
        Tokens(0, [Token(5, "x", -1.0, False)], Finish("length", 1, 0.1, None, prefill), 0, 1),
        Tokens(0, [Token(6, "y", -0.5, False)], Finish("length", 1, 0.1), 1),
    )
    asked = answer(prefill=True, top_tokens=True, sibling_seeds=[None], full_text_of="Oh ")
    found = body(asked, *steps)
    (other,) = found["details"]["best_of_sequences"]
    assert (found["generated_text"], other["generated_text"]) == ("Oh y", "Oh x")
    assert found["details"]["prefill"] == other["prefill"] == [{"id": 1, "text": "a", "logprob": None}]
    assert found["details"]["top_tokens"] == other["top_tokens"] == [[]]
    assert list(found["details"])[-2:] == ["best_of_sequences", "top_tokens"]


def test_a_child_without_an_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="without a finish"):
        body(answer(sibling_seeds=[None]), Tokens(0, TOKENS, FINISH, 0, 1))
