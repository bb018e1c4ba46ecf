"""API keys: who may call, and how much.

Keys come from `API_KEY` and from a file, TOML or JSON, that is read again whenever it changes:

    [[keys]]
    name = "team-a"                 # told to logs and limits; the secret never is
    sha256 = "9f86d081884c7d65..."  # of the secret, in hex; or `secret` itself
    requests_in_flight = 8          # optional, as all that follows
    tokens_per_minute = 60000
    models = ["a-model"]
    weight = 2.0                    # its share of busy workers, relative to other keys' (1.0)
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.settings import Settings

log = logging.getLogger(__name__)

SETTINGS_KEY = "default"
"""Name of the key that `API_KEY` holds."""
_NAME = r"^[A-Za-z0-9._-]{1,64}$"
_MAX_FILE_BYTES = 1_000_000

FileState = tuple[int, int, int]
"""What changes when a file does: inode, size, time of modification."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key; None stands for no limit."""

    name: str
    digest: bytes
    """SHA-256 of the secret."""
    requests_in_flight: int | None = None
    tokens_per_minute: int | None = None
    models: frozenset[str] | None = None
    weight: float = 1.0
    """Its share of busy workers, relative to other keys'."""

    @property
    def limited(self) -> bool:
        return self.requests_in_flight is not None or self.tokens_per_minute is not None

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=_NAME)]
    secret: Annotated[str, Field(min_length=1)] | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    requests_in_flight: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    models: list[str] | None = None
    weight: Annotated[float, Field(ge=0.01, le=100, strict=False)] = 1.0

    @model_validator(mode="after")
    def _one_secret(self) -> _Entry:
        if (self.secret is None) == (self.sha256 is None):
            raise ValueError("a key has either `secret` or `sha256`")
        return self

    def key(self) -> ApiKey:
        digest = bytes.fromhex(self.sha256) if self.sha256 is not None else _digest((self.secret or "").encode())
        models = frozenset(self.models) if self.models is not None else None
        return ApiKey(self.name, digest, self.requests_in_flight, self.tokens_per_minute, models, self.weight)


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    keys: list[_Entry]


def parse_keys(text: str, *, toml: bool) -> list[ApiKey]:
    """The keys of a file.

    Raises:
        ValueError: says what is wrong and where, never what stands there.
    """
    try:
        data: Any = tomllib.loads(text) if toml else json.loads(text)
    except ValueError as error:
        line = re.search(r"line (\d+)", str(error))
        raise ValueError(f"not {'TOML' if toml else 'JSON'}" + (f", see line {line[1]}" if line else "")) from None
    try:
        keys = [entry.key() for entry in _File.model_validate(data).keys]
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"`{'.'.join(map(str, first['loc'])) or 'file'}`: {first['msg']}") from None
    for what, values in (("name", [key.name for key in keys]), ("secret", [key.digest for key in keys])):
        if len(set(values)) < len(values):
            raise ValueError(f"two keys have the same {what}")
    if any(key.name == SETTINGS_KEY for key in keys):
        raise ValueError(f"the name `{SETTINGS_KEY}` is that of `API_KEY`")
    return keys


class KeyRing:
    """All keys that are valid now."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            ValueError: the file is not there or holds no keys; says what is wrong with it.
        """
        self._path = settings.api_keys_file
        own = settings.api_key
        self._own = [ApiKey(SETTINGS_KEY, _digest(own.get_secret_value().encode()))] if own is not None else []
        self._keys = self._own
        self._state: FileState | None = None
        self.required = own is not None or self._path is not None
        """Whether callers need a key at all; a file without keys lets nobody in."""
        if self._path is not None:
            try:
                self._read(self._path)
            except (OSError, ValueError) as error:
                raise ValueError(f"TGQ_API_KEYS_FILE ({self._path}): {_reason(error)}") from None

    def find(self, given: bytes) -> ApiKey | None:
        """The key with this secret. Takes the same time whether there is one and wherever it stands."""
        digest = _digest(given)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def refresh(self) -> None:
        """Read the file again if it has changed; if it cannot be read, the keys stay as they are."""
        if self._path is None:
            return
        try:
            if _state(self._path) != self._state:
                self._read(self._path)
                log.info("API keys were read again: %d", len(self._keys))
        except (OSError, ValueError) as error:
            log.warning("API keys stay as they were, the file is not right: %s", _reason(error))

    def _read(self, path: Path) -> None:
        # A bad file is looked at once; a file that changes while it is read is looked at again.
        self._state = _state(path)
        if self._state[1] > _MAX_FILE_BYTES:
            raise ValueError(f"larger than {_MAX_FILE_BYTES} bytes")
        self._keys = self._own + parse_keys(path.read_text(encoding="utf-8"), toml=path.suffix != ".json")


def _state(path: Path) -> FileState:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return (error.strerror or "cannot be read") if isinstance(error, OSError) else str(error)


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()
