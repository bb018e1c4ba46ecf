"""The pull script alone: what it takes, registers and leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from common.celery_message import celery_message
from common.keys import Keys
from common.reaper import hand_back
from tests.integration.workers.support import Submitter
from workers.acks import Acks
from workers.pull_script import PULL


class Puller:
    def __init__(self, submitter: Submitter) -> None:
        self.submitter = submitter
        self.keys = submitter.keys
        self.interactive, self.batch = submitter.queue(), submitter.queue("batch")

    def pull(
        self,
        interactive: tuple[int, int] = (100, 10_000),
        batch: tuple[int, int] | None = None,
        *,
        capacity: int = 10_000,
        total: int = 100,
        answer: int = 2**31,
        overdue: tuple[float, float] = (60.0, 0.1),
    ) -> tuple[int, list[str]]:
        """Cost of a blocked head, and the requests taken."""
        limits = [*interactive, *(batch or interactive)]
        keys = self.keys
        names = [
            keys.unacked("w"),
            keys.unacked_index("w"),
            keys.dead,
            keys.workers,
            self.interactive,
            self.batch,
        ]
        arguments: list[str | int | float] = ["w", total, capacity, 10, answer, *overdue, *limits]
        blocked, *pulled = self.submitter.client.register_script(PULL)(keys=names, args=arguments)
        tags = [tag.decode() for tag in pulled[::4]]
        messages = [json.loads(message) for message in pulled[2::4]]
        assert {queue.decode() for queue in pulled[1::4]} <= {self.interactive, self.batch}
        assert tags == [message["properties"]["delivery_tag"] for message in messages]
        return blocked, [message["headers"]["id"] for message in messages]

    def registered(self) -> list[str]:
        """Requests in the unacked hash, oldest first, each with kombu's own entry format."""
        client = self.submitter.client
        tags: list[Any] = client.zrange(self.keys.unacked_index("w"), 0, -1)
        entries: list[Any] = client.hmget(self.keys.unacked("w"), tags) if tags else []
        decoded = [json.loads(entry) for entry in entries]
        assert {(exchange, key) for _, exchange, key in decoded} <= {("", self.interactive), ("", self.batch)}
        return [message["headers"]["id"] for message, _, _ in decoded]


@pytest.fixture
def puller(submitter: Submitter) -> Puller:
    return Puller(submitter)


def test_takes_in_order_and_registers_each(puller: Puller) -> None:
    for number in range(20):
        puller.submitter.submit(f"r{number:02}")
    assert puller.pull(total=8) == (0, [f"r{number:02}" for number in range(8)])
    assert puller.registered() == [f"r{number:02}" for number in range(8)]
    assert puller.submitter.waiting() == 12


def test_interactive_before_batch_and_each_within_its_room(puller: Puller) -> None:
    for number in range(4):
        puller.submitter.submit(f"b{number}", job_class="batch")
    for number in range(3):
        puller.submitter.submit(f"i{number}")
    assert puller.pull((6, 1000), (4, 1000)) == (0, ["i0", "i1", "i2", "b0"])
    assert puller.pull((2, 1000), (0, 1000)) == (0, [])
    assert puller.pull((2, 1000), (-1, 1000)) == (0, [])


def test_stops_at_the_first_that_does_not_fit(puller: Puller) -> None:
    for number, cost in enumerate([100, 200, 300, 10]):
        puller.submitter.submit(f"r{number}", 1, prompt_ids=[1] * (cost - 1))
    puller.submitter.submit("batch", 1, job_class="batch")
    assert puller.pull((10, 350)) == (300, ["r0", "r1"])
    # Nothing overtakes it, and nothing is lost.
    assert puller.pull((10, 299)) == (300, [])
    assert puller.pull((10, 310)) == (0, ["r2", "r3"])


def test_batch_may_have_less_room_for_tokens(puller: Puller) -> None:
    puller.submitter.submit("i", 1, prompt_ids=[1] * 49)
    puller.submitter.submit("b", 1, prompt_ids=[1] * 49, job_class="batch")
    assert puller.pull((10, 100), (9, 90)) == (0, ["i"])


def test_takes_what_can_never_fit_to_have_it_refused(puller: Puller) -> None:
    puller.submitter.submit("huge", 1, prompt_ids=[1] * 500)
    puller.submitter.submit("next", 1)
    assert puller.pull((10, 5), capacity=400) == (0, ["huge", "next"])


