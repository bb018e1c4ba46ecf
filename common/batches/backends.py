"""Objects by name, in a local folder or anywhere else that fsspec reaches. Everything blocks and raises `OSError`.

Local files have their own way: fsspec writes what is to appear at once into the system's folder for temporary files and moves it
across, which is neither atomic nor safe from a loss of power.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

UNFINISHED_SECONDS = 86_400
"""After which an upload that did not end is taken for dead."""
_UNFINISHED = ".unfinished"

_T = TypeVar("_T")


class Upload(Protocol):
    """An object that is not there yet."""

    def write(self, data: bytes | bytearray) -> object: ...

    def commit(self) -> None:
        """From here on it is there, whatever happens to this machine."""

    def discard(self) -> None:
        """It never was."""


class Backend(Protocol):
    def upload(self, name: str) -> Upload: ...

    def open(self, name: str) -> BinaryIO: ...

    def size(self, name: str) -> int: ...

    def remove(self, name: str) -> None: ...

    def remove_tree(self, prefix: str) -> None: ...

    def remove_unfinished(self) -> None: ...


def open_backend(url: str) -> Backend:
    """
    Raises:
        ValueError: nothing can be made of the URL.
    """
    if "://" not in url or url.startswith("file://"):
        return LocalFolder(Path(url.removeprefix("file://")).expanduser())
    from fsspec.core import url_to_fs

    try:
        filesystem, root = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ValueError(f"TGQ_BATCH_STORAGE: {error}") from None
    return RemoteFolder(filesystem, root.rstrip("/"))


class LocalFolder:
    """Folders and files are for their owner alone: they hold prompts and answers."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def upload(self, name: str) -> LocalUpload:
        unfinished = self._root / _UNFINISHED
        for folder in (unfinished, (self._root / name).parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalUpload(unfinished / secrets.token_hex(16), self._root / name)

    def open(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")

    def size(self, name: str) -> int:
        return (self._root / name).stat().st_size

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def remove_tree(self, prefix: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / prefix)

    def remove_unfinished(self) -> None:
        folder = self._root / _UNFINISHED
        if not folder.is_dir():
            return
        oldest = time.time() - UNFINISHED_SECONDS
        for file in folder.iterdir():
            if file.stat().st_mtime < oldest:
                file.unlink(missing_ok=True)


class LocalUpload:
    """Written beside its place, on the same file system, and renamed into it."""

    def __init__(self, unfinished: Path, final: Path) -> None:
        self._unfinished = unfinished
        self._final = final
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._file = os.fdopen(os.open(unfinished, flags, 0o600), "wb")

    def write(self, data: bytes | bytearray) -> None:
        self._file.write(data)

    def commit(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._unfinished.replace(self._final)
        _sync_folder(self._final.parent)

    def discard(self) -> None:
        try:
            self._file.close()
        finally:
            self._unfinished.unlink(missing_ok=True)


class RemoteFolder:
    """Stores of objects (S3, GCS, ...) show an object when its upload is complete, and never a part of it."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem = filesystem
        self._root = root

    def upload(self, name: str) -> RemoteUpload:
        path = self._path(name)
        _reached(self._filesystem.makedirs, path.rpartition("/")[0], exist_ok=True)
        return RemoteUpload(self._filesystem, path)

    def open(self, name: str) -> BinaryIO:
        file: BinaryIO = _reached(self._filesystem.open, self._path(name), "rb")
        return file

    def size(self, name: str) -> int:
        return int(_reached(self._filesystem.size, self._path(name)))

    def remove(self, name: str) -> None:
        self._removed(self._filesystem.rm_file, name)

    def remove_tree(self, prefix: str) -> None:
        self._removed(self._filesystem.rm, prefix, recursive=True)

    def remove_unfinished(self) -> None:
        """Nothing: stores drop the parts of an upload that did not end by a rule of the bucket."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _removed(self, remove: Callable[..., object], name: str, **options: Any) -> None:
        try:
            _reached(remove, self._path(name), **options)
        except FileNotFoundError:
            return
        # Listings are cached, and somebody else may have written since.
        self._filesystem.invalidate_cache()


class RemoteUpload:
    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._file: Any = _reached(filesystem.open, path, "wb", autocommit=False)

    def write(self, data: bytes | bytearray) -> None:
        _reached(self._file.write, bytes(data))

    def commit(self) -> None:
        _reached(self._file.close)
        _reached(self._file.commit)

    def discard(self) -> None:
        _reached(self._file.discard)
        with contextlib.suppress(AttributeError):
            self._file.closed = True  # else it is uploaded when it is collected
        if _reached(self._filesystem.exists, self._path):
            _reached(self._filesystem.rm_file, self._path)


def _reached(work: Callable[..., _T], *args: Any, **options: Any) -> _T:
    """A store's client may raise anything at all."""
    try:
        return work(*args, **options)
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"the storage failed: {type(error).__name__}") from error


def _sync_folder(folder: Path) -> None:
    """The name is safe when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
