"""Whose job is taken next: tenants, their weights, batch work that is overdue, and what is told to those who must wait."""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from common.celery_message import celery_message
from common.client.control import _CANCEL
from common.client.dispatch import SUBMIT
from common.queue_depth import QueueDepth, queue_depth_sync
from common.reaper import hand_back
from tests.integration.workers.support import Submitter
from tests.integration.workers.test_transport import Puller


@pytest.fixture
def puller(submitter: Submitter) -> Puller:
    return Puller(submitter)


def drain(puller: Puller, **options: Any) -> Iterator[str]:
    """The requests in the order in which a worker takes them that has room for one at a time."""
    while True:
        _, taken = puller.pull(total=1, **options)
        if not taken:
            return
        yield from taken


def beside(puller: Puller) -> set[str]:
    """Names of what there is of the queues."""
    names = {name.decode() for name in puller.submitter.client.scan_iter("tgq:queue:*")}
    return {name for name in names if not name.endswith(":drained")}


def test_a_flood_of_one_tenant_delays_anothers_job_by_one_of_its_own(puller: Puller) -> None:
    for number in range(200):
        puller.submitter.submit(f"a{number}", 100, tenant="a")
    order = drain(puller)
    assert [next(order) for _ in range(20)] == [f"a{number}" for number in range(20)]
    puller.submitter.submit("b0", 100, tenant="b")
    assert "b0" in [next(order), next(order)]
    # In the meantime nothing was lost, and within a tenant the order is kept.
    assert [request for request in order if request != "b0"] == [f"a{number}" for number in range(21, 200)]


def test_turns_go_by_tokens_not_by_jobs(puller: Puller) -> None:
    for number in range(10):
        puller.submitter.submit(f"long{number}", 90, prompt_ids=[1] * 10, tenant="long")
    for number in range(100):
        puller.submitter.submit(f"short{number}", 5, prompt_ids=[1] * 5, tenant="short")
    order = drain(puller)
    first = [next(order) for _ in range(44)]
    assert sum(request.startswith("long") for request in first) in (4, 5)
    # As answers come out shorter than they may, jobs count with less.
    rest = drain(puller, answer=10)
    assert next(rest)


def test_a_tenant_with_twice_the_weight_gets_twice_as_much(puller: Puller) -> None:
    for number in range(60):
        puller.submitter.submit(f"a{number}", 8, tenant="a")
        puller.submitter.submit(f"b{number}", 8, tenant="b", weight=2.0)
    order = drain(puller)
    first = [next(order)[0] for _ in range(60)]
    assert 38 <= first.count("b") <= 42


def test_idling_saves_nothing_up(puller: Puller) -> None:
    for number in range(40):
        puller.submitter.submit(f"a{number}", 10, tenant="a")
    order = drain(puller)
    for _ in range(20):
        next(order)
    for number in range(20):
        puller.submitter.submit(f"b{number}", 10, tenant="b")
    following = [next(order)[0] for _ in range(10)]
    assert 4 <= following.count("b") <= 6


