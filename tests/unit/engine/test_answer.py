"""Texts, held back or not, and ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.tokenizer import Tokenizer
from common.wire import Token
from tests.unit.engine.support import CORPUS, EOS, SPECIAL, make_job, text_of
from workers.engine.answer import Answer
from workers.engine.sampler import Choice


def feed(answer: Answer, ids: list[int]) -> list[list[Token]]:
    """What each token brings, up to the end."""
    given_out = []
    for token_id in ids:
        given_out.append(answer.append(Choice(token_id, -0.5)))
        if answer.finished:
            break
    return given_out


def flat(steps: list[list[Token]]) -> list[Token]:
    return [token for step in steps for token in step]


def answer_of(tokenizer: Tokenizer, **parameters: Any) -> Answer:
    return Answer(make_job([5, 6], **{"max_new_tokens": 1000, **parameters}), tokenizer)


def encode(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    return [token_id for piece in pieces for token_id in tokenizer.ids(piece, add_special_tokens=False)]


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token per character."""
    return encode(tokenizer, *text)


def test_length_wins_over_end_of_text_and_stop_string(tokenizer: Tokenizer) -> None:
    eos = encode(tokenizer, EOS)
    for last in (eos, letters(tokenizer, "x")):
        answer = answer_of(tokenizer, max_new_tokens=3, stop=["x"])
        steps = feed(answer, letters(tokenizer, "ab") + last)
        assert len(flat(steps)) == 3
        assert (answer.finished, answer.stop) == ("length", None)


def test_end_of_text_is_special_and_not_text(tokenizer: Tokenizer) -> None:
    answer = answer_of(tokenizer)
    tokens = flat(feed(answer, letters(tokenizer, "ab") + encode(tokenizer, EOS)))
    assert answer.finished == "eos_token"
    assert [(token.text, token.special) for token in tokens] == [("a", False), ("b", False), (EOS, True)]
    assert text_of(tokens) == "ab"


def test_ignored_end_of_text_goes_on(tokenizer: Tokenizer) -> None:
    answer = answer_of(tokenizer, ignore_eos=True, max_new_tokens=4)
    tokens = flat(feed(answer, letters(tokenizer, "a") + encode(tokenizer, EOS) + letters(tokenizer, "bc")))
    assert (answer.finished, text_of(tokens)) == ("length", "abc")


def test_stop_string_within_a_token_cuts_the_text_behind_it(tokenizer: Tokenizer) -> None:
    ids = encode(tokenizer, " fox")
    assert len(ids) == 1
    answer = answer_of(tokenizer, stop=["fo"])
    tokens = flat(feed(answer, ids))
    assert (answer.finished, answer.stop, text_of(tokens)) == ("stop_sequence", "fo", " fo")


def test_a_possible_stop_string_comes_with_the_token_that_settles_it(tokenizer: Tokenizer) -> None:
    answer = answer_of(tokenizer, stop=["DEFGH"])
    steps = feed(answer, letters(tokenizer, "DEFGHI"))
    assert text_of(flat(steps[:4])) == ""
    assert [token.text for token in flat(steps)] == ["", "", "", "", "DEFGH"]
    assert (answer.finished, answer.stop) == ("stop_sequence", "DEFGH")


def test_a_stop_string_that_does_not_come_loses_nothing(tokenizer: Tokenizer) -> None:
    answer = answer_of(tokenizer, stop=["DEFGH"], max_new_tokens=6)
    assert [token.text for token in flat(feed(answer, letters(tokenizer, "aDEFxy")))] == ["a", "", "", "", "DEFx", "y"]


@pytest.mark.parametrize("end", ["length", "eos_token"])
def test_held_text_is_flushed_at_the_end(tokenizer: Tokenizer, end: str) -> None:
    answer = answer_of(tokenizer, stop=["DEFGH"], max_new_tokens=3 if end == "length" else 100)
    steps = feed(answer, letters(tokenizer, "aDE") + encode(tokenizer, EOS))
    assert answer.finished == end
    assert text_of(flat(steps)) == "aDE"
    assert len(flat(steps)) == (3 if end == "length" else 4)


def test_only_the_newest_token_waits(tokenizer: Tokenizer) -> None:
    steps = feed(answer_of(tokenizer, stop=["zzzzzz"]), letters(tokenizer, "azzzb"))
    assert [len(step) for step in steps] == [1, 0, 1, 1, 2]


def test_no_stop_strings_no_waiting(tokenizer: Tokenizer) -> None:
    ids = encode(tokenizer, CORPUS[0], CORPUS[3])
    assert [len(step) for step in feed(answer_of(tokenizer), ids)] == [1] * len(ids)


