"""The settings of one run, and where each of them came from: a flag, a variable or the default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pydantic import AliasChoices, SecretStr, ValidationError
from pydantic_settings import SettingsError

from common.settings import Settings

HIDDEN = "********"


class BadSetting(Exception):
    """A setting has a value it cannot have; one line for each, naming the variable."""


@dataclass(frozen=True)
class Configuration:
    """Settings beside the flags they were made with."""

    settings: Settings
    flags: Mapping[str, str]
    """Field name -> text given on the command line."""

    @classmethod
    def load(cls, flags: Mapping[str, str]) -> Configuration:
        """Settings from flags, then the environment, then defaults.

        Raises:
            BadSetting: never holds the value of a secret.
        """
        try:
            return cls(Settings.of(**flags), flags)
        except ValidationError as error:
            raise BadSetting(
                "\n".join(_problem(detail["loc"], detail["msg"], flags) for detail in error.errors())
            ) from None
        except SettingsError as error:
            raise BadSetting(str(error)) from None

    def export(self) -> None:
        """Put the flags into this process's environment, so that every process it starts has the same settings."""
        os.environ.update({Settings.variable(name): value for name, value in self.flags.items()})

    def source(self, name: str) -> str:
        """Where the field's value came from: `--flag`, the variable's name, or `default`."""
        if name in self.flags:
            return flag(name)
        if name == "hostname" and os.environ.get("HOSTNAME") != self.settings.hostname:
            return "default"
        for variable in variables(name):
            if os.environ.get(variable):
                return variable
        return "default"

    def shown(self, name: str) -> str | int | float | bool | list[str] | None:
        """The field's value as people may see it: secrets and passwords are hidden."""
        value = getattr(self.settings, name)
        if isinstance(value, SecretStr):
            return HIDDEN
        if name in ("redis_url", "otlp_endpoint") and value:
            return without_password(value)
        return value if value is None or isinstance(value, (str, int, float, bool, list)) else str(value)


def variables(name: str) -> list[str]:
    """The environment variables a field is read from, in that order."""
    alias = Settings.model_fields[name].validation_alias
    if isinstance(alias, AliasChoices):
        return [str(choice) for choice in alias.choices]
    return [Settings.variable(name)]


def flag(name: str) -> str:
    """The command-line flag of a field: `--max-total-tokens`."""
    return "--" + name.replace("_", "-")


def without_password(url: str) -> str:
    """The URL with its passwords replaced, in front of the host and among the options; one that cannot be read is hidden whole."""
    try:
        parts = urlsplit(url)
        password = parts.password
        options = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return HIDDEN
    if "://" not in url or parts.fragment:
        return HIDDEN
    if any("password" in name for name, _ in options):
        shown = [(name, HIDDEN if "password" in name else value) for name, value in options]
        parts = parts._replace(query=urlencode(shown, safe="*<>"))
    if password is not None:
        user, _, host = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{user.partition(':')[0]}:{HIDDEN}@{host}")
    return urlunsplit(parts)


def _problem(location: tuple[int | str, ...], message: str, flags: Mapping[str, str]) -> str:
    """One line; the setting goes by the flag or the variable that was used."""
    message = message.removeprefix("Value error, ")
    if not location:
        return message
    variable = str(location[0]).upper()
    name = next((name for name in Settings.model_fields if Settings.variable(name) == variable), None)
    if name in flags:
        return f"{flag(str(name))}: {message}"
    used = next((alias for alias in variables(name) if os.environ.get(alias)), variable) if name else variable
    return f"{used}: {message}"