def test_other_producers_are_a_tenant_of_their_own(puller: Puller) -> None:
    client, queue = puller.submitter.client, puller.interactive
    for number in range(20):
        puller.submitter.submit(f"a{number}", 10, tenant="a")
    for number in range(3):
        client.lpush(queue, celery_message(puller.submitter.job(f"plain{number}", 10), queue))
    first = [request for request, _ in zip(drain(puller), range(7), strict=False)]
    assert {"plain0", "plain1", "plain2"} <= set(first)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_is_that_of_start_time_fair_queueing(puller: Puller, seed: int) -> None:
    """Beside a model that knows nothing of Redis: jobs come, are taken and come back at random."""
    chance = random.Random(seed)
    waiting: dict[str, deque[tuple[str, int]]] = defaultdict(deque)
    turn: dict[str, float] = {}
    weights = {"": 1.0, "a": 0.5, "b": 1.0, "ü/ :": 4.0}
    virtual, number = 0.0, 0
    for _ in range(150):
        if chance.random() < 0.55:
            tenant, tokens = chance.choice(list(weights)), chance.choice([2, 8, 62])
            puller.submitter.submit(f"r{number}", tokens, tenant=tenant, weight=weights[tenant])
            waiting[tenant].append((f"r{number}", tokens + 2))
            turn[tenant] = max(turn.get(tenant, 0.0), virtual)
            number += 1
            continue
        while turn and not waiting[first := min(turn, key=lambda tenant: (turn[tenant], quoted(tenant)))]:
            virtual = turn.pop(first)
        _, taken = puller.pull(total=1)
        if not turn:
            assert taken == []
            virtual = 0.0
            continue
        request, cost = waiting[first].popleft()
        assert taken == [request]
        virtual, turn[first] = turn[first], turn[first] + cost / weights[first]
        depth = queue_depth_sync(puller.submitter.client, puller.interactive)
        assert depth == (
            sum(map(len, waiting.values())),
            sum(tokens for jobs in waiting.values() for _, tokens in jobs),
        )
    assert len(list(drain(puller))) == sum(map(len, waiting.values()))
    assert beside(puller) == set()


def quoted(tenant: str) -> bytes:
    """Members of a sorted set with the same score are in the order of their bytes."""
    return {"ü/ :": b"%C3%BC%2F%20%3A"}.get(tenant, tenant.encode())


def test_what_a_worker_gives_back_is_its_tenants_next(puller: Puller) -> None:
    client = puller.submitter.client
    for number in range(6):
        puller.submitter.submit(f"a{number}", 10, tenant="a")
        puller.submitter.submit(f"b{number}", 10, tenant="b")
    _, pulled = puller.pull(total=4)
    assert sorted(pulled) == ["a0", "a1", "b0", "b1"]
    assert hand_back(client, puller.keys, "w") == 4
    assert queue_depth_sync(client, puller.interactive) == (12, 12 * 12)
    order = list(drain(puller))
    assert sorted(order[:4]) == ["a0", "a1", "b0", "b1"]
    for tenant in "ab":
        assert [r for r in order if r.startswith(tenant)] == [f"{tenant}{number}" for number in range(6)]


def test_the_limit_is_that_of_all_tenants_and_says_when_to_come_back(puller: Puller) -> None:
    client, queue = puller.submitter.client, puller.interactive

    def push(request: str, tenant: str, limit: int = 4) -> Any:
        job = puller.submitter.job(request, 98, tenant=tenant)
        return client.eval(SUBMIT, 1, queue, str(limit), celery_message(job, queue))

    assert [push(f"r{n}", tenant)[0] for n, tenant in enumerate(["", "a", "a", "b"])] == [0, 1, 2, 3]
    # Nothing has been taken lately: as long as a mean takes.
    assert push("r4", "c") == [-1, 10]
    assert queue_depth_sync(client, queue) == QueueDepth(4, 400)
    # 300 tokens since a second ago at the most, 100 are left.
    puller.pull(total=3)
    refused, seconds = push("r5", "", 1)
    assert refused == -1
    assert 1 <= seconds <= 2
    # Ten seconds later as much again is in line; nothing else was taken meanwhile.
    key = f"{queue}:drained"
    for field in ("at", "since"):
        value = client.hget(key, field)
        assert value is not None
        client.hset(key, field, str(float(value) - 10))
    refused, seconds = push("r6", "", 1)
    # 300 tokens that have faded for one time constant, over 10 s and what of it was seen: 6, and more with every moment
    # since. It would be 3 if they did not fade, and 9 over all of the 10 s.
    assert refused == -1
    assert 5 <= seconds <= 8
    assert 0 < client.ttl(key) <= 120


