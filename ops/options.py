"""Command-line flags for all settings, made from the settings class."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from common.field_docs import field_docs
from common.settings import Settings
from ops.configuration import BadSetting, Configuration, flag, variables

BAD_USAGE = 2
REDIS_SETTINGS = (
    "redis_url",
    "redis_password_file",
    "redis_timeout",
    "redis_connect_timeout",
    "key_prefix",
    "worker_dead_after",
)
"""What a command needs to know to meet the workers of a service."""
_PANEL = "Settings"
_SHORT = {"port": "-p", "graceful_termination_timeout": "-g"}


class SettingsCommand(TyperCommand):
    """A command whose help is plain text: in columns of a box the names of settings would be cut."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "rich_markup_mode": None})

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], _PANEL: []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                of_its_kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels[getattr(parameter, "rich_help_panel", None) or of_its_kind].append(record)
        for name, records in panels.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
        if len(panels[_PANEL]) < len(Settings.model_fields):
            formatter.write_paragraph()
            formatter.write_text("Other settings come from the environment; `tgq env` shows all.")


def with_settings(
    command: Callable[..., int], *, names: Collection[str] = tuple(Settings.model_fields)
) -> Callable[..., None]:
    """Turn `command(configuration, **own options) -> exit status` into a command with flags for settings.

    Flags are text here and checked by the settings class, so that a flag and its variable fail with the same words: one
    line that names the setting, exit status 2.

    Args:
        names: the settings that have a flag; the others are read from the environment.
    """

    @functools.wraps(command)
    def run(**given: Any) -> None:
        flags = {name: _text(given.pop(name)) for name in names if given[name] not in (None, [])}
        own = {name: value for name, value in given.items() if name not in names}
        try:
            configuration = Configuration.load(flags)
        except BadSetting as error:
            for line in str(error).splitlines():
                typer.echo(f"tgq: {line}", err=True)
            raise typer.Exit(BAD_USAGE) from None
        configuration.export()
        raise typer.Exit(command(configuration, **own))

    signature = inspect.signature(command, eval_str=True)
    own_parameters = list(signature.parameters.values())[1:]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own_parameters, *(_parameter(name) for name in names)], return_annotation=None
    )
    run.__annotations__ = {}
    return run


with_redis_settings = functools.partial(with_settings, names=REDIS_SETTINGS)


@functools.cache
def _parameter(name: str) -> inspect.Parameter:
    names = [flag(name)]
    names += [flag(variable.lower()) for variable in variables(name)[1:] if not variable.startswith("TGQ_")]
    names += [_SHORT[name]] if name in _SHORT else []
    hint = f"{field_docs(Settings).get(name, '')} [{variables(name)[0]}; {_default(name)}]".strip()
    choices = _choices(name)
    option = typer.Option(
        *names,
        help=hint,
        show_default=False,
        metavar=_metavar(name),
        rich_help_panel=_PANEL,
        autocompletion=(lambda incomplete: [one for one in choices if one.startswith(incomplete)]) if choices else None,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[_flag_type(name), option]
    )


def _default(name: str) -> str:
    value = Settings.model_fields[name].get_default(call_default_factory=True)
    return "no default" if value is None or value == [] else f"default {value}"


def _flag_type(name: str) -> Any:
    annotation = _annotation(name)
    if annotation is bool:
        return bool | None
    return list[str] | None if typing.get_origin(annotation) is list else str | None


def _metavar(name: str) -> str | None:
    annotation = _annotation(name)
    if choices := _choices(name):
        return "|".join(choices)
    return None if annotation is bool else {int: "NUMBER", float: "NUMBER"}.get(annotation, "TEXT")


def _choices(name: str) -> tuple[str, ...]:
    """What a setting may be, where these are a few words."""
    annotation = _annotation(name)
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def _annotation(name: str) -> Any:
    """The field's type without `None`."""
    annotation = Settings.model_fields[name].annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next(choice for choice in typing.get_args(annotation) if choice is not type(None))
    return annotation


def _text(value: str | bool | list[str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list) else value
