"""Where the bytes of files are: a local folder, or whatever else fsspec knows by URL.

An object is written once and appears whole or not at all. Everything here blocks and runs in threads; `reader` is for callers
that are in one already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import BinaryIO, ParamSpec, TypeVar

from common.batches.backends import Backend, Upload, open_backend
from common.errors import StorageUnavailable
from common.settings import Settings

PIECE_BYTES = 1 << 20
PATIENCE_SECONDS = 120.0
"""After which storage that says nothing counts as out of reach. The thread that waits for it cannot be called back."""
_THREADS = 8
"""Storage that hangs must not take the threads that everything else works in."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def file_name(file_id: str) -> str:
    """The name in storage of a file's bytes."""
    return f"files/{file_id}"


def batch_folder(batch_id: str) -> str:
    """What begins the names in storage of a batch's parts."""
    return f"batches/{batch_id}"


class ObjectMissing(Exception):
    """There is no object of this name in storage."""


class _Threads:
    """Where blocking calls run."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "storage")

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs to its end even when the caller is cancelled, so that nobody uses a file that a thread is still busy with."""

        def translated() -> _T:
            with _translated():
                return work(*args, **kwargs)

        future = asyncio.get_running_loop().run_in_executor(self._pool, translated)
        try:
            await asyncio.wait([future], timeout=PATIENCE_SECONDS)
        except asyncio.CancelledError:
            await asyncio.wait([future], timeout=PATIENCE_SECONDS)
            _heard(future)
            raise
        if not future.done():
            _heard(future)
            raise StorageUnavailable(f"no answer in {PATIENCE_SECONDS:g} seconds")
        return future.result()


class Writer:
    """One object while it is written; collects small chunks."""

    def __init__(self, upload: Upload, threads: _Threads) -> None:
        self._upload = upload
        self._threads = threads
        self._pending = bytearray()
        self.size = 0
        """Bytes given so far."""

    async def write(self, chunk: bytes) -> None:
        """
        Raises:
            StorageUnavailable: full, or out of reach.
        """
        self.size += len(chunk)
        self._pending += chunk
        if len(self._pending) >= PIECE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if self._pending:
            piece, self._pending = self._pending, bytearray()
            await self._threads.run(self._upload.write, piece)


class Storage:
    """All methods raise `StorageUnavailable` when the storage is full or out of reach, and `ObjectMissing`."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            ValueError: `batch_storage` is no URL that can be used; says why.
        """
        self._backend: Backend = open_backend(settings.batch_storage)
        self._threads = _Threads()

    @asynccontextmanager
    async def writer(self, name: str) -> AsyncIterator[Writer]:
        """The object is there once this is left, and not at all when that is by an exception."""
        upload = await self._threads.run(self._backend.upload, name)
        try:
            writer = Writer(upload, self._threads)
            yield writer
            await writer.flush()
            await self._threads.run(upload.commit)
        except BaseException:
            with contextlib.suppress(StorageUnavailable):  # What went wrong first is what counts.
                await self._threads.run(upload.discard)
            raise

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        """Blocks: for threads. The file can be sought in."""
        with _translated():
            file = self._backend.open(name)
        with file, _translated():
            yield file

    async def chunks(self, name: str, start: int = 0, stop: int | None = None) -> AsyncGenerator[bytes]:
        """The bytes from `start` up to `stop`, in pieces of a mebibyte at most."""
        file = await self._threads.run(self._backend.open, name)
        try:
            if start:
                await self._threads.run(file.seek, start)
            left = stop - start if stop is not None else None
            while left is None or left > 0:
                piece = await self._threads.run(file.read, PIECE_BYTES if left is None else min(left, PIECE_BYTES))
                if not piece:
                    return
                if left is not None:
                    left -= len(piece)
                yield piece
        finally:
            await self._threads.run(file.close)

    async def size(self, name: str) -> int:
        """In bytes."""
        return await self._threads.run(self._backend.size, name)

    async def remove(self, name: str) -> None:
        """Does nothing when it is not there."""
        await self._threads.run(self._backend.remove, name)

    async def remove_tree(self, prefix: str) -> None:
        """Every object whose name begins with this and a slash."""
        await self._threads.run(self._backend.remove_tree, prefix)

    def close(self) -> None:
        """What is under way still ends."""
        self._threads.close()

    async def remove_unfinished(self) -> None:
        """What uploads have left that ended with their process, a day ago or longer."""
        await self._threads.run(self._backend.remove_unfinished)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(str(error)) from None
    except OSError as error:
        # Never its text: it may tell of folders and hosts.
        raise StorageUnavailable(error.strerror) from error


def _heard(future: asyncio.Future[_T]) -> None:
    """Nobody is left to hear of its error."""
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
