"""HTTP to a service that runs somewhere, with errors for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2 as httpx
import msgspec

_CONNECT_SECONDS = 5.0
_SECONDS = 60.0
"""For sending or hearing a part; a whole upload or download may take longer."""

_T = TypeVar("_T")


class ServiceError(Exception):
    """The service refused or did not answer; the message is for people."""

    def __init__(self, message: str, *, passing: bool = False, status: int | None = None) -> None:
        """
        Args:
            passing: trying again later may help.
            status: of the answer that says so, where there is one.
        """
        super().__init__(message)
        self.passing = passing
        self.status = status


class ServiceClient:
    """Talks to one service; closed by `with`. Every method raises `ServiceError`."""

    def __init__(self, url: str, api_key: str | None = None, *, seconds: float = _SECONDS) -> None:
        """
        Args:
            url: with or without `/v1`; without a scheme it is plain HTTP.
            seconds: for sending or hearing a part.
        """
        self.url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._http = httpx.Client(
                base_url=self.url, headers=headers, timeout=httpx.Timeout(seconds, connect=_CONNECT_SECONDS)
            )
        except (httpx.InvalidURL, ValueError, UnicodeError) as error:
            raise ServiceError(f"{url} is no address: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, kind: type[_T], **content: Any) -> _T:
        with self._understood():
            response = self._http.request(method, path, **content)
            if not response.is_success:
                raise _refusal(response)
            return msgspec.json.decode(response.content, type=kind)

    @contextmanager
    def _streamed(self, method: str, path: str, **content: Any) -> Iterator[httpx.Response]:
        """An answer that is read as it comes; leaving the block early closes its connection."""
        with self._understood(), self._http.stream(method, path, **content) as response:
            if not response.is_success:
                response.read()
                raise _refusal(response)
            yield response

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException:
            raise ServiceError(f"no answer from {self.url} in time", passing=True) from None
        except httpx.UnsupportedProtocol as error:
            raise ServiceError(f"{self.url} is no address: {error}") from None
        except httpx.RemoteProtocolError as error:
            raise ServiceError(f"{self.url} broke off: {error}", passing=True) from None
        except httpx.HTTPError as error:
            raise ServiceError(f"no answer from {self.url}: {error or type(error).__name__}", passing=True) from None
        except msgspec.MsgspecError as error:
            raise ServiceError(f"{self.url} answers in another form than expected: {error}") from None


def error_words(body: bytes) -> str | None:
    """What an error says, in OpenAI's form or in TGI's; None when it is neither."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return None


def _refusal(response: httpx.Response) -> ServiceError:
    words = error_words(response.content)
    if words is None:
        words = f"{response.url} answered {response.status_code} {response.reason_phrase}"
    if response.status_code == 401:
        words += " (give a key with --api-key or API_KEY)"
    if after := response.headers.get("retry-after"):
        words += f" (try again in {after} s)"
    passing = response.status_code in (429, 500, 502, 503, 504)
    return ServiceError(words, passing=passing, status=response.status_code)
