"""What a batch's lines came to, from memory to storage: objects written whole, and then registered under the batch's lease.

Only what is registered is done. An object that is not, because this process died or lost the lease in between, is nobody's and goes
with the batch's folder.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Literal

import structlog
from redis.exceptions import RedisError

from common.batches.objects import BatchUsage, Part
from common.batches.storage import ObjectMissing, Storage, batch_folder
from common.batches.store import BatchStore, Claim
from common.errors import ServiceUnavailable
from common.protocols.batch_lines import number_of
from workers.batch.done_lines import DoneLines

log = structlog.get_logger(__name__)

Kind = Literal["output", "error"]

FEWEST_SECONDS = 1.0
"""Between two checkpoints ..."""
MOST_SECONDS = 10.0
"""... and in a batch that runs for long, whose parts would become too many."""
_PARTS_A_SECOND = 100
FULL_BYTES = 4 << 20
"""So much is written without waiting for a second to pass ..."""
MOST_BYTES = 32 << 20
"""... and with so much in memory no further line is taken."""
PATIENCE_SECONDS = 600.0
"""How long a checkpoint waits for Redis or the storage."""
_RETRY_SECONDS = 1.0


class _Pending:
    """Results since the last checkpoint."""

    def __init__(self) -> None:
        self.lines: dict[Kind, list[bytes]] = {"output": [], "error": []}
        self.bytes = 0
        self.prompt_tokens = self.generated_tokens = 0

    def __bool__(self) -> bool:
        return self.bytes > 0


class Results:
    """Of one batch, while this runner holds it."""

    def __init__(self, store: BatchStore, storage: Storage, claim: Claim) -> None:
        self._store = store
        self._storage = storage
        self._claim = claim
        self._folder = batch_folder(claim.batch.id)
        # Another runner with an older claim may still write: no two ever use the same name.
        self._mark = secrets.token_hex(4)
        self._parts = 0
        self._pending = _Pending()
        self._ending = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.done = DoneLines()

    async def load(self) -> None:
        """Find out what is done already.

        Raises:
            ObjectMissing: a registered part is gone.
            StorageUnavailable: it cannot be read now.
        """
        parts = await self._store.parts(self._claim)
        self._parts = len(parts)
        for part in parts:
            await asyncio.to_thread(self._read_part, part)

    def _read_part(self, part: Part) -> None:
        with self._storage.reader(part.name) as file:
            for line in file:
                self.done.add(number_of(line))

    async def add(
        self, kind: Kind, number: int, line: bytes, prompt_tokens: int = 0, generated_tokens: int = 0
    ) -> None:
        """A line is done; a line that was done before is not done again. Waits while too much waits to be written."""
        await self._room.wait()
        if not self.done.add(number):
            return
        pending = self._pending
        pending.lines[kind].append(line)
        pending.bytes += len(line)
        pending.prompt_tokens += prompt_tokens
        pending.generated_tokens += generated_tokens
        if pending.bytes >= FULL_BYTES:
            self._wake.set()
        if pending.bytes >= MOST_BYTES:
            self._room.clear()

    async def keep_writing(self) -> None:
        """Make checkpoints until `end`; cancelled, what is in memory is lost.

        Raises:
            LeaseLost: another runner has the batch.
            RedisError, ServiceUnavailable: for longer than is waited.
        """
        while self._pending or not self._ending:
            try:
                async with asyncio.timeout(min(FEWEST_SECONDS + self._parts / _PARTS_A_SECOND, MOST_SECONDS)):
                    await self._wake.wait()
            except TimeoutError:
                pass
            if not self._ending:
                self._wake.clear()
            await self._checkpoint()

    def end(self) -> None:
        """Nothing is added any more: `keep_writing` ends when all is registered."""
        self._ending = True
        self._wake.set()

    async def _checkpoint(self) -> None:
        pending, self._pending = self._pending, _Pending()
        self._room.set()
        if not pending:
            return
        number, give_up_at = self._parts, time.monotonic() + PATIENCE_SECONDS
        self._parts += 1
        while True:
            try:
                await self._write(number, pending)
                return
            except (RedisError, ServiceUnavailable) as error:
                if time.monotonic() > give_up_at:
                    raise
                log.warning("batch_checkpoint_waits", batch=self._claim.batch.id, reason=type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _write(self, number: int, pending: _Pending) -> None:
        parts = []
        for kind, lines in pending.lines.items():
            if lines:
                name = f"{self._folder}/{number:08d}-{self._mark}-{kind}.jsonl"
                async with self._storage.writer(name) as writer:
                    for line in lines:
                        await writer.write(line)
                parts.append(Part(name=name, kind=kind, bytes=writer.size, lines=len(lines)))
        await self._store.register_part(
            self._claim,
            *parts,
            completed=len(pending.lines["output"]),
            failed=len(pending.lines["error"]),
            usage=BatchUsage.of(pending.prompt_tokens, pending.generated_tokens) if pending.prompt_tokens else None,
        )


async def join_parts(storage: Storage, parts: list[Part], name: str) -> int:
    """Put parts together as one object; returns its bytes.

    Raises:
        ObjectMissing: a part is gone.
        StorageUnavailable: full, or out of reach.
    """
    async with storage.writer(name) as writer:
        for part in parts:
            async for chunk in storage.chunks(part.name):
                await writer.write(chunk)
    expected = sum(part.bytes for part in parts)
    if writer.size != expected:
        raise ObjectMissing(f"{name}: {writer.size} bytes instead of {expected}")
    return writer.size
