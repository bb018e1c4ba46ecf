"""What a job spends its time with at a worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from common.errors import GenerationFailed
from common.keys import Keys
from common.parameters import GenerationParameters
from common.tracing.tracing import Tracing
from common.wire import Cancelled, Failed, Finish, FrameBody, Job, Token, Tokens
from tests.unit.workers.dispatching import Bench, tokens
from workers.job_spans import JobSpans, Moments, stages

SECOND = 10**9
TAKEN, ACCEPTED, FIRST, END = 100 * SECOND, 101 * SECOND, 104 * SECOND, 110 * SECOND


def ended(inference_seconds: float) -> Tokens:
    return Tokens(5, [], Finish("length", 6, inference_seconds))


def moments(last: FrameBody | None, *, accepted: int = ACCEPTED, first_token: int = FIRST) -> Moments:
    return Moments("q", TAKEN, accepted, first_token, 6, last)


def test_the_stages_follow_one_another() -> None:
    assert stages(moments(ended(8.0)), 90.0, END) == [
        ("queued", 90 * SECOND, 102 * SECOND),
        ("prefill", 102 * SECOND, FIRST),
        ("decode", FIRST, END),
    ]


@pytest.mark.parametrize("inference_seconds", [0.0, 5.0, 60.0])
def test_no_stage_ends_before_it_begins(inference_seconds: float) -> None:
    """The engine's figures and the moments its messages arrive here need not agree."""
    for sent_at in (None, 90.0, 500.0):
        found = stages(moments(ended(inference_seconds)), sent_at, END)
        assert all(begin <= end for _, begin, end in found)
        assert [end for _, _, end in found[:-1]] == [begin for _, begin, _ in found[1:]]
        assert found[0][1] <= TAKEN


def test_a_job_that_never_began_was_queued_all_the_time() -> None:
    assert stages(moments(Cancelled(), accepted=0, first_token=0), 90.0, END) == [("queued", 90 * SECOND, END)]


def test_a_job_that_was_broken_off_counts_as_begun_when_it_was_accepted() -> None:
    begun = [("queued", 90 * SECOND, ACCEPTED), ("prefill", ACCEPTED, FIRST), ("decode", FIRST, END)]
    assert stages(moments(Cancelled()), 90.0, END) == begun
    assert stages(moments(Cancelled(), first_token=0), 90.0, END) == [begun[0], ("prefill", ACCEPTED, END)]


def test_another_engine_begins_again() -> None:
    held = moments(None)
    held.accept()
    assert held.accepted > FIRST
    assert (held.first_token, held.generated) == (0, 0)


@pytest.mark.parametrize(
    ("bodies", "outcome", "error"),
    [
        ([Tokens(0, [Token(1, "x", -1.0, False)], Finish("length", 1, 0.1))], "finished", None),
        ([Failed(GenerationFailed.error_type, "private", True)], "failed", "generation"),
        ([Failed(GenerationFailed.error_type, "private", True, True)], "handed_over", None),
        ([Cancelled()], "cancelled", None),
        ([], "returned", None),
    ],
)
def test_how_it_ended(
    bodies: list[FrameBody], outcome: str, error: str | None, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    spans = JobSpans(tracing, Keys())
    parameters = GenerationParameters(max_new_tokens=9, seed=5)
    job = Job(id="j", model="m", prompt_ids=[1], parameters=parameters, submitted_at=0.0, job_class="batch")
    held = spans.taken(job)
    for body in bodies:
        held.heard(body)
    spans.ended(job, "tag", held)
    consumer = exporter.get_finished_spans()[-1]
    assert consumer.name == "process tgq:queue:m:batch"
    assert consumer.attributes is not None
    assert consumer.attributes["tgq.outcome"] == outcome
    assert consumer.attributes.get("error.type") == error
    assert consumer.status.is_unset == (error is None)
    assert "private" not in consumer.to_json()


ENDS: dict[str, tuple[Callable[[Bench], object], str]] = {
    "last token": (lambda bench: bench.event("a", tokens(1, last=True)), "finished"),
    "cancelled": (lambda bench: bench.event("a", Cancelled()), "cancelled"),
    "its engine is lost": (lambda bench: bench.dispatcher.on_lost("killed"), "failed"),
    "handed over": (lambda bench: bench.dispatcher.hand_over("stopping"), "handed_over"),
    "another attempt comes": (lambda bench: bench.hold("a", attempt=2), "returned"),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_job_that_is_held_has_one_span_however_it_ends(
    end: str, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    bench = Bench(spans=JobSpans(tracing, Keys()))
    bench.run("a", job_class="batch", trace={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
    bench.event("a", tokens(0))
    assert not exporter.get_finished_spans()
    act, outcome = ENDS[end]
    act(bench)
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["queued", "prefill", "decode", "process tgq:queue:m:batch"]
    process = exporter.get_finished_spans()[-1]
    assert process.attributes is not None
    assert process.attributes["tgq.outcome"] == outcome
    assert process.attributes["messaging.message.id"] == "tag-a"
    assert process.parent is not None
    assert f"{process.parent.span_id:016x}" == "b" * 16


def test_a_job_taken_back_was_only_queued(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    bench = Bench(spans=JobSpans(tracing, Keys()))
    bench.hold("a")
    bench.dispatcher.take_back()
    assert [span.name for span in exporter.get_finished_spans()] == ["queued", "process tgq:queue:m:interactive"]
