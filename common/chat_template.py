"""A model's chat template: from a conversation to a prompt."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import structlog

from common.chat_environment import OutOfTime, compile_template, render_template
from common.chat_message import Message
from common.chat_turns import turns, with_tools
from common.errors import InvalidRequest, TemplateError
from common.model_files import ModelFiles
from common.template_traits import TemplateTraits
from common.tool_format import HERMES, ToolFormat

log = structlog.get_logger(__name__)

_NAMES_TAKEN = frozenset(
    ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
)
_END_MARK = secrets.token_hex(16)
"""Marks where the text to be continued ends; nobody can know it."""


class TooSlow(TemplateError):
    """The template used up its processor time."""


class ChatTemplate:
    """Renders conversations with a model's own template. Safe to use from several threads.

    Its prompts hold the special tokens: tokenize them without adding any (`Ask.special_tokens=False`).
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """
        Args:
            sources: templates by name; `default` is for all, `tool_use` for conversations with tools. None at all: every
                chat is refused.
            special_tokens: their texts by name (`bos_token`, ...).
        """
        self._templates: dict[str, _Template] = {}
        self._special_tokens = dict(special_tokens)
        self._missing = "the model has no chat template"
        for name, source in sources.items():
            try:
                self._templates[name] = _Template(compile_template(source), TemplateTraits.of(source), special_tokens)
            except jinja2.TemplateError as error:
                self._missing = "the model's chat template is broken"
                log.warning("chat_template_broken", template=name, error=str(error))
        if self._templates and "default" not in self._templates:
            self._templates["default"] = next(iter(self._templates.values()))

    @classmethod
    def of(cls, files: ModelFiles) -> ChatTemplate:
        """A model's template; one that refuses every chat when the model has none, or a broken one. Never raises."""
        try:
            return cls(_sources(files), _special_tokens(files))
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("chat_template_unreadable", model=files.model_id, error=str(error))
            return cls({}, {})

    @property
    def exists(self) -> bool:
        """Whether the model can chat at all."""
        return bool(self._templates)

    @property
    def tool_format(self) -> ToolFormat:
        """How this model writes its calls."""
        return self._for_tools.traits.format if self._templates else HERMES

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_prompt: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        variables: Mapping[str, Any] | None = None,
        cpu_seconds: float | None = None,
    ) -> str:
        """The prompt. CPU-bound (microseconds to a second): call it off the event loop (`Validator.in_thread`).

        Args:
            messages: at least one.
            tools: OpenAI's tool objects (`ToolUse.shown`); a template that knows none gets them in the system message.
            tool_prompt: words before the tools in place of ours, where the template knows no tools; else one more
                instruction.
            add_generation_prompt: end with the head of the assistant's turn. None: unless the last message is continued.
            continue_final_message: the answer goes on from the assistant's last message, whose turn is left open. None:
                if there is one that makes no calls, and `add_generation_prompt` is not True; as TGI does from 3.0.
            variables: more variables for the template (`chat_template_kwargs`).
            cpu_seconds: processor time it may use; `chat_environment.CPU_SECONDS` if None.

        Raises:
            TooSlow: it needs more.
            TemplateError: the model has no template, or the template refuses the conversation, in its own words.
            InvalidRequest: `variables` has names that are taken; both flags are True; there is nothing to continue.
        """
        if not self._templates:
            raise TemplateError(self._missing)
        continued = _is_continued(messages, add_generation_prompt, continue_final_message)
        variables = variables or {}
        for name in variables:
            if name in _NAMES_TAKEN or name in self._special_tokens:
                raise InvalidRequest(f"`chat_template_kwargs` must not hold `{name}`")
        template = self._for_tools if tools else self._templates["default"]
        if tools:
            messages = with_tools(messages, tools, tool_prompt, template.traits, takes_system=template.takes_system)
        if continued:
            messages = [*messages[:-1], _marked(messages[-1])]
        add = not continued if add_generation_prompt is None else add_generation_prompt
        prompt = template.render(
            messages, list(tools) or None, {"add_generation_prompt": add, **variables}, cpu_seconds
        )
        if not continued:
            return prompt
        end = prompt.rfind(_END_MARK)
        if end < 0:
            raise TemplateError("the last message cannot be continued")
        return prompt[:end]

    @property
    def _for_tools(self) -> _Template:
        return self._templates.get("tool_use") or self._templates["default"]


@dataclass(frozen=True)
class _Template:
    template: jinja2.Template
    traits: TemplateTraits
    special_tokens: Mapping[str, str]

    @cached_property
    def takes_system(self) -> bool:
        """Whether a system message gets into the prompt: some templates refuse it, some leave it out."""
        probe = [Message(role="system", texts=[_END_MARK]), Message(role="user", texts=["."])]
        try:
            return _END_MARK in self.render(probe, None, {"add_generation_prompt": True})
        except TemplateError:
            return False

    def render(
        self,
        messages: Sequence[Message],
        tools: list[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        cpu_seconds: float | None = None,
    ) -> str:
        known = {"messages": turns(messages, self.traits), "tools": tools, "documents": None}
        try:
            return render_template(self.template, {**self.special_tokens, **known, **variables}, cpu_seconds)
        except OutOfTime as error:
            raise TooSlow(str(error)) from None
        except jinja2.TemplateError as error:
            raise TemplateError(str(error)) from None
        except Exception as error:  # a model's program met a client's data: whatever it raises is about these
            raise TemplateError(
                f"the template cannot make a prompt of these messages ({type(error).__name__})"
            ) from error


def _is_continued(messages: Sequence[Message], add: bool | None, continued: bool | None) -> bool:
    if add and continued:
        raise InvalidRequest("`add_generation_prompt` and `continue_final_message` must not both be true")
    possible = messages[-1].role == "assistant" and not messages[-1].calls
    if continued and not possible:
        raise InvalidRequest("`continue_final_message` needs a last message of the assistant's, without calls")
    return possible and not add if continued is None else continued


def _marked(message: Message) -> Message:
    *texts, last = message.texts or [""]
    return msgspec.structs.replace(message, texts=[*texts, last + _END_MARK])


def _sources(files: ModelFiles) -> dict[str, str]:
    """Templates by name. Files of their own come before the configurations', as in transformers."""
    path = files.path / "chat_template.jinja"
    sources = {"default": path.read_text(encoding="utf-8")} if path.is_file() else {}
    for path in sorted((files.path / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = path.read_text(encoding="utf-8")
    if sources:
        return sources
    for config in (
        _read(files.path / "chat_template.json"),
        files.tokenizer_config,
        _read(files.path / "processor_config.json"),
    ):
        template = config.get("chat_template")
        if isinstance(template, str):
            return {"default": template}
        if isinstance(template, list) and template:
            return {str(each["name"]): str(each["template"]) for each in template}
    return {}


def _special_tokens(files: ModelFiles) -> dict[str, str]:
    tokens = {}
    for config in (_read(files.path / "special_tokens_map.json"), files.tokenizer_config):
        for name, token in config.items():
            text = token.get("content") if isinstance(token, dict) else token
            if name.endswith("_token") and isinstance(text, str):
                tokens[name] = text
    return tokens


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
