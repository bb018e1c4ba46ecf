"""Connections to whichever Redis server is the primary now.

A server that answers READONLY has become a replica. redis-py goes on asking it; these connections close, so that the next
use dials anew: through Sentinel, or by a name that points to the new primary by then.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

from common.redis_url import RedisAddress

# redis-py says it is typed, but most of its methods are not.
# mypy: disable-error-code="no-untyped-call, misc"

_DEMOTED = "the server has become a replica"


class _Following:
    """Mixin: asks `locate`, when there is one, for host and port each time it connects."""

    host: str
    port: int
    _sock: Any

    def __init__(self, *, locate: Callable[[], tuple[str, int]] | None = None, **options: Any) -> None:
        self._locate = locate
        super().__init__(**options)

    def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        if self._locate is not None and not self._sock:
            self.host, self.port = self._locate()
        super().connect_check_health(check_health, retry_socket_connect)

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)
        except ReadOnlyError as error:
            self.disconnect()  # type: ignore[attr-defined]
            raise RedisConnectionError(_DEMOTED) from error


class Connection(_Following, redis.connection.Connection):
    pass


class TlsConnection(_Following, redis.connection.SSLConnection):
    pass


class SocketConnection(_Following, redis.connection.UnixDomainSocketConnection):
    pass


class Doubt:
    """When one of a pool's connections last had to wait in vain; the others from before are not to be trusted either.

    A server that vanished closes nothing: without this, each connection of a pool costs a request and the whole timeout.
    """

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since = 0.0


class _AsyncFollowing:
    """As `_Following`, on an event loop; connections of a pool share one `Doubt`."""

    host: str
    port: int
    is_connected: bool
    _writer: Any

    def __init__(
        self, *, doubt: Doubt, locate: Callable[[], Awaitable[tuple[str, int]]] | None = None, **options: Any
    ) -> None:
        self._doubt = doubt
        self._locate = locate
        self._dialled_at = 0.0
        super().__init__(**options)

    async def connect(self) -> None:
        """What a pool calls before each use."""
        if self.is_connected and (self._dialled_at < self._doubt.since or self._writer.transport.is_closing()):
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
        await super().connect()

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        if not self.is_connected:
            self._dialled_at = time.monotonic()
            if self._locate is not None:
                self.host, self.port = await self._locate()
        await super().connect_check_health(check_health, retry_socket_connect)

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        try:
            await super().send_packed_command(*args, **options)
        except RuntimeError as error:
            # What uvloop says of a transport that was reset, where asyncio's own loop says nothing.
            raise RedisConnectionError("the connection was lost before the command was sent") from error

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except RedisTimeoutError:
            self._doubt.since = time.monotonic()
            raise
        except ReadOnlyError as error:
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise RedisConnectionError(_DEMOTED) from error


class AsyncConnection(_AsyncFollowing, redis.asyncio.connection.Connection):
    pass


class AsyncTlsConnection(_AsyncFollowing, redis.asyncio.connection.SSLConnection):
    pass


class AsyncSocketConnection(_AsyncFollowing, redis.asyncio.connection.UnixDomainSocketConnection):
    pass


class Sentinels:
    """Asks Sentinels where the primary is, the one that answered last first.

    Every question has connections of its own: they are asked when something broke, and old connections may have too.
    """

    def __init__(self, address: RedisAddress, options: Mapping[str, Any]) -> None:
        """Nothing is connected yet.

        Args:
            options: redis-py's arguments for clients of Sentinels, time limits above all.
        """
        assert address.master_name is not None
        self._name = address.master_name
        self._hosts = list(address.hosts)
        self._options = dict(options)

    def locate(self) -> tuple[str, int]:
        """Host and port of the primary.

        Raises:
            redis.sentinel.MasterNotFoundError: no Sentinel knows one; a `redis.ConnectionError`.
        """
        for host in list(self._hosts):
            with redis.sentinel.Sentinel([host], sentinel_kwargs=self._options) as sentinel:
                try:
                    found: tuple[str, int] = sentinel.discover_master(self._name)
                except redis.sentinel.MasterNotFoundError:
                    continue
            self._prefer(host)
            return found
        raise redis.sentinel.MasterNotFoundError(self._not_found)

    async def locate_async(self) -> tuple[str, int]:
        """As `locate`, on an event loop."""
        for host in list(self._hosts):
            async with redis.asyncio.sentinel.Sentinel([host], sentinel_kwargs=self._options) as sentinel:
                try:
                    found: tuple[str, int] = await sentinel.discover_master(self._name)
                except redis.asyncio.sentinel.MasterNotFoundError:
                    continue
            self._prefer(host)
            return found
        raise redis.asyncio.sentinel.MasterNotFoundError(self._not_found)

    def _prefer(self, host: tuple[str, int]) -> None:
        self._hosts.sort(key=lambda known: known != host)

    @property
    def _not_found(self) -> str:
        return f"none of {len(self._hosts)} Sentinels knows a living {self._name}"
