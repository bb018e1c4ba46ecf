"""Kombu's Redis transport for a generation worker (kombu 5.7).

The stock transport pops a message and registers it as unacknowledged in a second step, so a crash in between loses it;
it takes one message per three round trips; and on every broken connection it puts running work back on the queue. Here
`BLPOP` waits for a doorbell only, a list of its own; one script (`workers.pull_script`) then takes all messages the engine
has room for, in fair order, and registers them atomically; acknowledgements go out together, once per turn of the event
loop, over whichever connection is alive (`workers.acks`). Message format and unacknowledged messages are kombu's.

It overrides private methods of kombu (`_brpop_start`, `_brpop_read`, `_update_brpop_polling`, `_get_pool`): another kombu
version needs the fault tests first (`common.libraries`).
"""

# Kombu says it is typed, but its methods are not.
# mypy: disable-error-code="no-untyped-call, assignment, union-attr"

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty
from time import monotonic
from typing import Any, NamedTuple, Protocol

import redis
import structlog
from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from common.keys import DEAD_JOBS_KEPT, Keys
from workers.acks import Acks
from workers.pull_script import PULL

log = structlog.get_logger()

PULL_MAX = 8
"""Messages per script call: with more, one worker takes a burst that idle workers could share."""

PULLS_PER_TURN = 2
"""Then the event loop ends what was refused, before there is more of it."""

LOOK_SECONDS = 0.1
"""The doorbell hangs at the first queue only, and other producers than ours do not ring it; all queues are looked at this
often, and whenever room appears."""

BELL_OVERDUE_SECONDS = 3.0
"""The server answers the doorbell after a second at the latest; one that is this late hangs on a dead link."""


class Room(NamedTuple):
    """What may be taken from one queue now."""

    jobs: int
    tokens: int


class Offer(NamedTuple):
    """What a worker would take."""

    largest: int
    """Tokens of the largest job that could ever fit."""
    answer: int
    """Tokens an answer is expected to have; no job is counted with more than it may have."""
    rooms: list[Room]
    """Per queue."""


class Intake(Protocol):
    """The worker's side of the transport; all calls on the event loop's thread."""

    def attach(self, hub: Any, pull: Callable[[], None]) -> None:
        """A connection is up: `pull` takes what there is room for."""

    def room(self, queues: Sequence[str]) -> Offer:
        """What may be taken from these queues."""

    def overdue(self, tag: str) -> None:
        """The message with this delivery tag, delivered next, is batch work that waited too long: it may not wait further."""

    def pulled(self) -> None:
        """Everything one pull took has been delivered."""

    def looked(self, *, failed: bool) -> None:
        """A pull was tried, whether there was anything to take or not."""


class Dial(Protocol):
    """How this worker reaches Redis; kombu's own way knows less of it than `common.redis_clients`."""

    def __call__(self, *, subclass: Callable[[type[Any]], type[Any]]) -> redis.ConnectionPool: ...


def _as_it_is(base: type[Any]) -> type[Any]:
    return base


