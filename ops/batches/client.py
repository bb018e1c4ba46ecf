"""The files and batches of a service, over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from common.batches.objects import BatchList, BatchObject, FileObject
from ops.service_client import ServiceClient, ServiceError

Progress = Callable[[int, int], None]
"""Bytes so far, bytes in all (0: not known)."""


class BatchClient(ServiceClient):
    """Every method raises `ServiceError`."""

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
        with self._streamed("GET", f"/v1/files/{quote(file_id, safe='')}/content") as response:
            size, done = int(response.headers.get("content-length", 0)), 0
            for chunk in response.iter_bytes():
                to.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, size)


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