def test_a_special_token_can_be_a_stop_string(tokenizer: Tokenizer) -> None:
    answer = answer_of(tokenizer, stop=["b" + SPECIAL[1]])
    tokens = flat(feed(answer, [*letters(tokenizer, "ab"), *encode(tokenizer, SPECIAL[1]), *letters(tokenizer, "c")]))
    assert (answer.finished, answer.stop) == ("stop_sequence", "b" + SPECIAL[1])
    assert [(token.text, token.special) for token in tokens] == [("a", False), ("b", False), (SPECIAL[1], True)]


def test_text_behind_a_special_token_can_complete_a_stop_string(tokenizer: Tokenizer) -> None:
    answer = answer_of(tokenizer, stop=[SPECIAL[1] + "xy"])
    ids = [*letters(tokenizer, "a"), *encode(tokenizer, SPECIAL[1]), *letters(tokenizer, "xyz")]
    tokens = flat(feed(answer, ids))
    assert (answer.finished, text_of(tokens)) == ("stop_sequence", "axy")


def test_tops_have_texts(tokenizer: Tokenizer) -> None:
    fox, eos = encode(tokenizer, " fox")[0], encode(tokenizer, EOS)[0]
    (token,) = answer_of(tokenizer).append(Choice(fox, -0.5, [(fox, -0.5), (eos, -1.5)]))
    assert [(top.text, top.logprob, top.special) for top in token.top] == [(" fox", -0.5, False), (EOS, -1.5, True)]


stops = st.lists(st.text("ab 你", min_size=1, max_size=4), max_size=3)
answers = st.text("ab 你🤗", max_size=25)


@settings(max_examples=150)
@given(stop=stops, text=answers, end=st.booleans())
def test_text_is_whole_up_to_the_first_stop(any_tokenizer: Tokenizer, stop: list[str], text: str, end: bool) -> None:
    ids = encode(any_tokenizer, text) + (encode(any_tokenizer, EOS)[-1:] if end else [])
    answer = Answer(
        make_job(encode(any_tokenizer, "the"), max_new_tokens=len(ids) + (not ids) + end, stop=stop), any_tokenizer
    )
    steps = feed(answer, ids)
    tokens = flat(steps)
    plain = Answer(make_job(encode(any_tokenizer, "the"), max_new_tokens=1000), any_tokenizer)
    whole = text_of(flat(feed(plain, ids)))
    said = text_of(tokens)
    assert whole.startswith(said)
    if answer.stop is not None:
        assert said.endswith(answer.stop)
        assert answer.next_offset == len(tokens)
    elif answer.finished:
        assert said == whole
        assert len(tokens) == len(ids)
    assert not any(s in said[: -len(answer.stop)] for s in stop) if answer.stop else True


@settings(max_examples=150)
@given(stop=stops, text=answers, cut=st.integers(0, 30))
def test_resumed_behind_what_was_given_out_goes_on_the_same(
    any_tokenizer: Tokenizer, stop: list[str], text: str, cut: int
) -> None:
    ids = encode(any_tokenizer, text) + encode(any_tokenizer, EOS)[-1:]
    prompt = encode(any_tokenizer, "the")
    answer = Answer(make_job(prompt, max_new_tokens=1000, stop=stop), any_tokenizer)
    uninterrupted = feed(answer, ids)
    known = flat(uninterrupted[:cut])
    if answer.finished and len(known) == len(flat(uninterrupted)):
        known = known[:-1]
        if len(known) != len(flat(uninterrupted[:-1])):
            return  # The last two tokens came together.
    resumed = Answer(
        make_job(prompt, max_new_tokens=1000, stop=stop, generated_ids=[t.id for t in known]), any_tokenizer
    )
    assert resumed.finished is None
    assert resumed.next_offset == len(known)
    rest = flat(feed(resumed, ids[len(known) :]))
    assert known + rest == flat(uninterrupted)
    assert (resumed.finished, resumed.stop) == (answer.finished, answer.stop)


def test_resumed_elsewhere_than_it_went_loses_no_text(tokenizer: Tokenizer) -> None:
    """The submitter holds a token whose text is still held back, and end-of-text comes: the text is given out."""
    answer = answer_of(tokenizer, stop=["DEFGH"], generated_ids=letters(tokenizer, "aDE"))
    tokens = answer.append(Choice(encode(tokenizer, EOS)[0], None))
    assert answer.finished == "eos_token"
    assert text_of(tokens) == "DE"
