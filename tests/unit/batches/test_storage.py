"""Objects in a local folder, and in a store that fsspec reaches (its own, in memory)."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
import time
from pathlib import Path

import pytest

from common.batches import backends
from common.batches.storage import PIECE_BYTES, ObjectMissing, Storage
from common.errors import StorageUnavailable
from common.settings import Settings


@pytest.fixture(params=["folder", "file://", "memory://"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    kind: str = request.param
    if kind == "memory://":
        return Storage(Settings.of(batch_storage=f"memory://{secrets.token_hex(8)}"))
    return Storage(Settings.of(batch_storage=f"{kind.replace('folder', '')}{tmp_path / 'storage'}"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "storage"


@pytest.fixture
def local(folder: Path) -> Storage:
    return Storage(Settings.of(batch_storage=str(folder)))


async def write(storage: Storage, name: str, *chunks: bytes) -> None:
    async with storage.writer(name) as writer:
        for chunk in chunks:
            await writer.write(chunk)
        assert writer.size == sum(map(len, chunks))


async def read(storage: Storage, name: str, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join([chunk async for chunk in storage.chunks(name, start, stop)])


def files_in(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


async def test_what_is_written_is_read(storage: Storage) -> None:
    content = secrets.token_bytes(2 * PIECE_BYTES + 7)
    await write(storage, "files/a", content[:10], content[10:PIECE_BYTES], content[PIECE_BYTES:], b"")
    assert await storage.size("files/a") == len(content)
    assert await read(storage, "files/a") == content
    assert await read(storage, "files/a", 5, 15) == content[5:15]
    assert await read(storage, "files/a", PIECE_BYTES - 1, 2 * PIECE_BYTES + 1) == content[PIECE_BYTES - 1 : 2 * PIECE_BYTES + 1]  # fmt: skip
    assert await read(storage, "files/a", len(content) - 3, len(content) + 9) == content[-3:]
    assert await read(storage, "files/a", 3, 3) == b""
    assert [len(chunk) async for chunk in storage.chunks("files/a")] == [PIECE_BYTES, PIECE_BYTES, 7]

    def look() -> bytes:
        with storage.reader("files/a") as file:
            file.seek(100)
            return file.read(10)

    assert await asyncio.to_thread(look) == content[100:110]
    await write(storage, "empty")
    assert await read(storage, "empty") == b""


async def test_what_is_not_there(storage: Storage) -> None:
    with pytest.raises(ObjectMissing):
        await storage.size("none")
    with pytest.raises(ObjectMissing):
        await read(storage, "none")

    def look() -> None:
        with storage.reader("none"):
            pass

    with pytest.raises(ObjectMissing):
        await asyncio.to_thread(look)
    await storage.remove("none")
    await storage.remove_tree("none")
    await storage.remove_unfinished()


async def test_removing_takes_no_more_than_it_says(storage: Storage) -> None:
    for name in ("batches/1/a", "batches/1/b", "batches/12/a", "files/1"):
        await write(storage, name, name.encode())
    await storage.remove("batches/1/a")
    with pytest.raises(ObjectMissing):
        await storage.size("batches/1/a")
    assert await read(storage, "batches/1/b") == b"batches/1/b"
    await storage.remove_tree("batches/1")
    with pytest.raises(ObjectMissing):
        await storage.size("batches/1/b")
    assert await read(storage, "batches/12/a") == b"batches/12/a"
    assert await read(storage, "files/1") == b"files/1"


async def test_a_failed_write_leaves_nothing(storage: Storage) -> None:
    async def broken_off(size: int) -> None:
        async with storage.writer("files/a") as writer:
            await writer.write(b"x" * size)
            raise ZeroDivisionError

    for size in (1, 2 * PIECE_BYTES):
        with pytest.raises(ZeroDivisionError):
            await broken_off(size)
        with pytest.raises(ObjectMissing):
            await storage.size("files/a")


async def test_a_file_appears_when_it_is_whole(local: Storage, folder: Path) -> None:
    async with local.writer("files/a") as writer:
        await writer.write(b"x" * 2 * PIECE_BYTES)
        with pytest.raises(ObjectMissing):
            await local.size("files/a")
        (unfinished,) = files_in(folder)
        assert (folder / unfinished).stat().st_mode & 0o777 == 0o600
    assert files_in(folder) == ["files/a"]
    assert (folder / "files/a").stat().st_mode & 0o777 == 0o600
    assert (folder / "files").stat().st_mode & 0o777 == 0o700


async def test_who_is_cancelled_waits_for_the_thread(local: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    busy, go_on = threading.Event(), threading.Event()
    plain = backends.LocalUpload.write
    ended: list[bool] = []

    def slow(upload: backends.LocalUpload, data: bytes | bytearray) -> None:
        busy.set()
        ended.append(go_on.wait(10))
        plain(upload, data)

    monkeypatch.setattr(backends.LocalUpload, "write", slow)
    task = asyncio.create_task(write(local, "files/a", b"x" * PIECE_BYTES))
    await asyncio.to_thread(busy.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    assert files_in(folder) == []


async def test_storage_that_hangs_is_given_up(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr("common.batches.storage.PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(backends.LocalFolder, "size", lambda folder, name: go_on.wait(10))
    # More than there are threads for: the others wait for one, and no longer.
    calls = [asyncio.create_task(local.size("files/a")) for _ in range(20)]
    for call in calls:
        with pytest.raises(StorageUnavailable, match="no answer"):
            await call
    go_on.set()


async def test_leftovers_of_dead_processes_go_after_a_day(local: Storage, folder: Path) -> None:
    async with local.writer("files/a") as writer:
        await writer.write(b"x" * PIECE_BYTES)
        (unfinished,) = files_in(folder)
        await local.remove_unfinished()
        assert files_in(folder) == [unfinished]
        old = folder / unfinished
        twin = old.with_name("dead")
        twin.write_bytes(b"")
        os.utime(twin, (0, time.time() - backends.UNFINISHED_SECONDS - 1))
        await local.remove_unfinished()
        assert files_in(folder) == [unfinished]
    assert files_in(folder) == ["files/a"]


async def test_a_full_disk(local: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(upload: backends.LocalUpload, data: bytes | bytearray) -> None:
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(backends.LocalUpload, "write", full)
    with pytest.raises(StorageUnavailable, match="No space left on device") as caught:
        await write(local, "files/a", b"x")
    assert str(folder) not in caught.value.message
    assert files_in(folder) == []


async def test_a_store_whose_client_fails_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    storage = Storage(Settings.of(batch_storage="memory://broken"))

    def broken(*args: object, **options: object) -> None:
        raise KeyError("secret-host")

    monkeypatch.setattr(MemoryFileSystem, "open", broken)
    with pytest.raises(StorageUnavailable) as caught:
        await write(storage, "a", b"x")
    assert "secret-host" not in caught.value.message


def test_a_storage_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"TGQ_BATCH_STORAGE: .*nowhere"):
        Storage(Settings.of(batch_storage="nowhere://x"))
    monkeypatch.setitem(sys.modules, "s3fs", None)  # not installed
    with pytest.raises(ValueError, match=r"TGQ_BATCH_STORAGE: .*s3fs"):
        Storage(Settings.of(batch_storage="s3://bucket/folder"))
