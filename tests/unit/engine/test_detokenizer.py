"""Texts of tokens joined are the text of all tokens, whatever the tokenizer, and never half a character."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.tokenizer import Tokenizer
from tests.unit.engine.support import KINDS, SPECIAL, save
from workers.engine.detokenizer import Detokenizer

RELAXED = settings(max_examples=100)

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")
texts = st.text(st.one_of(st.sampled_from("the fox 你好世界🤗한글 éü  \n"), characters), max_size=60)


def pieces(tokenizer: Tokenizer, prompt: list[int], generated: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt)
    return [detokenizer.push(token_id) for token_id in generated]


def decoded_behind(tokenizer: Tokenizer, prompt: list[int], generated: list[int]) -> str:
    """Text of the whole, less the prompt's."""
    before = tokenizer.decode(prompt, skip_special_tokens=True)
    whole = tokenizer.decode(prompt + generated, skip_special_tokens=True)
    assert whole.startswith(before)
    return whole[len(before) :]


@RELAXED
@given(prompt=texts, text=texts)
def test_joined_pieces_are_the_decoded_whole(any_tokenizer: Tokenizer, prompt: str, text: str) -> None:
    prompt_ids, ids = any_tokenizer.ids(prompt), any_tokenizer.ids(text)
    found = pieces(any_tokenizer, prompt_ids, ids)
    assert "".join(found) == decoded_behind(any_tokenizer, prompt_ids, ids)
    assert not any("\ufffd" in piece for piece in found)


@RELAXED
@given(data=st.data(), prompt=texts)
def test_special_tokens_do_not_disturb_the_text(any_tokenizer: Tokenizer, data: st.DataObject, prompt: str) -> None:
    special = [any_tokenizer.ids(token, add_special_tokens=False)[-1] for token in SPECIAL]
    assert set(special) <= any_tokenizer.special_ids
    prompt_ids = any_tokenizer.ids(prompt)
    ids: list[int] = []
    for token_id in any_tokenizer.ids(data.draw(texts)):
        ids.extend(data.draw(st.lists(st.sampled_from(special), max_size=2)))
        ids.append(token_id)
    expected = decoded_behind(any_tokenizer, prompt_ids, ids)
    assert "".join(pieces(any_tokenizer, [*special, *prompt_ids, *special], ids)) == expected


@RELAXED
@given(ids=st.lists(st.integers(0, 255), max_size=60), end=st.sampled_from(["a", " fox", "é"]))
def test_arbitrary_bytes_are_decoded_as_a_whole(tokenizer: Tokenizer, ids: list[int], end: str) -> None:
    """Byte-level: stray bytes show as the decoder shows them, once other text follows."""
    ids = [token_id + len(SPECIAL) for token_id in ids] + tokenizer.ids(end)
    prompt = tokenizer.ids("the fox")
    assert "".join(pieces(tokenizer, prompt, ids)) == decoded_behind(tokenizer, prompt, ids)


@RELAXED
@given(prompt=texts, text=texts, cut=st.integers(0, 60))
def test_state_is_a_function_of_the_ids(any_tokenizer: Tokenizer, prompt: str, text: str, cut: int) -> None:
    prompt_ids, ids = any_tokenizer.ids(prompt), any_tokenizer.ids(text)
    resumed = Detokenizer(any_tokenizer, prompt_ids)
    for token_id in ids[:cut]:
        resumed.push(token_id)
    assert [resumed.push(token_id) for token_id in ids[cut:]] == pieces(any_tokenizer, prompt_ids, ids)[cut:]


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback"])
def bytes_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Those that split characters."""
    return save(KINDS[request.param](), tmp_path_factory.mktemp("bytes") / str(request.param))


def test_a_split_character_comes_with_its_last_token(bytes_tokenizer: Tokenizer) -> None:
    ids = bytes_tokenizer.ids("🤗한글", add_special_tokens=False)[-10:]
    assert len(ids) == 10
    assert pieces(bytes_tokenizer, [], ids) == ["", "", "", "🤗", "", "", "한", "", "", "글"]


def test_an_unfinished_character_is_dropped(tokenizer: Tokenizer) -> None:
    ids = tokenizer.ids("a🤗")
    assert "".join(pieces(tokenizer, [], ids[:-1])) == "a"


@pytest.mark.parametrize("split", [1, 2, 3])
@pytest.mark.parametrize("before", ["", "fox ", "你好", "é" * 9])
def test_a_prompt_that_ends_within_a_character_does_not_leak(
    bytes_tokenizer: Tokenizer, split: int, before: str
) -> None:
    ids = bytes_tokenizer.ids(before + "🤗", add_special_tokens=False)
    assert bytes_tokenizer.decode(ids[-4:]) == "🤗"
    prompt, rest = ids[:-split], ids[-split:]
    assert "".join(pieces(bytes_tokenizer, prompt, rest)) == "🤗"
    following = bytes_tokenizer.ids("x fox", add_special_tokens=False)[-1:]
    text = bytes_tokenizer.decode([*ids, *following])
    assert "".join(pieces(bytes_tokenizer, prompt, following)) == text[len(bytes_tokenizer.decode(ids)) :]


def test_unknown_ids_have_no_text(any_tokenizer: Tokenizer) -> None:
    word = any_tokenizer.ids("the fox")
    unknown = any_tokenizer.vocab_size + 7
    with_unknown = [token for pair in zip(word, [unknown] * len(word), strict=True) for token in pair]
    assert "".join(pieces(any_tokenizer, word, with_unknown)) == "".join(pieces(any_tokenizer, word, word))


def test_stray_bytes_do_not_make_it_slow(tokenizer: Tokenizer) -> None:
    """Ten thousand bytes that never make a character: the window stays small."""
    ids = [tokenizer.ids("é")[-1]] * 10_000
    assert len("".join(pieces(tokenizer, [], ids))) >= 9_990
    started = time.perf_counter()
    pieces(tokenizer, [], ids)
    assert time.perf_counter() - started < 10