def test_a_cancelled_job_leaves_its_tenants_list_and_nothing_behind(puller: Puller) -> None:
    client, queue = puller.submitter.client, puller.interactive
    jobs = [puller.submitter.submit(f"r{number}", 10, tenant="a") for number in range(2)]
    messages: list[Any] = client.lrange(puller.keys.tenant_queue(queue, "a"), 0, -1)
    assert len(jobs) == len(messages) == 2
    for message, left in zip(messages, (QueueDepth(1, 12), QueueDepth(0, 0)), strict=True):
        marks = [queue, puller.keys.cancelled("r")]
        assert client.eval(_CANCEL, 2, *marks, message, "60", puller.keys.control, b"") == 1
        assert queue_depth_sync(client, queue) == left
    assert beside(puller) == set()
    assert not client.exists(puller.keys.cancelled("r"))


def test_what_must_not_start_any_more_is_in_nobodys_way(puller: Puller) -> None:
    puller.submitter.submit("late", 100, deadline=time.time() - 1, tenant="a")
    puller.submitter.submit("fits", 3, tenant="a")
    assert puller.pull((10, 5)) == (0, ["late", "fits"])


def test_a_job_counts_with_the_answer_that_is_expected(puller: Puller) -> None:
    for number in range(4):
        puller.submitter.submit(f"r{number}", 900, prompt_ids=[1] * 10, tenant="a")
    assert puller.pull((10, 95), answer=30) == (40, ["r0", "r1"])
    assert puller.pull((10, 95)) == (910, [])


class TestOverdueBatchWork:
    def submit(self, puller: Puller, request: str, job_class: Any, *, age: float = 0.0) -> None:
        puller.submitter.submit(request, 98, job_class=job_class, submitted_at=time.time() - age)

    def test_starts_at_its_share_while_interactive_work_never_ends(self, puller: Puller) -> None:
        for number in range(30):
            self.submit(puller, f"b{number}", "batch", age=100)
        taken = []
        for number in range(120):
            self.submit(puller, f"i{number}", "interactive")
            self.submit(puller, f"j{number}", "interactive")
            # A worker whose slots are full, of which one is free: no room for batch work.
            taken += puller.pull((1, 1000), (0, 0), total=1)[1]
        batch = [request for request in taken if request.startswith("b")]
        assert batch == [f"b{number}" for number in range(len(batch))]
        # A tenth of the interactive tokens, and interactive work goes on.
        assert 9 <= len(batch) <= 12

    def test_waits_its_time_before(self, puller: Puller) -> None:
        self.submit(puller, "b", "batch", age=30)
        for number in range(40):
            self.submit(puller, f"i{number}", "interactive")
        assert not any("b" in puller.pull((1, 1000), (0, 0), total=1)[1] for _ in range(40))
        # Its credit is kept, though never more than one worker's room.
        self.submit(puller, "i", "interactive")
        assert puller.pull((1, 1000), (0, 0), total=1, overdue=(20.0, 0.1))[1] == ["b"]

    def test_that_is_large_is_not_overtaken_for_ever(self, puller: Puller) -> None:
        puller.submitter.submit("b", 998, job_class="batch", submitted_at=time.time() - 100)
        for number in range(120):
            self.submit(puller, f"i{number}", "interactive")
        while puller.pull((1, 500), (0, 0), total=1, capacity=1000) != (1000, []):
            pass
        left = puller.submitter.waiting()
        assert 0 < left < 40
        assert puller.pull((1, 1000), (0, 0), total=1, capacity=1000) == (0, ["b"])


def test_scripts_leave_nothing_half_done_when_memory_runs_out(puller: Puller) -> None:
    client, queue = puller.submitter.client, puller.interactive
    puller.submitter.submit("in", 10, tenant="a")
    before = {name: client.dump(name) for name in beside(puller)}
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.OutOfMemoryError):
            client.eval(SUBMIT, 1, queue, "10", celery_message(puller.submitter.job("out", tenant="b"), queue))
        assert {name: client.dump(name) for name in beside(puller)} == before
        assert puller.pull() == (0, ["in"])
    finally:
        client.config_set("maxmemory", "0")
