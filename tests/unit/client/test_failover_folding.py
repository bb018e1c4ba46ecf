"""Whatever becomes of a request's attempts and of the order of their frames: each token arrives once, in its place."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.client import GenerationClient, TokenStream
from common.client.progress import Progress, TokensMissing
from common.errors import IncompleteGeneration
from common.parameters import GenerationParameters
from common.settings import Settings
from common.wire import Accepted, Finish, Frame, FrameBody, Job, Token, Tokens

CLIENT = GenerationClient(Settings.of(redis_url="redis://127.0.0.1:1/0", max_attempts=100))


def _tokens(child: int, start: int, stop: int) -> list[Token]:
    return [Token(1000 * child + index, f"<{index}>", None, False) for index in range(start, stop)]


def _attempt(data: st.DataObject, job: Job, lengths: list[int]) -> list[Frame]:
    """The frames of an engine that goes on from the job's tokens, its children in an order of its own."""
    ids = [job.generated_ids, *job.sibling_ids]
    ids += [[] for _ in range(len(lengths) - len(ids))]
    bodies: list[FrameBody] = [Accepted("w")]
    left = {child: len(ids[child]) for child in range(len(lengths))}
    for child in [child for child, start in left.items() if start == lengths[child]]:
        del left[child]
        bodies.append(Tokens(lengths[child], [], Finish("length", lengths[child], 0.1), child, len(left)))
    while left:
        child = data.draw(st.sampled_from(sorted(left)), label="child")
        start = left[child]
        stop = left[child] = data.draw(st.integers(start + 1, lengths[child]), label="tokens")
        end = None
        if stop == lengths[child]:
            del left[child]
            end = Finish("length", stop, 0.1)
        bodies.append(Tokens(start, _tokens(child, start, stop), end, child, len(left) if end else 0))
    return [Frame(job.id, job.attempt, sequence, body) for sequence, body in enumerate(bodies)]


def _read(stream: TokenStream) -> list[Tokens]:
    steps = []
    while stream._unread:
        steps.append(stream._unread.take())
    return steps


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_each_token_once_and_in_its_place(data: st.DataObject) -> None:
    asyncio.run(_any_order(data))


async def _any_order(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3), label="lengths")
    job = CLIENT.new_job([1], GenerationParameters(max_new_tokens=6, seed=1, children=len(lengths)))
    stream = CLIENT.generate(job)
    CLIENT._relay.open(job.id, stream)
    everything: list[tuple[str, Frame]] = []
    steps: list[Tokens] = []
    for number in range(data.draw(st.integers(1, 3), label="attempts")):
        if stream.ended:
            break
        if number:
            stream._fail_over("worker_lost", "its worker was lost", time.monotonic())
            assert stream.job.attempt == number + 1
        worker = data.draw(st.sampled_from("vw"), label="worker")
        frames = _attempt(data, stream.job, lengths)
        everything += [(worker, frame) for frame in frames]
        # Frames of this and of all earlier attempts, lost, doubled and in any order.
        for worker, frame in data.draw(st.lists(st.sampled_from(everything), max_size=25), label="arrivals"):
            stream.receive(worker, frame, time.monotonic())
            if data.draw(st.booleans(), label="read"):
                steps += _read(stream)
    for worker, frame in everything:
        stream.receive(worker, frame, time.monotonic())
    steps += _read(stream)
    assert stream.ended
    assert stream.error is None
    for child, length in enumerate(lengths):
        heard: list[Token] = []
        for step in steps:
            if step.child == child:
                assert step.offset == len(heard)
                heard += step.tokens
        assert heard == _tokens(child, 0, length)
        assert [step.finish for step in steps if step.child == child and step.finish] == [Finish("length", length, 0.1)]
    assert [step.ends for step in steps] == [False] * (len(steps) - 1) + [True]
    assert [stream.generated_ids, *stream.sibling_ids] == [
        [token.id for token in _tokens(child, 0, length)] for child, length in enumerate(lengths)
    ]


def test_progress_takes_what_is_new() -> None:
    job = CLIENT.new_job([1], GenerationParameters(max_new_tokens=6, seed=1, children=2))
    progress = Progress(job)
    end = Finish("length", 3, 0.1)
    first = Tokens(0, _tokens(0, 0, 2))
    assert progress.take(first) is first
    assert progress.take(first) is None
    assert progress.take(Tokens(1, _tokens(0, 1, 3))) == Tokens(2, _tokens(0, 2, 3))
    assert progress.take(Tokens(3, [])) is None
    # The end may come by itself, and does so once.
    assert progress.take(Tokens(3, [], end, 0, 0)) == Tokens(3, [], end, 0, 1)
    assert progress.take(Tokens(3, [], end, 0, 0)) is None
    assert progress.take(Tokens(0, _tokens(1, 0, 3), end, 1, 1)) == Tokens(0, _tokens(1, 0, 3), end, 1, 0)
    assert (progress.total, progress.unfinished) == (6, set())
    with pytest.raises(TokensMissing):
        progress.take(Tokens(5, _tokens(0, 5, 6)))
    with pytest.raises(IncompleteGeneration):
        progress.take(Tokens(0, _tokens(2, 0, 1), None, 2))
