"""Jinja as chat templates expect it, sandboxed, and with an end to every rendering.

What transformers gives its templates (`transformers.utils.chat_template_utils`): whitespace control, loop controls,
`raise_exception`, `strftime_now`, a `tojson` that does not escape HTML, and the `generation` tag, which marks the
assistant's words for training and has no effect here.

A model's template is its operator's choice, but what it works through is the client's: ten thousand messages in a loop
within a loop are 10^8 rounds. So each round of each loop looks at the time that the rendering has used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

CPU_SECONDS = 1.0
"""Processor time of one rendering; a long conversation takes milliseconds."""
MAX_CHARACTERS = 16_000_000
"""Of one prompt; the tokenizer would take seconds for more."""


class OutOfTime(TemplateError):
    """The rendering used up its processor time."""


_deadline: ContextVar[float] = ContextVar("rendering_deadline")
"""The thread's processor time at which its rendering has to end."""


def compile_template(source: str) -> Template:
    """
    Raises:
        jinja2.TemplateError: the source is no template.
    """
    tree = _environment.parse(source)
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, _watched.__name__, [], [], None, None, lineno=loop.lineno)
    return Template.from_code(_environment, _environment.compile(tree), dict(_environment.globals))


def parse_template(source: str) -> nodes.Template:
    """The syntax tree, to look things up in.

    Raises:
        jinja2.TemplateError: the source is no template.
    """
    return _environment.parse(source)


def render_template(template: Template, variables: Mapping[str, Any], cpu_seconds: float | None = None) -> str:
    """
    Args:
        cpu_seconds: processor time it may use, if not `CPU_SECONDS`.

    Raises:
        OutOfTime: it needs more.
        jinja2.TemplateError: the template refuses what it is given, or another limit is reached.
        Exception: anything else that can go wrong in a program.
    """
    token = _deadline.set(time.thread_time() + (CPU_SECONDS if cpu_seconds is None else cpu_seconds))
    try:
        size, pieces = 0, []
        for piece in template.generate(**variables):
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise TemplateError(f"the prompt has more than {MAX_CHARACTERS} characters")
            pieces.append(piece)
        return "".join(pieces)
    finally:
        _deadline.reset(token)


def _watched(values: Iterable[Any]) -> Iterator[Any]:
    deadline = _deadline.get()
    for value in values:
        if time.thread_time() > deadline:
            raise OutOfTime(f"it takes more than {CPU_SECONDS:g} seconds")
        yield value


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` is what is between."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """Takes no names with an underscore in front, as transformers' own. `namespace(self=...)` is legal."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no attribute `{name}`")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _new_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters[_watched.__name__] = _watched
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_Namespace)
    return environment


_environment = _new_environment()
