"""Prompts from files: what is taken, and what is told of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.batches.input import BadInput
from ops.bench.serve.apis import APIS, Shape
from ops.bench.serve.dataset import read_dataset
from ops.bench.serve.prompts import FilePrompts, MadeUpPrompts, Prompt

CHAT, COMPLETIONS, TGI = "openai-chat", "openai-completions", "tgi"
MESSAGES = [{"role": "user", "content": "Hi"}]


def written(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(path: Path, api: str = CHAT) -> list[Prompt]:
    return read_dataset(path, api, APIS[api].path)


def test_three_kinds_of_lines(tmp_path: Path) -> None:
    body = {"model": "m", "messages": MESSAGES, "stop": ["x"], "max_completion_tokens": 9, "stream": False, "n": 1}
    path = written(
        tmp_path,
        {"prompt": "One\u2028two", "output_len": 7, "answer": "not needed"},
        "",
        {"messages": MESSAGES, "max_tokens": 8},
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body},
    )
    one, two, three = read(path)
    assert (one.text, one.max_tokens) == ("One\u2028two", 7)
    assert (two.messages, two.max_tokens) == (MESSAGES, 8)
    assert (three.fields, three.max_tokens) == ({"messages": MESSAGES, "stop": ["x"]}, 9)
    sent = APIS[CHAT].body(three, 9, "mine", Shape())
    assert (sent["model"], sent["messages"], sent["stop"], sent["max_tokens"], sent["stream"]) == (
        "mine",
        MESSAGES,
        ["x"],
        9,
        True,
    )


@pytest.mark.parametrize(
    ("line", "api", "words"),
    [
        ("{", CHAT, "it is not JSON"),
        ([], CHAT, "a JSON object is wanted"),
        ({"text": "x"}, CHAT, "either `prompt` or `messages`"),
        ({"prompt": "x", "messages": MESSAGES}, CHAT, "either `prompt` or `messages`"),
        ({"prompt": ""}, CHAT, "`prompt` must be a string"),
        ({"prompt": ["x"]}, TGI, "`prompt` must be a string"),
        ({"messages": MESSAGES}, TGI, "need --api openai-chat"),
        ({"messages": []}, CHAT, "`messages` must be a list"),
        ({"messages": [{"content": "x"}]}, CHAT, "`messages[0]` must be an object with a `role`"),
        ({"prompt": "x", "max_tokens": 0}, CHAT, "`max_tokens` must be a whole number"),
        ({"prompt": "x", "output_len": True}, CHAT, "`output_len` must be a whole number"),
        ({"prompt": "x", "output_len": 4, "max_tokens": 4}, CHAT, "`max_tokens` and `output_len` say the same"),
        ({"url": "/v1/completions", "body": {"prompt": "x"}}, CHAT, "`url` is '/v1/completions'"),
        ({"url": "/v1/completions", "body": {"prompt": "x", "n": 2}}, COMPLETIONS, "`body.n` must be 1"),
        ({"url": "/v1/completions", "body": {"prompt": ["x"]}}, COMPLETIONS, "`body.prompt` must be"),
        ({"url": "/v1/chat/completions", "body": {"messages": MESSAGES, "max_tokens": "9"}}, CHAT, "`body.max_tokens`"),
    ],
)
def test_a_bad_line_is_told_by_its_number_and_field(tmp_path: Path, line: Any, api: str, words: str) -> None:
    path = written(tmp_path, {"prompt": "fine"}, "", line)
    with pytest.raises(BadInput) as told:
        read(path, api)
    assert str(told.value).startswith(f"line 3 of {path}: ")
    assert words in str(told.value)


def test_files_without_prompts(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "absent", "cannot be read"),
        (written(tmp_path, "", ""), "has no prompts"),
    ):
        with pytest.raises(BadInput, match=words):
            read(path)
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe4"}\n')
    with pytest.raises(BadInput, match="not UTF-8"):
        read(tmp_path / "latin")


def test_a_file_is_drawn_in_the_order_of_its_seed_over_and_over() -> None:
    prompts = [Prompt(text=str(number)) for number in range(10)]
    source = FilePrompts(prompts, "file", seed=3)
    once = [source.prompt(number).text for number in range(10)]
    assert sorted(map(str, once)) == [str(number) for number in range(10)]
    assert once == [source.prompt(number).text for number in range(10, 20)]
    assert once != [FilePrompts(prompts, "file", seed=4).prompt(number).text for number in range(10)]


def test_made_up_prompts_have_their_length_and_are_the_same_for_a_seed() -> None:
    source = MadeUpPrompts(30, 50, 0.0, seed=1)
    texts = [str(source.prompt(number).text) for number in range(50)]
    assert {len(text.split()) for text in texts} == {30}
    assert len({text.split()[0] for text in texts}) == 50
    assert texts[7] == MadeUpPrompts(30, 50, 0.0, seed=1).prompt(7).text
    assert texts[7] != MadeUpPrompts(30, 50, 0.0, seed=2).prompt(7).text
    assert source.prompt(0).max_tokens == 50


def test_lengths_may_be_drawn_from_a_range() -> None:
    source = MadeUpPrompts(30, 50, 0.5, seed=1)
    prompts = [source.prompt(number) for number in range(500)]
    lengths, outputs = {len(str(p.text).split()) for p in prompts}, {p.max_tokens for p in prompts}
    assert (min(lengths), max(lengths)) == (15, 45)
    assert (min(map(int, filter(None, outputs))), max(map(int, filter(None, outputs)))) == (25, 75)