class QoS(stock.QoS):
    """Bookkeeping of deliveries; Redis hears of them from `Acks`."""

    def append(self, message: Any, delivery_tag: str) -> None:
        virtual.QoS.append(self, message, delivery_tag)  # The pull script has registered it.

    def ack(self, delivery_tag: str) -> None:
        self.channel.acks.ack(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.acks.give_back([delivery_tag])
            virtual.QoS.ack(self, delivery_tag)
        else:
            self.ack(delivery_tag)

    def restore_visible(self, *_args: Any, **_options: Any) -> None:
        """Nothing is restored by age: the reaper restores by the worker's liveness."""


class Poller(stock.MultiChannelPoller):
    """Watches the doorbell; never leaves a reply unread in a socket."""

    loop: Any = None

    def _update_brpop_polling(self) -> None:
        pass

    def on_poll_start(self) -> None:
        for channel in self._channels:
            channel.flush_acks()
        super().on_poll_start()

    def on_readable(self, fileno: int) -> Any:
        channel, kind = self._fd_to_chan.get(fileno, (None, None))
        if channel is not None and kind == "BRPOP":
            return channel._brpop_read()
        return super().on_readable(fileno)

    def pull_all(self) -> None:
        """Take everything there is room for."""
        for channel in list(self._channels):
            channel.drop_dead_bell()
            try:
                if channel.pull_some() and self.loop is not None:
                    self.loop.call_soon(self.pull_all)
            except (redis.RedisError, *channel.connection_errors) as error:
                # Raised here it would take other callbacks of the event loop along. A broken connection's own socket
                # makes the loop reconnect; whatever else it is, the next look is near.
                log.warning("pull_failed", error=type(error).__name__)
                return


class Channel(stock.Channel):
    QoS = QoS

    from_transport_options = (
        *stock.Channel.from_transport_options,
        *("dial", "worker", "workers_key", "dead_key", "intake", "acks", "overdue_after", "overdue_share"),
    )
    # Set from the transport options:
    dial: Dial
    worker: str
    workers_key: str
    dead_key: str
    intake: Intake
    acks: Acks
    overdue_after: float
    overdue_share: float

    # The stock channel puts unacknowledged messages back when it closes, on a mere lost connection too.
    do_restore = False

    _blocked = False
    """The first message in line does not fit; no use in listening for the bell."""
    _uncertain = False
    """A pull's reply was lost: messages may be registered as ours that never came here."""
    _sync_client: redis.Redis | None = None

    @contextmanager
    def conn_or_acquire(self, client: redis.Redis | None = None) -> Iterator[redis.Redis]:
        # The stock channel makes a client object for every command.
        if client is None:
            if self._sync_client is None:
                self._sync_client = self._create_client()
            client = self._sync_client
        yield client

    def _get_pool(self, asynchronous: bool = False) -> redis.ConnectionPool:
        pool = self.dial(subclass=self._watched if asynchronous else _as_it_is)
        self.keyprefix_fanout = self.keyprefix_fanout.format(db=pool.connection_kwargs["db"])
        return pool

    def _watched(self, base: type[Any]) -> type[Any]:
        """Connections that tell the event loop when they go."""
        channel = self

        class Connection(base):  # type: ignore[misc]
            def disconnect(self, *args: Any, **options: Any) -> None:
                super().disconnect(*args, **options)
                if channel._registered:
                    channel._on_connection_disconnect(self)

        return Connection

    def _disconnect_pools(self) -> None:
        self._sync_client = None
        super()._disconnect_pools()

    def flush_acks(self) -> None:
        if self.active_queues:
            with self.conn_or_acquire() as client:
                self.acks.flush(client)

    def pull(self) -> int:
        """Take at most `PULL_MAX` messages there is room for and deliver them; returns how many."""
        queues = self._sources()
        if not queues or self._closing:
            return 0
        with self.conn_or_acquire() as client:
            if self._uncertain:
                self._deliver_lost(client)
            largest, answer, rooms = self.intake.room(queues)
            if all(room.jobs <= 0 for room in rooms):
                return 0
            keys = [self.unacked_key, self.unacked_index_key, self.dead_key, self.workers_key, *queues]
            arguments = [self.worker, PULL_MAX, largest, DEAD_JOBS_KEPT, answer, self.overdue_after, self.overdue_share]
            arguments += [number for room in rooms for number in room]
            self._uncertain = True
            self.intake.looked(failed=True)  # Unless the next line comes to its end.
            self._blocked, *pulled = self._pull_script(client)(keys=keys, args=arguments, client=client)
            self._uncertain = False
            self.intake.looked(failed=False)
        for tag, overdue in zip(pulled[::4], pulled[3::4], strict=True):
            if overdue:
                self.intake.overdue(tag.decode())
        self._deliver(list(zip(pulled[::4], pulled[1::4], pulled[2::4], strict=True)))
        return len(pulled) // 4

    def pull_some(self) -> bool:
        """Pull, a few times at most; returns whether there may be more."""
        return all(self.pull() for _ in range(PULLS_PER_TURN))

    def _pull_script(self, client: redis.Redis) -> Any:
        script = self.__dict__.get("_script")
        if script is None:
            script = self._script = client.register_script(PULL)
        return script

    def _deliver_lost(self, client: redis.Redis) -> None:
        tags = [bytes_to_str(tag) for tag in client.zrange(self.unacked_index_key, 0, -1)]
        lost = self.acks.unknown(tags)
        entries: list[bytes | None] = client.hmget(self.unacked_key, lost) if lost else []
        self._uncertain = False
        delivered = []
        for tag, entry in zip(lost, entries, strict=True):
            if entry is not None:
                # An entry is `[message,"exchange","queue"]`.
                rest, _, queue = entry.rpartition(b',"')
                delivered.append((tag.encode(), queue[:-2], rest.rpartition(b',"')[0][1:]))
        self._deliver(delivered)

    def _deliver(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        """Hand on messages, each with its delivery tag and queue."""
        for raw_tag, queue, raw in messages:
            tag = raw_tag.decode()
            self.acks.opened(tag)
            try:
                message = loads(bytes_to_str(raw))
                if message["properties"]["delivery_tag"] != tag:
                    raise ValueError("the delivery tag is not where it belongs")
                self.connection._deliver(message, queue.decode())
            except Exception as error:  # noqa: BLE001
                # The boundary between messages: this one looked like one to the pull script, but Celery cannot read
                # it. Its text may be a prompt, and an error's text may quote it.
                log.error("message_unreadable", error=type(error).__name__, bytes=len(raw))
                self.acks.ack(tag)
        if messages:
            self.intake.pulled()

    def _sources(self) -> list[str]:
        return list(self._queue_cycle.consume(len(self.active_queues)))

    def _brpop_start(self, timeout: float | None = None) -> None:
        if self.pull_some():
            return  # There is more to take than a bell could tell of.
        queues = self._sources()
        if self._blocked or not queues or self.intake.room(queues).rooms[0].jobs <= 0:
            return
        connection = self.client.connection
        self._in_poll = connection
        self._brpop_sent_at = monotonic()
        seconds = timeout or self.brpop_timeout
        connection.send_command("BLPOP", Keys.bell(queues[0]), seconds)

    def _brpop_read(self, **options: Any) -> bool:
        connection = self.client.connection
        try:
            self.client.parse_response(connection, "BLPOP", **options)
        except self.connection_errors:
            connection.disconnect()
            raise
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        if not self.pull():
            raise Empty()
        return True

    def drop_dead_bell(self) -> None:
        """Let the loop connect anew when the answer is overdue: a half-open connection never becomes readable."""
        if self._in_poll and monotonic() - (self._brpop_sent_at or 0.0) > self.brpop_timeout + BELL_OVERDUE_SECONDS:
            log.warning("doorbell_dropped")
            self.client.connection.disconnect()

    def basic_cancel(self, consumer_tag: str) -> Any:
        if self._in_poll and len(self._consumers) == 1 and not self._closing:
            # The stock channel would read the answer to a command it did not send. A bell rung in vain misses nobody for
            # longer than `LOOK_SECONDS`.
            try:
                self.client.parse_response(self.client.connection, "BLPOP")
            finally:
                self._in_poll = None
        return super().basic_cancel(consumer_tag)


class Transport(stock.Transport):
    Channel = Channel

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cycle = Poller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)
        self.cycle.loop = loop
        loop.call_repeatedly(LOOK_SECONDS, self.cycle.pull_all)
        self.client.transport_options["intake"].attach(loop, self.cycle.pull_all)
