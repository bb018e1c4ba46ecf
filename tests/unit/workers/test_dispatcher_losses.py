"""Jobs of an engine that is lost, of a worker that stops, of one that was away. No process, no Redis."""

from __future__ import annotations

from typing import Any

import msgspec

from common.errors import GenerationFailed
from common.wire import (
    Accepted,
    Cancelled,
    EngineStats,
    Failed,
    Histogram,
)
from tests.unit.workers.dispatching import CARD, Bench, tokens
from workers.answer import Answer, JobReturned
from workers.engine.messages import EngineOutput, Ready
from workers.stats import StatsTotals


class TestEngineLoss:
    def test_watched_jobs_fail_retryably_and_the_others_are_given_again(self) -> None:
        bench = Bench()
        bench.run("accepted")
        given = bench.hold("given")
        unwatched = bench.hold("unwatched", replies=False)
        bench.dispatcher.give()
        bench.hold("waiting")
        bench.dispatcher.on_lost("killed")
        bench.dispatcher.give()
        failed = Failed("generation", "Request failed during generation: killed", retryable=True)
        assert bench.bodies("accepted")[1:] == bench.bodies("given") == [failed]
        assert given.outcomes == [None]
        assert unwatched.outcomes == []
        assert bench.engine.given == ["accepted", "given", "unwatched"]
        bench.dispatcher.on_ready(Ready(CARD))
        assert sorted(bench.engine.given[3:]) == ["unwatched", "waiting"]

    def test_suspects_come_back_one_at_a_time(self) -> None:
        bench = Bench()
        for request in ("a", "b", "c"):
            bench.hold(request, replies=False)
        bench.dispatcher.give()
        bench.dispatcher.on_lost("killed")
        bench.dispatcher.on_ready(Ready(CARD))
        assert bench.engine.given[3:] == ["a"]
        bench.event("a", Accepted(""))
        assert bench.engine.given[3:] == ["a"]
        bench.event("a", tokens(0, last=True))
        assert bench.engine.given[3:] == ["a", "b"]
        bench.event("b", Failed("validation", "x"))
        assert bench.engine.given[3:] == ["a", "b", "c"]

    def test_those_one_loss_from_their_end_run_one_at_a_time(self) -> None:
        bench = Bench()
        for request in ("fresh", "a", "b"):
            bench.hold(request)
        bench.dispatcher.suspect("a")
        bench.dispatcher.suspect("b")
        bench.dispatcher.on_ready(Ready(CARD))
        assert bench.engine.given == []  # Nothing begins before it is known what to think of it.
        bench.dispatcher.give()
        assert bench.engine.given == ["fresh", "a"]
        bench.event("a", Accepted(""))
        bench.dispatcher.on_lost("killed")
        bench.dispatcher.on_ready(Ready(CARD))
        assert bench.engine.given == ["fresh", "a", "b"]
        assert bench.bodies("b") == []

    def test_the_poison_ends_alone(self) -> None:
        bench = Bench(max_attempts=2)
        deliveries = {request: bench.run(request, replies=False) for request in ("good", "poison")}
        for _ in range(2):
            bench.dispatcher.on_lost("killed")
            bench.dispatcher.on_ready(Ready(CARD))
            if "good" in bench.dispatcher.requests():
                assert bench.engine.given[-1] == "good"
                bench.event("good", tokens(0, last=True))
            assert bench.engine.given[-1] == "poison"
        (answer,) = deliveries["good"].outcomes
        assert isinstance(answer, Answer)
        assert answer.as_dict()["tokens"] == [0]
        (error,) = deliveries["poison"].outcomes
        assert isinstance(error, GenerationFailed)

    def test_figures_go_on_counting(self) -> None:
        bench = Bench()
        for _ in range(2):
            stats = EngineStats(running=3, generated_tokens=5, inference_count={"decode": 2})
            bench.dispatcher.on_output(EngineOutput([], stats))
            bench.dispatcher.on_lost("killed")
        total = bench.dispatcher.stats.total()
        assert (total.running, total.generated_tokens, total.inference_count) == (0, 10, {"decode": 4})

    def test_no_figure_is_forgotten(self) -> None:
        """A field added to `EngineStats` must be added up here too."""
        values: dict[str, Any] = {}
        for field in msgspec.structs.fields(EngineStats):
            if field.name.endswith(("_count", "_success", "_failure")):
                values[field.name] = {"x": 1}
            elif field.name.endswith("_seconds"):
                values[field.name] = {"x": Histogram([1, 2], 3.0)}
            else:
                values[field.name] = Histogram([1], 1.0) if field.name == "batch_size" else 1
        totals = StatsTotals()
        totals.update(EngineStats(**values))
        assert totals.total() == EngineStats(**values)
        totals.engine_lost()
        totals.update(EngineStats(**values))
        assert totals.total().inference_seconds == {"x": Histogram([2, 4], 6.0)}


