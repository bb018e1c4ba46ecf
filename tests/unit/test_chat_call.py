"""A chat request up to what it asks for: the same on the event loop and in a thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from common.calls.chat import ChatCall
from common.chat_template import ChatTemplate
from common.grammar_checker import GrammarChecker
from common.limits import Limits
from common.model_files import ModelFiles, default_model_folder
from common.protocols import openai_chat_rules as rules
from common.protocols.openai_chat_request import ChatRequest
from common.served_models import Chosen, ServedModel
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.validation import SHORT_TEXT, Validator
from tests.byte_model import write_byte_model
from tests.chat_templates import CHATML

SETTINGS = Settings.of(model_id="scripted")
SLOW = "{% for m in messages %}{% for i in range(50000) %}{% endfor %}{{ m.content }}{% endfor %}"


class _Watched(ChatTemplate):
    """Notes where it renders."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        rendered_in.append(threading.current_thread() is threading.main_thread())
        return super().render(*args, **kwargs)


rendered_in: list[bool] = []


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    cache: Path = tmp_path_factory.mktemp("model")
    write_byte_model(cache)
    return ModelFiles("scripted", default_model_folder(Settings.of(cache_dir=cache)))


async def _prompt(files: ModelFiles, source: str, **body: Any) -> tuple[str, list[bool]]:
    rendered_in.clear()
    tokenizer = Tokenizer(files)
    with ThreadPoolExecutor(1) as threads:
        grammars = GrammarChecker(5)
        validator = Validator(SETTINGS, Limits(20_000, 20_100), tokenizer, grammars, threads)
        template = _Watched({"default": source}, {})
        model = ServedModel("scripted", files, validator.limits, validator, template)
        call = ChatCall(ChatRequest.model_validate(body), Chosen(model), SETTINGS, "r")
        (ask,) = await call.asks()
        valid = await validator.validate(ask)
        grammars.close()
    return tokenizer.decode(valid.prompt_ids), list(rendered_in)


def _user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1}


@pytest.mark.parametrize(("length", "at_once"), [(1, True), (SHORT_TEXT, True), (SHORT_TEXT + 1, False), (9000, False)])
async def test_short_conversations_take_no_thread(files: ModelFiles, length: int, at_once: bool) -> None:
    text = "é"[: length % 2] + "a" * (length - length % 2)
    prompt, where = await _prompt(files, CHATML, **_user(text))
    assert prompt == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert where == [at_once]


async def test_a_template_that_takes_long_gets_a_thread(files: ModelFiles) -> None:
    assert await _prompt(files, SLOW, **_user("abc")) == ("abc", [True, False])


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": [{"role": "user", "content": "a"}] * (rules.SHORT_MESSAGES + 1)},
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": [1]}},
        {"messages": [{"role": "assistant", "content": None}]},
        {
            "messages": [{"role": "user", "content": "a"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        },
        {"messages": ["a"] * 9},
    ],
)
def test_what_else_is_long(body: dict[str, Any]) -> None:
    assert not rules.is_short(ChatRequest.model_validate(body))
