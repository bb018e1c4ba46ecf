"""A server that is measured: its address, and what every request to it begins with."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import httpx2 as httpx
import msgspec

from ops.batches.input import BadInput
from ops.bench.serve.apis import Api

_SECONDS = 30.0


class NoModel(Exception):
    """The server does not tell which model it has, or nothing at all; the message is for people."""


@dataclass(frozen=True, eq=False)
class Target:
    """One server. `name` is what tables and plots call it. The same address twice is two targets."""

    name: str
    url: str
    host: str
    port: int
    path: str
    """Path of the API's route."""
    tls: ssl.SSLContext | None
    headers: Mapping[str, str] = field(repr=False)
    model: str = ""

    @classmethod
    def of(cls, url: str, api: Api, *, headers: Mapping[str, str], api_key: str | None) -> Target:
        """
        Args:
            url: with or without `http://`, and with or without the `/v1` that OpenAI's clients want.

        Raises:
            BadInput: it is no address.
        """
        full = (url if "://" in url else f"http://{url}").rstrip("/")
        parts = urlsplit(full)
        try:
            port = parts.port
        except ValueError as error:
            raise BadInput(f"--url {url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(f"--url {url}: an address such as http://127.0.0.1:3000 is wanted")
        if parts.username or parts.password:
            raise BadInput("--url: give a key with --api-key or a header, not in the address")
        if parts.query or parts.fragment:
            raise BadInput(f"--url {url}: an address without `?` and `#` is wanted")
        base = parts.path.removesuffix(api.path).removesuffix("/v1").rstrip("/")
        secret = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return cls(
            name=f"{parts.netloc}{base}",
            url=f"{parts.scheme}://{parts.netloc}{base}",
            host=parts.hostname,
            port=port or (443 if tls else 80),
            path=base + api.path,
            tls=tls,
            headers={**secret, **headers},
        )

    def head(self) -> bytes:
        """The head of every request, up to the length of the body."""
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {urlsplit(self.url).netloc}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            *(f"{name}: {value}" for name, value in self.headers.items()),
            "Content-Length: ",
        ]
        return "\r\n".join(lines).encode("latin-1")

    def with_model(self, model: str | None, api: Api) -> Target:
        """This server with the model that is asked for: the first it lists when none is given.

        Raises:
            NoModel: it does not tell.
        """
        if not api.takes_model:
            return self
        return replace(self, model=model or self._first_model())

    def _first_model(self) -> str:
        url = f"{self.url}/v1/models"
        try:
            # Without proxies, as what is measured.
            response = httpx.get(url, headers=dict(self.headers), timeout=_SECONDS, trust_env=False)
            response.raise_for_status()
            models = msgspec.json.decode(response.content, type=_Models).data
        except (httpx.HTTPStatusError, msgspec.MsgspecError) as error:
            raise NoModel(f"{url} does not tell the model ({_shown(error)}): name one with --model") from None
        except httpx.HTTPError as error:
            raise NoModel(f"{self.url} does not answer ({_shown(error)})") from None
        if not models:
            raise NoModel(f"{url} lists no models: name one with --model")
        return models[0].id


def targets(urls: Sequence[str], api: Api, *, headers: Mapping[str, str], keys: Sequence[str]) -> list[Target]:
    """The server, or the two servers, of a run.

    Args:
        keys: one for all of them, or one for each.

    Raises:
        BadInput: an address is none, or there are too many of something.
    """
    if len(urls) > 2:
        raise BadInput("--url, --compare: two servers at most")
    if len(keys) > 1 and len(keys) != len(urls):
        raise BadInput("--api-key: give one key, or one for each server")
    if keys and any(name.lower() == "authorization" for name in headers):
        raise BadInput("--header Authorization: --api-key (or API_KEY) says the same")
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise BadInput("--api-key: printable ASCII is wanted")
    each = keys if len(keys) == len(urls) else [*keys, None][:1] * len(urls)
    found = [Target.of(url, api, headers=headers, api_key=key) for url, key in zip(urls, each, strict=True)]
    if len(found) == 2:
        found = [replace(target, name=f"{letter} {target.name}") for letter, target in zip("AB", found, strict=True)]
    return found


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _shown(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return str(error) or type(error).__name__
