"""Cases from other servers' bug reports, replayed: streamed text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.model_files import default_model_folder, find_model
from common.settings import Settings
from common.tokenizer import Tokenizer
from ops.local_service import LocalService
from tests.acceptance.native import (
    GENERATING,
    TIMEOUT,
    another_web_node,
    events,
    parse_events,
    post,
    refused,
    script,
    text_of,
)
from tests.event_streams import data_of
from tests.sentence_pieces import write_sentence_piece_model


@pytest.fixture(scope="module")
def url(scripted_service: LocalService) -> str:
    return scripted_service.url


@pytest.fixture(scope="module")
def tokenizer(scripted_service: LocalService) -> Tokenizer:
    return Tokenizer(find_model(Settings.of(model_id="scripted"), weights=False))


def stream(url: str, prompt: str, **parameters: Any) -> list[dict[str, Any]]:
    response = post(f"{url}/generate_stream", prompt, **{"details": True, **parameters})
    assert response.status_code == 200, response.text
    return events(response)


def spoken(found: list[dict[str, Any]]) -> str:
    return "".join(event["token"]["text"] for event in found if not event["token"]["special"])


def test_a01_a_character_over_several_tokens(url: str, tokenizer: Tokenizer) -> None:
    """The bytes of one character come in several tokens: it appears whole, with the token that completes it."""
    text = "🤗한글é"
    ids = tokenizer.ids(text, add_special_tokens=False)
    assert len(ids) > len(text)
    found = stream(url, script(ids=ids))
    assert [event["token"]["id"] for event in found[:-1]] == ids
    assert [piece for event in found[:-1] if (piece := event["token"]["text"])] == list(text)
    assert found[-1]["generated_text"] == text
    assert "\ufffd" not in json.dumps(found, ensure_ascii=False)
    cut = stream(url, script(ids=ids), max_new_tokens=2)
    assert cut[-1]["generated_text"] == spoken(cut) == ""


PIECES = "The  keeper's two clocks: <1921>, 11 min. ▁ 한글 🤗 \n\t if x:\n        return 'é'  "


def check_joined_pieces(url: str, tokenizer: Tokenizer) -> None:
    prompt = script(PIECES, repeat=3)
    found = stream(url, prompt, max_new_tokens=1000)
    ids = [event["token"]["id"] for event in found]
    assert found[-1]["token"]["special"]
    prompt_ids = tokenizer.ids(prompt)
    before = tokenizer.decode(prompt_ids, skip_special_tokens=True)
    whole = tokenizer.decode(prompt_ids + ids, skip_special_tokens=True)
    assert before + spoken(found) == whole
    assert found[-1]["generated_text"] == spoken(found)
    said = post(f"{url}/generate", prompt, max_new_tokens=1000, details=True).json()
    assert said["generated_text"] == spoken(found)
    assert [token["text"] for token in said["details"]["tokens"]] == [event["token"]["text"] for event in found]


def test_a03_spaces_between_pieces(url: str, tokenizer: Tokenizer) -> None:
    """The pieces of a stream joined are the decoded text, byte for byte: no space is lost or made up."""
    check_joined_pieces(url, tokenizer)


def test_a03_spaces_between_sentence_pieces(tmp_path: Path) -> None:
    """The same with a tokenizer whose pieces hold the space as a mark, and whose text begins in its own way."""
    write_sentence_piece_model(default_model_folder(Settings.of(cache_dir=tmp_path)))
    settings = Settings.of(model_id="scripted", cache_dir=tmp_path)
    with LocalService({"MODEL_ID": "scripted", "TGQ_CACHE_DIR": str(tmp_path)}) as service:
        check_joined_pieces(service.url, Tokenizer(find_model(settings, weights=False)))


def test_a04_stop_inside_a_token(url: str, tokenizer: Tokenizer) -> None:
    """A stop string that ends within a token ends the answer in that token."""
    ids = tokenizer.ids(" capital letters", add_special_tokens=False)
    assert len(ids) == 2
    for stop, text in (("apit", " capit"), ("l l", " capital l"), ("capital letters", " capital letters")):
        said = post(f"{url}/generate", script(ids=ids, repeat=3), details=True, stop=[stop]).json()
        assert (said["generated_text"], said["details"]["finish_reason"]) == (text, "stop_sequence")
        found = stream(url, script(ids=ids, repeat=3), stop=[stop])
        assert [event["token"]["id"] for event in found] == [token["id"] for token in said["details"]["tokens"]]
        assert found[-1]["generated_text"] == spoken(found) == text
        assert found[-1]["details"]["finish_reason"] == "stop_sequence"


def test_a07_a_stop_string_that_never_comes(url: str) -> None:
    """Text is held back only while it may be the beginning of a stop string; none is lost."""
    plain = stream(url, script("zebra zoo zz top", step_ms=1))
    found = stream(url, script("zebra zoo zz top", step_ms=1), stop=["zzzzzz"])
    assert spoken(found) == found[-1]["generated_text"] == "zebra zoo zz top"
    assert [event["token"]["id"] for event in found] == [event["token"]["id"] for event in plain]
    assert found[0]["token"]["text"] == plain[0]["token"]["text"]


def test_a08_the_stop_string_is_part_of_the_answer(url: str) -> None:
    """As TGI's clients expect, the answer ends with the stop string itself."""
    for path in GENERATING:
        assert text_of(post(url + path, script("One. Two. Three."), stop=["."])) == "One."


