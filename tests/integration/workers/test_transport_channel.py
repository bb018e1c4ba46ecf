"""The channel in this process, without a worker: lost replies, unreadable messages, the doorbell."""

# Kombu says it is typed, but its methods are not.
# mypy: disable-error-code="no-untyped-call, attr-defined, assignment"

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import kombu
import pytest
import redis
from kombu.entity import Queue

from common.celery_message import celery_message
from common.redis_clients import sync_pool
from common.settings import Settings
from tests.integration.workers.support import Submitter
from workers.acks import Acks
from workers.transport import Channel, Offer, Room


class FixedRoom:
    """An intake with room for `jobs` jobs."""

    jobs = 100
    pulls = 0

    def __init__(self) -> None:
        self.looks: list[bool] = []
        """Whether each failed, as far as is known."""

    def attach(self, hub: Any, pull: Callable[[], None]) -> None:
        pass

    def room(self, queues: Sequence[str]) -> Offer:
        return Offer(10_000, 100, [Room(self.jobs, 10_000)] * len(queues))

    def overdue(self, tag: str) -> None:
        raise AssertionError(tag)

    def pulled(self) -> None:
        self.pulls += 1

    def looked(self, *, failed: bool) -> None:
        self.looks.append(failed)


class Consuming:
    """A channel that consumes the interactive queue."""

    def __init__(self, submitter: Submitter, url: str) -> None:
        self.submitter, self.keys = submitter, submitter.keys
        self.intake = FixedRoom()
        self.acks = Acks(self.keys, "w")
        options = {
            "dial": partial(sync_pool, Settings.of(redis_url=url)),
            "unacked_key": self.keys.unacked("w"),
            "unacked_index_key": self.keys.unacked_index("w"),
            "worker": "w",
            "workers_key": self.keys.workers,
            "overdue_after": 60.0,
            "overdue_share": 0.1,
            "dead_key": self.keys.dead,
            "queue_order_strategy": "priority",
            "priority_steps": [0],
            "intake": self.intake,
            "acks": self.acks,
        }
        self.connection = kombu.Connection(url, transport="workers.transport:Transport", transport_options=options)
        self.channel: Channel = self.connection.default_channel
        self.messages: list[Any] = []
        queue = Queue(submitter.queue(), exchange="", no_declare=True)
        self.consumer: Any = kombu.Consumer(self.channel, [queue], on_message=self.messages.append, accept=["json"])
        self.consumer.consume()

    def taken(self) -> list[str]:
        return [message.headers["id"] for message in self.messages]

    def unacked(self) -> int:
        return self.submitter.client.hlen(self.keys.unacked("w"))


@pytest.fixture
def consuming(submitter: Submitter, redis_url: str) -> Iterator[Consuming]:
    consuming = Consuming(submitter, redis_url)
    yield consuming
    consuming.connection.release()


def test_delivers_and_acknowledges_together(consuming: Consuming) -> None:
    for name in "abc":
        consuming.submitter.submit(name)
    assert consuming.channel.pull() == 3
    assert consuming.taken() == ["a", "b", "c"]
    assert consuming.intake.pulls == 1
    for message in consuming.messages[:2]:
        message.ack()
    assert consuming.unacked() == 3
    consuming.channel.flush_acks()
    assert consuming.unacked() == 1


def test_takes_nothing_without_room(consuming: Consuming) -> None:
    consuming.submitter.submit("a")
    consuming.intake.jobs = 0
    assert consuming.channel.pull() == 0
    assert consuming.submitter.waiting() == 1


def test_a_pull_whose_reply_is_lost_is_delivered_by_the_next(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    consuming.submitter.submit("before")
    consuming.channel.pull()
    consuming.messages[0].ack()  # Not yet sent: must not be taken for lost.
    consuming.submitter.submit("lost")
    script = consuming.channel._pull_script

    def cut_off(client: redis.Redis) -> Any:
        def call(**arguments: Any) -> None:
            script(client)(**arguments)
            raise redis.ConnectionError("cut while the reply was on its way")

        return call

    with monkeypatch.context() as patch:
        patch.setattr(consuming.channel, "_pull_script", cut_off)
        with pytest.raises(redis.ConnectionError):
            consuming.channel.pull()
    assert consuming.intake.looks == [True, False, True]
    assert consuming.taken() == ["before"]
    assert consuming.unacked() == 2
    consuming.submitter.submit("after")
    consuming.channel.pull()
    assert consuming.intake.looks[-2:] == [True, False]
    assert consuming.taken() == ["before", "lost", "after"]
    consuming.channel.pull()
    assert len(consuming.messages) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        {b'{"body"': b'"body"'},
        {b'"utf-8"}': b'"rot13"}'},
        # A decoder of base64 passes over letters that are none, but no text of it has one letter.
        {b'"utf-8"}': b'"base64"}', b'{"body":': b'{"body":"a","was":'},
    ],
)
def test_what_cannot_be_read_is_dropped_and_leaves_nothing(consuming: Consuming, spoil: dict[bytes, bytes]) -> None:
    message = celery_message(consuming.submitter.job("bad"), consuming.submitter.queue())
    for whole, broken in spoil.items():
        assert whole in message
        message = message.replace(whole, broken)
    consuming.submitter.client.lpush(consuming.submitter.queue(), message)
    consuming.submitter.submit("good")
    consuming.channel.pull()
    assert consuming.taken() == ["good"]
    consuming.channel.flush_acks()
    assert consuming.unacked() == 1


def test_a_rejected_message_goes_back_when_asked_to(consuming: Consuming) -> None:
    consuming.submitter.submit("a")
    consuming.submitter.submit("b")
    consuming.channel.pull()
    consuming.messages[0].reject()
    consuming.messages[1].requeue()
    consuming.channel.flush_acks()
    assert consuming.unacked() == 0
    (left,) = consuming.submitter.client.lrange(consuming.submitter.queue(), 0, -1)
    assert json.loads(left)["headers"]["id"] == "b"


def test_ending_consumption_leaves_what_has_come_in_its_queue(consuming: Consuming) -> None:
    consuming.channel.client.connection = consuming.channel.client.connection_pool.get_connection()
    consuming.channel._brpop_start(timeout=5)
    consuming.submitter.submit("late")
    consuming.intake.jobs = 0
    consuming.consumer.cancel()
    assert consuming.submitter.waiting() == 1
    assert consuming.messages == []


def test_closing_gives_nothing_back_by_itself(consuming: Consuming) -> None:
    """The stock channel does, on a mere lost connection too: running jobs would run twice."""
    consuming.submitter.submit("running")
    consuming.channel.pull()
    consuming.connection.release()
    assert consuming.submitter.waiting() == 0
    assert consuming.unacked() == 1
    consuming.messages[0].ack()
    consuming.acks.flush(consuming.submitter.client)
    assert consuming.unacked() == 0
