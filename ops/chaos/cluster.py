"""The service under fire: a real Redis behind TCP proxies, two workers, two web nodes, and a supervisor that keeps them up."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

import redis

from common.keys import Keys
from common.registry import live_workers_sync
from common.settings import DEFAULT_MODEL, SCRIPTED_MODEL, Settings
from common.wire import WorkerRecord
from ops.chaos.http_stream import Address
from ops.chaos.tcp_proxy import TcpProxy
from ops.embedded_redis import EmbeddedRedis
from ops.local_service import Part
from ops.ports import free_port
from ops.process_figures import catches
from workers.engine.default_model import ensure_default_model

HOST = "127.0.0.1"
TEND_SECONDS = 0.1
RESTART_SECONDS = 0.2
"""Before a process that ended is started again; doubled with every start that fails early, up to 5 s."""
EARLY_SECONDS = 3.0
LIVE_SECONDS = 2.5


class NotWhole(Exception):
    """The cluster did not recover; the message says what is missing."""


@dataclass(eq=False)
class Member:
    """One process that the supervisor keeps running."""

    name: str
    command: str
    environment: dict[str, str]
    address: Address | None
    """Of a web node."""
    link: TcpProxy | None
    """Its way to Redis, where that is its own."""
    part: Part
    started: float = field(default_factory=monotonic)
    asked_to_stop: bool = False
    stop_statuses: frozenset[int] = frozenset((0,))
    """What it may end with when asked to stop."""
    killed: bool = False
    starts: int = 1
    again_at: float | None = None
    failures: int = 0

    @property
    def pid(self) -> int:
        return self.part.pid


class Cluster:
    """Use in an `async with` block; everything is ready inside.

    Args:
        directory: logs and Redis' data go there.
        settings: environment variables for all processes.
        proxied: whether every process has a TCP proxy of its own before Redis, whose wire can be cut. They cost time.
    """

    def __init__(
        self, directory: Path, settings: Mapping[str, str], *, web: int = 2, workers: int = 2, proxied: bool = True
    ) -> None:
        self.directory = directory
        self.redis = EmbeddedRedis(directory / "redis", append_only=True)
        self.members: list[Member] = []
        self.exits: list[str] = []
        """Ends that nobody caused: a non-zero status after SIGTERM, or an end without a fault."""
        self.redis_turn = asyncio.Lock()
        """Held by a fault that has its hands on Redis."""
        self.keys = Keys()
        self.model = settings.get("MODEL_ID", DEFAULT_MODEL)
        self._settings = dict(settings)
        self._counts = {"worker": workers, "web": web}
        self._proxied = proxied
        self._supervisor: asyncio.Task[None] | None = None
        self._client: redis.Redis | None = None
        self._links: list[TcpProxy] = []

    @property
    def workers(self) -> list[Member]:
        return [member for member in self.members if member.command == "worker"]

    @property
    def web(self) -> list[Member]:
        return [member for member in self.members if member.command == "web"]

    @property
    def addresses(self) -> list[Address]:
        return [member.address for member in self.web if member.address is not None]

    @property
    def client(self) -> redis.Redis:
        """A connection to Redis itself, past the proxies."""
        assert self._client is not None
        return self._client

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._start)
            self._supervisor = asyncio.create_task(self._tend())
            await self.until_whole(180)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await asyncio.to_thread(self._stop)

    def terminate(self, member: Member) -> None:
        """SIGTERM, unless a fault that overlaps has sent one: a second one means at once. It has to end with status 0.

        A process that has only just begun, and does not listen for signals yet, dies of it.
        """
        if not member.asked_to_stop:
            listens = member.part.alive and catches(member.pid, signal.SIGTERM)
            member.asked_to_stop = True
            member.stop_statuses = frozenset((0,) if listens else (0, -signal.SIGTERM))
            member.part.terminate()

    async def kill(self, member: Member) -> None:
        """SIGKILL to the process alone: what it started must notice by itself."""
        member.killed = True
        await asyncio.to_thread(member.part.kill)

    async def records(self) -> dict[int, WorkerRecord]:
        """Live workers by process id; none while Redis is away."""
        try:
            live = await asyncio.to_thread(live_workers_sync, self.client, self.keys, LIVE_SECONDS)
        except redis.RedisError:
            return {}
        return {record.pid: record for record in live}

    async def engine_pid(self, worker: Member) -> int | None:
        record = (await self.records()).get(worker.pid)
        return record.engine_pid if record is not None else None

    async def until_ready(self, member: Member, timeout: float, starts: int = 1) -> None:
        """Wait until its process, whichever that is by now, serves.

        Args:
            starts: how often it must have been started by then.

        Raises:
            NotWhole: it does not in time.
        """
        deadline = monotonic() + timeout
        while member.starts < starts or not await self._ready(member):
            if monotonic() > deadline:
                raise NotWhole(f"{member.name} is not ready after {timeout:g} s:\n{member.part.tail(2000)}")
            await asyncio.sleep(0.05)

    async def until_whole(self, timeout: float) -> None:
        """Wait until every member serves.

        Raises:
            NotWhole: names the one that does not in time.
        """
        deadline = monotonic() + timeout
        for member in self.members:
            await self.until_ready(member, max(deadline - monotonic(), 0.1))

    async def _ready(self, member: Member) -> bool:
        if not member.part.alive:
            return False
        if member.address is None:
            record = (await self.records()).get(member.pid)
            return record is not None and record.state == "ready"
        return await _healthy(member.address)

    # -- processes

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.model in (DEFAULT_MODEL, SCRIPTED_MODEL):
            ensure_default_model(Settings.of(model_id=self.model), lambda stage, fraction: None)
        self.redis.start()
        self._client = redis.Redis.from_url(self.redis.url, socket_timeout=2, socket_connect_timeout=1)
        for command, count in self._counts.items():
            for number in range(1, count + 1):
                self.members.append(self._member(f"{command}-{number}", command))

    def _member(self, name: str, command: str) -> Member:
        assert self.redis.port is not None
        link = None
        if self._proxied:
            link = TcpProxy(self.redis.port)
            link.start()
            self._links.append(link)
        address = (HOST, free_port(HOST)) if command == "web" else None
        environment = {
            **os.environ,
            "HOSTNAME": HOST,
            "HF_HUB_OFFLINE": "1",
            **({"PORT": str(address[1])} if address else {}),
            **self._settings,
            "REDIS_URL": link.url if link is not None else self.redis.url,
        }
        return Member(name, command, environment, address, link, Part(name, [command], environment, self.directory))

    async def _tend(self) -> None:
        while True:
            for member in self.members:
                self._look_after(member)
            await asyncio.sleep(TEND_SECONDS)

    def _look_after(self, member: Member) -> None:
        now = monotonic()
        if member.part.alive:
            return
        if member.again_at is None:
            status = member.part.process.returncode
            if not (member.killed or (member.asked_to_stop and status in member.stop_statuses)):
                self.exits.append(f"{member.name} ended with {status}: {member.part.tail(300)}")
            member.failures = member.failures + 1 if now - member.started < EARLY_SECONDS else 0
            member.again_at = now + min(RESTART_SECONDS * 2**member.failures, 5.0)
        elif now >= member.again_at:
            member.part = Part(member.name, [member.command], member.environment, self.directory)
            member.started, member.again_at = now, None
            member.asked_to_stop = member.killed = False
            member.starts += 1

    def _stop(self) -> None:
        for member in self.members:
            # Whatever a fault left frozen must be able to hear.
            if member.part.alive:
                os.kill(member.pid, signal.SIGCONT)
        for members in (self.web, self.workers):
            for member in members:
                member.part.terminate()
            deadline = monotonic() + 10
            for member in members:
                while member.part.alive and monotonic() < deadline:
                    sleep(0.05)
                member.part.kill()
        if self._client is not None:
            self._client.close()
        for link in self._links:
            link.stop()
        self.redis.stop()


async def _healthy(address: Address) -> bool:
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"GET /health HTTP/1.1\r\nHost: local\r\nConnection: close\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
