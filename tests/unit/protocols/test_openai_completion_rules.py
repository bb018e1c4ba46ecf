from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer

from common.errors import InvalidRequest
from common.model_files import ModelFiles
from common.protocols import openai_completion_rules as rules
from common.protocols.json_body import parse_body
from common.protocols.openai_completion_request import CompletionRequest
from common.protocols.prompt_text import PromptText, prompt_text
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.validation import Ask
from tests.byte_model import write_byte_model

SETTINGS = Settings.of()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_byte_model(folder)
    (file,) = folder.rglob("tokenizer.json")
    return file.parent


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(ModelFiles("bytes", folder))


def request(**fields: Any) -> CompletionRequest:
    return parse_body(CompletionRequest, json.dumps({"prompt": "ab", **fields}).encode())


def asks(tokenizer: Tokenizer, **fields: Any) -> list[Ask]:
    body = request(**fields)
    rules.check_combination(body, SETTINGS)
    return rules.asks(body, rules.echoed(body, tokenizer), tokenizer, SETTINGS)


def test_prompts_are_told_apart(tokenizer: Tokenizer) -> None:
    for prompt, expected in (
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ):
        assert [ask.prompt for ask in asks(tokenizer, prompt=prompt)] == expected
    assert {ask.names["inputs"] for ask in asks(tokenizer)} == {"prompt"}


@pytest.mark.parametrize("prompt", [["a", 1], [1.5], [True], {}, 5, [[["a"]]], [[1, "a"]], [2**31]])
def test_prompts_of_other_shapes_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="`prompt`: must be a string, an array of strings"):
        request(prompt=prompt)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": []}, "`prompt` must hold 1 to 32 prompts"),
        ({"prompt": ["a"] * 33}, "`prompt` must hold 1 to 32 prompts"),
        ({"prompt": [[-1]], "echo": True}, "`prompt`"),
        ({"prompt": [[999]], "echo": True}, "`prompt`"),
        ({"best_of": 1, "n": 2}, "`best_of` must be at least `n`"),
        ({"best_of": 17}, "`best_of`"),
        ({"best_of": 2, "stream": True}, "`best_of`"),
        ({"n": 0}, "`n`"),
        ({"echo": True, "stream": True, "logprobs": 0}, "`echo` with `logprobs`"),
        ({"max_tokens": 0}, "`max_tokens`"),
        ({"logprobs": 21}, "`logprobs`"),
        ({"suffix": "x"}, "`suffix`"),
        ({"suffix": "x", "echo": True}, "`suffix`"),
        ({"suffix": "x", "prompt": [1]}, "`suffix`"),
        ({"tools": [{}]}, "`tools`"),
        ({"prompt": ["a"] * 16, "n": 16}, "prompts times `n`"),
    ],
)
def test_what_is_refused(tokenizer: Tokenizer, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asks(tokenizer, **fields)
    assert named in refused.value.message


def test_defaults_and_null(tokenizer: Tokenizer) -> None:
    nulls = {name: None for name in CompletionRequest.model_fields if name not in ("prompt", "seed")}
    (ask,) = asks(tokenizer, seed=1, **nulls)
    assert [ask] == asks(tokenizer, seed=1)
    assert (ask.parameters.max_new_tokens, ask.parameters.sample, ask.fills_context) == (16, True, False)
    assert ask.special_tokens


def test_a_prompt_to_be_scored(tokenizer: Tokenizer) -> None:
    (ask,) = asks(tokenizer, prompt="a🤗", echo=True, logprobs=2, max_tokens=0)
    parameters = ask.parameters
    assert ask.prompt == tokenizer.ids("a🤗")
    assert (parameters.max_new_tokens, parameters.prefill_logprobs) == (1, True)
    assert (parameters.top_n_tokens, parameters.prefill_top_n_tokens) == (2, 2)
    plain = asks(tokenizer, echo=True)[0].parameters
    assert (plain.prefill_logprobs, plain.prefill_top_n_tokens) == (False, 0)


def test_where_the_tokens_of_a_prompt_begin(tokenizer: Tokenizer) -> None:
    text = "a🤗b"
    ids = tokenizer.ids(text)
    expected = PromptText(ids, text, [0, 1, 1, 1, 1, 2])
    assert prompt_text(tokenizer, text) == expected
    assert prompt_text(tokenizer, ids) == expected
    # Half a character is no usual text: each token has its own.
    broken = prompt_text(tokenizer, [ids[1], ids[0]])
    assert broken == PromptText([ids[1], ids[0]], "\ufffda", [0, 1])
    assert prompt_text(tokenizer, []) == PromptText([], "", [])


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], "<|fim_prefix|>ab<|fim_suffix|>c{d}<|fim_middle|>"),
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], "<fim_prefix>ab<fim_suffix>c{d}<fim_middle>"),
        (["[PREFIX]", "[SUFFIX]"], "[SUFFIX]c{d}[PREFIX]ab"),
        (["<fim_prefix>", "<fim_suffix>"], None),
    ],
)
def test_a_suffix_in_the_models_own_form(folder: Path, tmp_path: Path, marks: list[str], expected: str | None) -> None:
    raw = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    raw.add_special_tokens(marks)
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(ModelFiles("infilling", tmp_path))
    if expected is None:
        with pytest.raises(InvalidRequest, match="`suffix` is not supported"):
            asks(tokenizer, suffix="c{d}")
        return
    (ask,) = asks(tokenizer, suffix="c{d}")
    assert ask.prompt == expected
    assert len(tokenizer.ids(expected)) == 2 + 4 + len(marks)
    assert asks(tokenizer, suffix="")[0].prompt == "ab"