class TestStop:
    def test_unaccepted_jobs_are_taken_back_in_order_and_never_heard_of_again(self) -> None:
        bench = Bench()
        bench.run("running")
        for request in ("a", "b"):
            bench.hold(request)
            bench.dispatcher.give()
        bench.hold("c")
        bench.dispatcher.close()
        assert bench.dispatcher.take_back() == ["tag-a", "tag-b", "tag-c"]
        assert bench.engine.cancelled == ["a", "b"]
        bench.event("a", Accepted(""))
        bench.event("a", Cancelled())
        assert bench.bodies("a") == []
        assert bench.dispatcher.requests() == ["running"]
        # Given back, not ended: this worker may be handed them again.
        assert bench.hold("a").outcomes == []

    def test_watched_jobs_are_handed_over_at_once(self) -> None:
        bench = Bench()
        bench.run("watched")
        bench.event("watched", tokens(0))
        waiting = bench.hold("waiting")
        unwatched = bench.run("unwatched", replies=False)
        waiting_again = bench.hold("waiting")
        assert bench.dispatcher.hand_over("stopped") == 2
        body = bench.bodies("watched")[-1]
        assert body == Failed("generation", "Request failed during generation: stopped", True, True)
        assert bench.bodies("waiting") == [body]
        assert bench.engine.cancelled == ["watched", "waiting"]
        assert (waiting.outcomes, waiting_again.outcomes, unwatched.outcomes) == ([], [None], [])
        bench.event("watched", tokens(1))
        assert bench.bodies("watched")[-1] == body
        assert bench.dispatcher.requests() == ["unwatched"]
        assert bench.dispatcher.hand_over("stopped") == 0


class TestReaped:
    """Others have the job of a worker that was away."""

    def test_what_is_not_accepted_or_not_watched_is_let_go(self) -> None:
        bench = Bench()
        bench.run("watched")
        given = bench.hold("given")
        bench.dispatcher.give()
        unwatched = bench.run("unwatched", replies=False)
        open_deliveries = bench.dispatcher.open_deliveries()
        assert [entry.request for entry in open_deliveries] == ["given", "unwatched"]
        for entry in open_deliveries:
            bench.dispatcher.reaped(entry)
        assert bench.dispatcher.requests() == ["watched"]
        assert bench.engine.cancelled == ["given", "unwatched"]
        assert bench.bodies("given") == []
        for delivery in (given, unwatched):
            (outcome,) = delivery.outcomes
            assert isinstance(outcome, JobReturned)
        # It may come here again.
        assert bench.hold("given").outcomes == []

    def test_one_accepted_meanwhile_is_handed_over(self) -> None:
        bench = Bench()
        bench.hold("a")
        bench.dispatcher.give()
        (entry,) = bench.dispatcher.open_deliveries()
        bench.event("a", Accepted(""))
        bench.dispatcher.reaped(entry)
        body = bench.bodies("a")[-1]
        assert isinstance(body, Failed)
        assert (body.retryable, body.handed_over) == (True, True)

    def test_one_that_came_back_stays(self) -> None:
        bench = Bench()
        bench.hold("a")
        (entry,) = bench.dispatcher.open_deliveries()
        bench.hold("a")
        bench.dispatcher.reaped(entry)
        assert bench.dispatcher.requests() == ["a"]
