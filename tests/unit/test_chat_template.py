"""Chat templates: rendered as transformers renders them, within limits, and fed what each of them understands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from common import chat_environment
from common.chat_template import ChatTemplate
from common.errors import InvalidRequest, TemplateError
from common.model_files import ModelFiles
from common.protocols.chat_messages import read_messages
from common.template_traits import TemplateTraits
from common.tool_format import HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, ToolFormat
from tests.chat_templates import (
    CHATML,
    CONVERSATIONS,
    FAMILIES,
    HEADERS,
    INSTRUCT,
    PARTS,
    SPECIAL_TOKENS,
    STRICT,
    TAGS,
    TOOLS,
)


def template(source: str, **others: str) -> ChatTemplate:
    return ChatTemplate({"default": source, **others}, SPECIAL_TOKENS)


def render(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return template(source).render(read_messages(messages), **options)


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def told_alike() -> Iterator[Any]:
    """Conversations of which the template understands everything: nothing has to be told in words."""
    for family, source in FAMILIES.items():
        traits = TemplateTraits.of(source)
        for name, messages in CONVERSATIONS.items():
            if not traits.knows_results and any(message["role"] == "tool" for message in messages):
                continue
            yield pytest.param(source, messages, [], id=f"{family}, {name}")
            if traits.explains_format:
                yield pytest.param(source, messages, TOOLS, id=f"{family}, {name}, tools")


@pytest.mark.parametrize(("source", "messages", "tools"), list(told_alike()))
def test_as_transformers_renders_it(source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
    refused = ""
    try:
        ((expected,), _) = render_jinja_template(  # type: ignore[str-unpack]
            [json.loads(json.dumps(messages))],
            tools=[*tools] or None,
            chat_template=source,
            add_generation_prompt=True,
            **SPECIAL_TOKENS,
        )
    except jinja2.TemplateError as error:
        refused = str(error)
    except TypeError:
        refused = "TypeError"
    if refused:
        with pytest.raises(TemplateError, match=re.escape(refused)):
            render(source, messages, tools=tools, add_generation_prompt=True)
    else:
        assert render(source, messages, tools=tools, add_generation_prompt=True) == expected


def test_variables_reach_the_template() -> None:
    assert render(TAGS, user("a"), variables={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    assert "Today: then" in render(HEADERS, user("a"), variables={"date_string": "then"})
    assert render("{{ self_ }}{{ documents[0] }}", user("a"), variables={"self_": 1, "documents": ["d"]}) == "1d"


@pytest.mark.parametrize(
    "name", ["chat_template", "messages", "tools", "tokenize", "add_generation_prompt", "bos_token"]
)
def test_some_variables_are_taken(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"`chat_template_kwargs` must not hold `{name}`"):
        render(CHATML, user("a"), variables={name: "x"})


@pytest.mark.parametrize(
    ("source", "messages", "reason"),
    [
        (STRICT, CONVERSATIONS["same role twice"], "Conversation roles must alternate user/assistant/"),
        (STRICT, CONVERSATIONS["system"], "System role not supported"),
        ("{{ messages[0].content.nothing.more }}", user("a"), "has no attribute 'nothing'"),
        ("{{ messages[0].content + 1 }}", user("a"), "TypeError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", user("a"), "RecursionError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", user("a"), "unsafe"),
        ("{{ messages.append(1) }}", user("a"), "unsafe"),
        ("{% set n = namespace(_x=1) %}", user("a"), "takes no attribute `_x`"),
        ("{{ range(10**9) | list }}", user("a"), "OverflowError"),
    ],
)
def test_what_a_template_refuses_is_the_callers_error(source: str, messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source, messages)
    assert caught.value.message.startswith("Template error: ")
    assert reason in caught.value.message
    assert (caught.value.status, caught.value.error_type) == (422, "template_error")


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% for n in messages %}{% for o in messages %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='') %}{% for m in messages %}{% for n in messages %}{{ n.content }}{% endfor %}{% endfor %}",
        "{% macro f() %}{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}{% endmacro %}{{ f() }}",
    ],
)
def test_a_rendering_ends(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_environment, "CPU_SECONDS", 0.1)
    with pytest.raises(TemplateError, match=r"seconds|RecursionError"):
        render(source, user("a") * 5_000)


def test_a_prompt_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_environment, "MAX_CHARACTERS", 1_000)
    assert len(render(CHATML, user("a" * 900))) > 900
    with pytest.raises(TemplateError, match="more than 1000 characters"):
        render(CHATML, user("a" * 1_000))


# -- the end of the prompt ----------------------------------------------------------------------------------------------


def test_the_assistants_head_comes_once() -> None:
    assert render(CHATML, user("a")) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, user("a"), add_generation_prompt=False) == "<|im_start|>user\na<|im_end|>\n"


@pytest.mark.parametrize("options", [{}, {"continue_final_message": True}, {"add_generation_prompt": False}])
def test_the_assistants_last_words_are_continued(options: dict[str, bool]) -> None:
    messages = [*user("Count."), {"role": "assistant", "content": "1, 2, "}]
    assert render(CHATML, messages, **options) == "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n1, 2, "
    assert render(STRICT, messages, **options).endswith("<start_of_turn>model\n1, 2, ")
    parts = [*user("Count."), {"role": "assistant", "content": [{"type": "text", "text": "1,"}] * 2}]
    assert render(CHATML, parts, **options).endswith("assistant\n1,1,")
    assert render(PARTS, parts, **options).endswith("Assistant: 1, 1,")


@pytest.mark.parametrize("options", [{"continue_final_message": False}, {"add_generation_prompt": True}])
def test_or_a_new_turn_is_asked_for(options: dict[str, bool]) -> None:
    messages = [*user("Count."), {"role": "assistant", "content": "1, 2"}]
    assert render(CHATML, messages, **options).endswith("1, 2<|im_end|>\n<|im_start|>assistant\n")


def test_what_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequest, match="must not both be true"):
        render(CHATML, user("a"), add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="`continue_final_message` needs a last message"):
        render(CHATML, user("a"), continue_final_message=True)
    with pytest.raises(TemplateError, match="cannot be continued"):
        render("{{ messages[0].content }}", [*user("a"), {"role": "assistant", "content": "b"}])


# -- what templates do not understand -----------------------------------------------------------------------------------


def test_parts_are_joined_with_nothing_between_unless_the_template_wants_them() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert "user\nab<|im_end|>" in render(CHATML, messages)
    assert render(FAMILIES["either"], messages) == "[user]ab"
    assert render(PARTS, messages) == "<bos>User: a b\nAssistant:"
    assert render(PARTS, user("a")) == "<bos>User: a\nAssistant:"


def test_tools_are_told_in_the_system_message_where_the_template_knows_none() -> None:
    prompt = render(CHATML, CONVERSATIONS["system"], tools=TOOLS)
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\n\nYou may call")
    assert json.dumps(TOOLS[0], ensure_ascii=False) in prompt
    assert "<tool_call>\n{" in prompt
    assert prompt.endswith("<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n")
    prompt = render(CHATML, user("Hi"), tools=TOOLS, tool_prompt="Use these:")
    assert prompt.startswith("<|im_start|>system\nUse these:\n\n<tools>\n{")


def test_tools_are_told_the_user_where_there_is_no_system_message() -> None:
    prompt = render(STRICT, CONVERSATIONS["three turns"], tools=TOOLS)
    assert prompt.startswith("<s><start_of_turn>user\nYou may call")
    assert "</tool_call>\n\nOne<end_of_turn>\n<start_of_turn>model\nTwo" in prompt


def test_a_template_that_knows_tools_says_everything_itself() -> None:
    for source in (TAGS, HEADERS, INSTRUCT):
        prompt = render(source, user("Hi"), tools=TOOLS)
        assert "get_weather" in prompt
        assert "You may call" not in prompt
    assert render(TAGS, user("Hi"), tools=TOOLS, tool_prompt="Think twice.").startswith(
        "<|im_start|>system\nThink twice."
    )


def test_a_template_with_tools_of_an_unknown_format_has_the_format_explained() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    prompt = render(source, user("Hi"), tools=TOOLS)
    assert prompt.startswith("system: To call a function")
    assert prompt.endswith(json.dumps(TOOLS, ensure_ascii=False))


def test_the_template_for_tools_is_used_with_tools() -> None:
    both = template(CHATML, tool_use=TAGS)
    assert "# Tools" in both.render(read_messages(user("a")), tools=TOOLS)
    assert both.render(read_messages(user("a"))) == render(CHATML, user("a"))
    assert template(CHATML, tool_use=INSTRUCT).tool_format == MISTRAL


def test_calls_and_results_are_told_in_words_where_the_template_knows_none() -> None:
    call = CONVERSATIONS["a call and its result"]
    prompt = render(CHATML, call)
    arguments = '{"city": "Köln", "days": [1, 2.5, null]}'
    assert (
        f'assistant\n<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call><|im_end|>' in prompt
    )
    assert '<|im_start|>user\n<tool_response>\n{"t": 3}\n</tool_response><|im_end|>' in prompt
    # Two results are one turn of the user's.
    alternating = [*call[:2], call[2], {**call[2], "content": "4"}, {"role": "assistant", "content": "ok"}, call[3]]
    prompt = render(STRICT, alternating)
    assert '<tool_response>\n{"t": 3}\n</tool_response>\n<tool_response>\n4\n</tool_response><end_of_turn>' in prompt


def test_ids_of_calls_are_made_to_fit() -> None:
    messages = json.loads(json.dumps(CONVERSATIONS["a call and its result"]))
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = "call_0123456789abcdef"
    prompt = render(INSTRUCT, messages)
    short = prompt.partition('"id": "')[2][:9]
    assert short.isalnum()
    assert f'"call_id": "{short}"' in prompt
    assert "call_0123456789abcdef" in render(HEADERS.replace("tool_call.name", "message.tool_calls[0].id"), messages)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (CHATML, HERMES),
        (TAGS, HERMES),
        (HEADERS, LLAMA),
        (INSTRUCT, MISTRAL),
        ("{{ tools }}{{ messages[0].tool_calls }}[TOOL_CALLS]f[ARGS]{}", MISTRAL_ARGS),
        ("{{ tools }}<tool_call><function=f>", HERMES),
        ("[TOOL_CALLS]", HERMES),
    ],
)
def test_the_format_of_calls_is_the_models_own(source: str, form: ToolFormat) -> None:
    assert template(source).tool_format is form


# -- files --------------------------------------------------------------------------------------------------------------


def files(folder: Path, **contents: Any) -> ModelFiles:
    for name, content in contents.items():
        path = folder / (name.replace("__", "/") + (".json" if isinstance(content, dict) else ".jinja"))
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content) if isinstance(content, dict) else content, encoding="utf-8")
    return ModelFiles("m", folder)


def test_where_templates_are_found(tmp_path: Path) -> None:
    config = {"chat_template": "config {{ bos_token }}", "bos_token": {"content": "<b>"}, "eos_token": "<e>"}
    hello = read_messages(user("a"))
    found = ChatTemplate.of(files(tmp_path, tokenizer_config=config))
    assert found.exists
    assert found.render(hello) == "config <b>"
    files(tmp_path, processor_config={"chat_template": "processor"})
    assert ChatTemplate.of(ModelFiles("m", tmp_path)).render(hello) == "config <b>"
    files(tmp_path, chat_template={"chat_template": "legacy"})
    assert ChatTemplate.of(ModelFiles("m", tmp_path)).render(hello) == "legacy"
    files(
        tmp_path, chat_template="file {{ eos_token }}", additional_chat_templates__tool_use="tools {{ tools | length }}"
    )
    found = ChatTemplate.of(ModelFiles("m", tmp_path))
    assert found.render(hello) == "file <e>"
    assert found.render(hello, tools=TOOLS) == "tools 2"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
    found = ChatTemplate.of(files(tmp_path, tokenizer_config={"chat_template": named}))
    assert found.render(read_messages(user("a"))) == "default"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "the model has no chat template"),
        ({"chat_template": None}, "the model has no chat template"),
        ({"chat_template": "{% if %}"}, "the model's chat template is broken"),
        ({"chat_template": [{"name": "x"}]}, "the model has no chat template"),
    ],
)
def test_a_model_that_cannot_chat(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    found = ChatTemplate.of(files(tmp_path, tokenizer_config=config))
    assert not found.exists
    assert found.tool_format is HERMES
    with pytest.raises(TemplateError, match=reason):
        found.render(read_messages(user("a")))