def test_a09_special_tokens_are_not_text(url: str, tokenizer: Tokenizer) -> None:
    """End-of-text is an event of its own, marked special; its text is not in the answer; both modes count it."""
    (end,) = tokenizer.eos_ids
    found = stream(url, script("Bye."))
    assert found[-1]["token"] | {"logprob": 0} == {"id": end, "text": "<|im_end|>", "logprob": 0, "special": True}
    assert found[-1]["generated_text"] == "Bye."
    said = post(f"{url}/generate", script("Bye."), details=True).json()
    assert said["generated_text"] == "Bye."
    assert said["details"]["generated_tokens"] == found[-1]["details"]["generated_tokens"] == len(found)


def test_a11_which_stop_string_matched(url: str) -> None:
    """The answer ends with the stop string that came first; end-of-text is another reason."""
    stops = ["never", "three"]
    said = post(f"{url}/generate", script("one two three four"), details=True, stop=stops).json()
    assert said["details"]["finish_reason"] == "stop_sequence"
    assert [stop for stop in stops if said["generated_text"].endswith(stop)] == ["three"]
    said = post(f"{url}/generate", script("one two"), details=True, stop=stops).json()
    assert said["details"]["finish_reason"] == "eos_token"


@pytest.mark.parametrize("path", GENERATING)
def test_a12_an_empty_stop_string(url: str, path: str) -> None:
    """An empty stop string is refused by name, and never answers with nothing."""
    for stop in ([""], ["a", ""]):
        refused(post(url + path, script("text"), stop=stop), "`stop`")


@pytest.mark.parametrize("path", GENERATING)
def test_a13_odd_shapes_of_stop(url: str, path: str) -> None:
    """Null and an empty list are no stop strings; anything else than up to four strings in a list is refused."""
    nothing: list[Any] = [None, []]
    for none in nothing:
        assert text_of(post(url + path, script("all of it"), stop=none)) == "all of it"
    for wrong in ("x", [None], [1], {"0": "x"}, ["1", "2", "3", "4", "5"]):
        message = refused(post(url + path, script("text"), stop=wrong), "stop")
        if isinstance(wrong, list) and len(wrong) > 4:
            assert "at most 4" in message
            assert "given 5" in message


@pytest.mark.parametrize(
    ("fields", "reason"), [({}, "eos_token"), ({"max_new_tokens": 2}, "length"), ({"stop": [" c"]}, "stop_sequence")]
)
def test_a16_the_words_of_native_finish_reasons(url: str, fields: dict[str, Any], reason: str) -> None:
    said = post(f"{url}/generate", script("a b c d"), details=True, **fields).json()
    assert said["details"]["finish_reason"] == reason
    assert stream(url, script("a b c d"), **fields)[-1]["details"]["finish_reason"] == reason


def test_a20_the_end_of_a_native_stream(url: str) -> None:
    """Each event is its id, one line after `data: ` and an empty line; the last event is the last byte: no `[DONE]`."""
    raw = post(f"{url}/generate_stream", script("one two")).content
    assert raw.endswith(b"}\n\n")
    assert b"DONE" not in raw
    assert all(data.startswith('{"index":') for data in data_of(raw.decode()))


def test_a21_a_failure_is_not_an_end(url: str) -> None:
    """A generation that breaks after three tokens ends with one error event and without any finish."""
    response = post(f"{url}/generate_stream", script("a b c d", raise_at=3), details=True)
    *tokens, last = events(response)
    assert len(tokens) == 3
    assert last["error_type"] == "generation"
    assert "finish_reason" not in response.text
    assert '"generated_text":null' in response.text
    assert "DONE" not in response.text


