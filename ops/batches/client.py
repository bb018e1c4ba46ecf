"""The files and batches of a service, over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar
from urllib.parse import quote

import httpx2 as httpx
import msgspec

from common.batches.objects import BatchList, BatchObject, FileObject

_CONNECT_SECONDS = 5.0
_SECONDS = 60.0
"""For sending or hearing a part; a whole upload or download may take longer."""

_T = TypeVar("_T")
Progress = Callable[[int, int], None]
"""Bytes so far, bytes in all (0: not known)."""


class ServiceError(Exception):
    """The service refused or did not answer; the message is for people."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        """
        Args:
            passing: trying again later may help.
        """
        super().__init__(message)
        self.passing = passing


class BatchClient:
    """Talks to one service; closed by `with`. Every method raises `ServiceError`."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._http = httpx.Client(
                base_url=self.url, headers=headers, timeout=httpx.Timeout(_SECONDS, connect=_CONNECT_SECONDS)
            )
        except (httpx.InvalidURL, ValueError, UnicodeError) as error:
            raise ServiceError(f"{url} is no address: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def upload(self, path: Path, progress: Progress | None = None) -> FileObject:
        """Send the input of a batch, in parts; OSError when the file cannot be read."""
        with path.open("rb") as file:
            reader: Any = file if progress is None else _Watched(file, progress)
            parts = {"file": (path.name, reader, "application/jsonl")}
            return self._ask("POST", "/v1/files", FileObject, data={"purpose": "batch"}, files=parts)

    def create(
        self, input_file_id: str, endpoint: str, *, window: str, metadata: dict[str, str] | None = None
    ) -> BatchObject:
        body: dict[str, Any] = {
            "input_file_id": input_file_id,
            "endpoint": endpoint,
            "completion_window": window,
            "metadata": metadata or None,
        }
        return self._ask("POST", "/v1/batches", BatchObject, json=body)

    def submit(
        self,
        path: Path,
        endpoint: str,
        *,
        window: str,
        metadata: dict[str, str] | None = None,
        progress: Progress | None = None,
    ) -> BatchObject:
        """Upload and create; nothing is left of a file that no batch is made of."""
        file = self.upload(path, progress)
        try:
            return self.create(file.id, endpoint, window=window, metadata=metadata)
        except ServiceError:
            with suppress(ServiceError):
                self.delete_file(file.id)
            raise

    def batch(self, batch_id: str) -> BatchObject:
        return self._ask("GET", f"/v1/batches/{quote(batch_id, safe='')}", BatchObject)

    def batches(self, limit: int) -> list[BatchObject]:
        """The newest ones, at most so many."""
        found: list[BatchObject] = []
        while len(found) < limit:
            asked: dict[str, Any] = {"limit": min(100, limit - len(found))}
            if found:
                asked["after"] = found[-1].id
            page = self._ask("GET", "/v1/batches", BatchList, params=asked)
            found += page.data
            if not page.has_more or not page.data:
                break
        return found

    def cancel(self, batch_id: str) -> BatchObject:
        return self._ask("POST", f"/v1/batches/{quote(batch_id, safe='')}/cancel", BatchObject)

    def delete_file(self, file_id: str) -> None:
        self._ask("DELETE", f"/v1/files/{quote(file_id, safe='')}", dict[str, Any])

    def download(self, file_id: str, to: IO[bytes], progress: Progress | None = None) -> None:
        """Write a file's content; OSError when it cannot be written."""
        with self._understood(), self._http.stream("GET", f"/v1/files/{quote(file_id, safe='')}/content") as response:
            if not response.is_success:
                response.read()
                raise _refusal(response)
            size, done = int(response.headers.get("content-length", 0)), 0
            for chunk in response.iter_bytes():
                to.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, size)

    def _ask(self, method: str, path: str, kind: type[_T], **content: Any) -> _T:
        with self._understood():
            response = self._http.request(method, path, **content)
            if not response.is_success:
                raise _refusal(response)
            return msgspec.json.decode(response.content, type=kind)

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException:
            raise ServiceError(f"no answer from {self.url} in time", passing=True) from None
        except httpx.UnsupportedProtocol as error:
            raise ServiceError(f"{self.url} is no address: {error}") from None
        except httpx.HTTPError as error:
            raise ServiceError(f"no answer from {self.url}: {error or type(error).__name__}", passing=True) from None
        except msgspec.MsgspecError as error:
            raise ServiceError(f"{self.url} answers something else than a batch service: {error}") from None


class _Watched:
    """A file whose reading is told of. With a `fileno`, the client knows the length beforehand."""

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._progress = progress

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._progress(self._file.tell(), self._size)
        return data


def _refusal(response: httpx.Response) -> ServiceError:
    """The words of an error answer, whichever form it has."""
    try:
        error = json.loads(response.content)["error"]
        words = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        words = f"{response.url} answered {response.status_code} {response.reason_phrase}"
    if response.status_code == 401:
        words += " (give a key with --api-key or API_KEY)"
    return ServiceError(words, passing=response.status_code in (429, 500, 502, 503, 504))