def test_reads_messages_of_stock_producers(puller: Puller) -> None:
    """Kombu's JSON has spaces after colons; without a cost header a message counts as one token."""
    message = json.loads(celery_message(puller.submitter.job("plain"), puller.interactive))
    del message["headers"]["cost"]
    puller.submitter.client.lpush(puller.interactive, json.dumps(message))
    assert puller.pull((10, 1)) == (0, ["plain"])


def test_goes_back_to_the_queue_it_was_taken_from(puller: Puller) -> None:
    """A producer may route through an exchange of its own; then the routing key names no queue."""
    message = celery_message(puller.submitter.job("routed"), puller.interactive)
    message = message.replace(b'"exchange":""', b'"exchange":"theirs"')
    message = message.replace(b'"routing_key":"' + puller.interactive.encode(), b'"routing_key":"elsewhere')
    puller.submitter.client.lpush(puller.interactive, message)
    puller.pull()
    assert hand_back(puller.submitter.client, puller.keys, "w") == 1
    assert puller.submitter.client.lrange(puller.interactive, 0, -1) == [message]


@pytest.mark.parametrize("junk", [b"", b"junk", b'{"properties":{}}', b"\xff\x00" * 5000])
def test_junk_is_buried_without_its_text(puller: Puller, junk: bytes) -> None:
    puller.submitter.client.lpush(puller.interactive, junk)
    puller.submitter.submit("good")
    assert puller.pull() == (0, ["good"])
    dead = [json.loads(entry) for entry in puller.submitter.client.lrange(puller.keys.dead, 0, -1)]
    assert dead == [{"error": "not a Celery message", "bytes": len(junk), "queue": puller.interactive}]


def test_a_full_redis_is_emptied(puller: Puller) -> None:
    """The way out of a full memory is to run the jobs."""
    client = puller.submitter.client
    puller.submitter.submit("kept")
    client.config_set("maxmemory", "1")
    try:
        assert puller.pull() == (0, ["kept"])
        assert puller.registered() == ["kept"]
    finally:
        client.config_set("maxmemory", "0")


def test_whoever_takes_work_can_be_found_by_a_reaper(puller: Puller) -> None:
    client, workers = puller.submitter.client, puller.keys.workers
    puller.pull()
    assert client.zscore(workers, "w") is not None
    client.zadd(workers, {"w": 1.0})
    puller.pull()
    assert client.zscore(workers, "w") == 1.0  # Only a heartbeat says that it lives.


class TestAcks:
    def test_survive_a_failed_flush(self, puller: Puller) -> None:
        puller.submitter.submit("a")
        puller.submitter.submit("b")
        puller.pull()
        client = puller.submitter.client
        acks = Acks(puller.keys, "w")
        tags: list[Any] = client.zrange(puller.keys.unacked_index("w"), 0, -1)
        first, second = (tag.decode() for tag in tags)
        acks.opened(first)
        acks.opened(second)
        acks.ack(first)
        with redis.Redis(port=1, socket_connect_timeout=1) as nobody, pytest.raises(redis.ConnectionError):
            acks.flush(nobody)
        acks.flush(client)
        acks.flush(client)
        assert puller.registered() == ["b"]

    def test_return_what_was_not_begun(self, puller: Puller) -> None:
        for request in ("a", "b", "c", "d"):
            puller.submitter.submit(request)
        puller.pull()
        client = puller.submitter.client
        acks = Acks(puller.keys, "w")
        tags: list[Any] = client.zrange(puller.keys.unacked_index("w"), 0, -1)
        first, second, third, _ = (tag.decode() for tag in tags)
        acks.ack(first)
        acks.give_back([second, third])
        acks.give_back(["known to nobody"])
        with redis.Redis(port=1, socket_connect_timeout=1) as nobody, pytest.raises(redis.ConnectionError):
            acks.flush(nobody)
        acks.flush(client)
        assert puller.registered() == ["d"]
        assert puller.pull() == (0, ["b", "c"])

    def test_know_what_never_arrived(self) -> None:
        acks = Acks(Keys(), "w")
        acks.opened("open")
        acks.opened("acked")
        acks.ack("acked")
        acks.opened("returned")
        acks.give_back(["returned"])
        assert acks.unknown(["open", "acked", "returned", "lost"]) == ["lost"]
