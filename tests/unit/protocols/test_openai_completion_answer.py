from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.protocols.openai_answer import Stops, UsageReport
from common.protocols.openai_completion_answer import CompletionAnswer, CompletionFold
from common.protocols.prompt_text import PromptText
from common.wire import Finish, PrefillToken, Token, Tokens, TopToken
from tests.unit.protocols.openai_streams import HEAD, chunks, events, join_completion, plain_completion

TOKENS = [
    Token(5, "Hé", -0.5, False, [TopToken(5, "Hé", -0.5, False), TopToken(9, "x", -1.5, False)]),
    Token(2, "</s>", -0.125, True),
]
PREFILL = [PrefillToken(7, "On", None), PrefillToken(8, "ce ", -1.5, [TopToken(3, "e", -0.25, False)])]
FINISH = Finish("eos_token", 2, 0.5, None, PREFILL)


def answer(**changes: Any) -> CompletionAnswer:
    plain = CompletionAnswer(head=HEAD, prompts=1, generated=1, choices=1, prompt_tokens=2, stops=Stops([]))
    return msgspec.structs.replace(plain, **changes)


def stream(asked: CompletionAnswer, *steps: Tokens) -> list[dict[str, Any]]:
    fold = CompletionFold(asked)
    return chunks([payload for step in steps for payload in fold.stream_events(step)])


def body(asked: CompletionAnswer, *steps: Tokens) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(CompletionFold(asked).body(steps))
    return decoded


def test_the_body_is_openais() -> None:
    assert body(answer(), Tokens(0, TOKENS, FINISH)) == {
        "id": "id-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "a/model",
        "system_fingerprint": "2.2.1-dev0-native",
        "choices": [{"index": 0, "text": "Hé", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
    }


def test_logprobs_always_show_the_token_itself() -> None:
    (choice,) = body(answer(logprobs=1), Tokens(0, TOKENS, FINISH))["choices"]
    assert choice["logprobs"] == {
        "tokens": ["Hé", "</s>"],
        "token_logprobs": [-0.5, -0.125],
        "top_logprobs": [{"Hé": -0.5}, {"</s>": -0.125}],
        "text_offset": [0, 2],
    }


def test_an_echo_has_the_prompt_and_its_log_probabilities() -> None:
    echoed = [PromptText([7, 8], "Once ", [0, 2])]
    (choice,) = body(answer(logprobs=1, echoed=echoed), Tokens(0, TOKENS, FINISH))["choices"]
    assert choice["text"] == "Once Hé"
    assert choice["logprobs"] == {
        "tokens": ["On", "ce ", "Hé", "</s>"],
        "token_logprobs": [None, -1.5, -0.5, -0.125],
        "top_logprobs": [None, {"e": -0.25, "ce ": -1.5}, {"Hé": -0.5}, {"</s>": -0.125}],
        "text_offset": [0, 2, 5, 7],
    }
    first, *_ = stream(answer(echoed=echoed), Tokens(0, TOKENS, FINISH))
    assert first["choices"][0]["text"] == "Once "


def test_a_prompt_alone_shows_nothing_of_what_was_generated() -> None:
    asked = answer(logprobs=1, echoed=[PromptText([7, 8], "Once ", [0, 2])], prompt_only=True)
    found = body(asked, Tokens(0, TOKENS[:1], Finish("length", 1, 0.5, None, PREFILL)))
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Once ", "length")
    assert choice["logprobs"]["tokens"] == ["On", "ce "]
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}


def test_the_best_are_shown_best_first() -> None:
    steps = []
    for child, logprob in enumerate((-2.0, -0.5, -1.0, -0.25, -4.0, -3.0)):
        token = Token(child, f"{child}", logprob, False)
        steps.append(Tokens(0, [token], Finish("length", 1, 0.1), child, 5 - child))
    found = body(answer(prompts=2, generated=3, choices=2), *steps)
    assert [(choice["index"], choice["text"]) for choice in found["choices"]] == [
        (0, "1"),
        (1, "2"),
        (2, "3"),
        (3, "5"),
    ]
    assert found["usage"]["completion_tokens"] == 6


def test_a_sequence_without_an_end_has_no_body() -> None:
    with pytest.raises(ValueError, match="without a finish"):
        body(answer(), Tokens(0, TOKENS))


@given(st.data())
def test_streamed_and_whole_answers_are_the_same(data: st.DataObject) -> None:
    prompts, generated = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    logprobs = data.draw(st.sampled_from([None, 0, 2]))
    echoed = [PromptText([7, 8], "pq", [0, 1])] * prompts if logprobs is None and data.draw(st.booleans()) else None
    asked = answer(
        prompts=prompts,
        generated=generated,
        choices=generated,
        stops=Stops(["STOP"], data.draw(st.booleans())),
        logprobs=logprobs,
        echoed=echoed,
        prompt_only=echoed is not None and data.draw(st.booleans()),
        usage=UsageReport(at_end=True),
    )
    steps = data.draw(events(prompts * generated))
    assert join_completion(stream(asked, *steps)) == plain_completion(body(asked, *steps))