def test_a22_an_invalid_request_on_a_stream(url: str) -> None:
    """Rules are checked before the headers go out: a stream is refused with the status and body of a plain answer."""
    told = post(f"{url}/generate", "x", max_new_tokens=999_999)
    message = refused(told, "999999")
    assert "4096" in message
    for path in ("/", "/generate_stream"):
        streamed = post(url + path, "x", max_new_tokens=999_999, stream=True)
        assert (streamed.status_code, streamed.content) == (422, told.content)


@pytest.fixture(scope="module")
def commenting(scripted_service: LocalService) -> Iterator[str]:
    with another_web_node(scripted_service, {"TGQ_KEEPALIVE_SECONDS": "0.1"}) as (url, _):
        yield url


def test_a23_comments_in_silence(commenting: str) -> None:
    """A silent stream gets comments, from its admission on and between tokens, and never within an event."""
    body = {"inputs": script("one two three", first_ms=2000, step_ms=400)}
    with httpx.stream("POST", f"{commenting}/generate_stream", json=body, timeout=TIMEOUT) as response:
        assert response.status_code == 200
        chunks = list(response.iter_raw())
    assert chunks[0] == b":\n"
    text = b"".join(chunks).decode()
    assert spoken(parse_events(text)) == "one two three"
    # No empty line behind a comment: some clients take that for an event once they have seen an id.
    frames = text.removesuffix("\n\n").split("\n\n")
    assert all(frame.lstrip(":\n").startswith("id: ") for frame in frames)
    assert any(frame.startswith(":\n") for frame in frames[1:])


def test_a24_comments_are_rare_and_can_be_turned_off(scripted_service: LocalService) -> None:
    """By default a comment takes 15 seconds of silence, and a setting turns them off (clients: `test_clients_*`)."""
    assert Settings.model_fields["keepalive_seconds"].default == 15
    with another_web_node(scripted_service, {"TGQ_KEEPALIVE_SECONDS": "0"}) as (url, _):
        response = post(f"{url}/generate_stream", script("late", first_ms=1500))
    assert "late" in response.text
    assert not any(line.startswith(":") for line in response.text.split("\n"))


def test_a25_nothing_holds_events_back(url: str) -> None:
    """The headers of a stream keep proxies from buffering or packing it, and each event arrives when it is made."""
    body = {"inputs": script(" on", repeat=1000, step_ms=150), "parameters": {"max_new_tokens": 1000}}
    headers = {"accept-encoding": "gzip, br"}
    with httpx.stream("POST", f"{url}/generate_stream", json=body, headers=headers, timeout=TIMEOUT) as response:
        chunks = list(islice(response.iter_raw(), 4))
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["content-type"] == "text/event-stream"
    assert not {"content-length", "content-encoding"} & set(response.headers)
    # Of an answer that takes minutes.
    assert 4 <= len(parse_events(b"".join(chunks).decode())) < 200


def test_a27_the_flag_and_the_route_decide_the_type(url: str) -> None:
    """`/` streams when `stream` is true and answers an array of one otherwise; the other routes are what they are."""
    for flag, kind in ((None, "application/json"), (False, "application/json"), (True, "text/event-stream")):
        for path, expected in (
            ("/", kind),
            ("/generate", "application/json"),
            ("/generate_stream", "text/event-stream"),
        ):
            assert post(url + path, script("x"), stream=flag).headers["content-type"] == expected
    assert post(f"{url}/", script("x")).json() == [{"generated_text": "x"}]
    refused(post(f"{url}/", script("x"), stream="yes"), "`stream`")


async def test_a30_a_worker_that_is_faster_than_the_subscription(scripted_service: LocalService) -> None:
    """Answers that are ready at once lose no first token, in a web process's first moments neither."""
    body = {"inputs": script("a b c")}
    async with httpx.AsyncClient(timeout=TIMEOUT) as client:

        async def ask(url: str) -> None:
            response = await client.post(f"{url}/generate_stream", json=body)
            assert [event["index"] for event in events(response)] == [1, 2, 3, 4]

        with another_web_node(scripted_service, {}) as (url, _):
            await asyncio.gather(*(ask(url) for _ in range(50)))
            for _ in range(10):
                await asyncio.gather(*(ask(url) for _ in range(20)))


def test_a34_the_whole_text_comes_last(url: str) -> None:
    """Only the last event of a stream has the text and the details; events are numbered from 1."""
    *others, last = stream(url, script("one two three"))
    assert [event["index"] for event in (*others, last)] == list(range(1, len(others) + 2))
    for event in others:
        assert (event["generated_text"], event["details"]) == (None, None)
    assert last["generated_text"] == "one two three"
    assert last["details"]["finish_reason"] == "eos_token"
