"""A stream fed by hand: no Redis, no clock but the one passed in."""

from __future__ import annotations

import time

import pytest

from common.client import GenerationClient, TokenStream
from common.errors import DeadlineExceeded, IncompleteGeneration
from common.parameters import GenerationParameters
from common.settings import Settings
from common.wire import Accepted, Finish, Frame, FrameBody, Token, Tokens

PARAMETERS = GenerationParameters(max_new_tokens=9, seed=1)


@pytest.fixture
def client() -> GenerationClient:
    return GenerationClient(Settings.of(redis_url="redis://127.0.0.1:1/0", queue_timeout=30.0, stall_timeout=5.0))


def _opened(client: GenerationClient, generated_ids: list[int] | None = None) -> TokenStream:
    job = client.new_job([1, 2], PARAMETERS)
    stream = client.generate(job)
    stream.generated_ids.extend(generated_ids or [])
    client._relay.open(job.id, stream)
    return stream


def _feed(stream: TokenStream, sequence: int, body: FrameBody, now: float | None = None) -> None:
    frame = Frame(stream.job.id, 1, sequence, body)
    stream.receive("worker", frame, time.monotonic() if now is None else now)


def _token(index: int) -> Token:
    return Token(index, f"<{index}>", None, False)


async def test_what_waits_is_merged_and_the_end_comes_with_it(client: GenerationClient) -> None:
    stream = _opened(client)
    _feed(stream, 0, Accepted("worker"))
    _feed(stream, 1, Tokens(0, [_token(0), _token(1)]))
    _feed(stream, 2, Tokens(2, [], Finish("eos_token", 2, 0.5)))
    assert [step async for step in stream] == [Tokens(0, [_token(0), _token(1)], Finish("eos_token", 2, 0.5))]
    assert stream.ended
    assert client.open_streams == 0


async def test_a_later_attempt_goes_on_behind_the_tokens_so_far(client: GenerationClient) -> None:
    stream = _opened(client, [0, 1])
    _feed(stream, 0, Accepted("worker"))
    _feed(stream, 1, Tokens(2, [_token(2)], Finish("length", 3, 0.5)))
    assert [step.tokens async for step in stream] == [[_token(2)]]
    assert stream.generated_ids == [0, 1, 2]


async def test_limits_of_time(client: GenerationClient) -> None:
    queued, silent, lively = _opened(client), _opened(client), _opened(client)
    now = time.monotonic()
    for stream in (silent, lively):
        _feed(stream, 0, Accepted("worker"), now)
    client._watch.interrupted()
    _feed(lively, 1, Tokens(0, [_token(0)]), now + 4)
    for stream in (queued, silent, lively):
        stream.check(now + 5.5)
    assert isinstance(silent.error, IncompleteGeneration)
    assert (queued.error, lively.error) == (None, None)
    queued.check(now + 31)
    assert isinstance(queued.error, DeadlineExceeded)


async def test_a_process_that_stood_still_reads_before_it_judges(client: GenerationClient) -> None:
    stream = _opened(client)
    _feed(stream, 0, Accepted("worker"), time.monotonic() - 60)
    client._last_sweep = time.monotonic() - 59
    await client._sweep()
    assert stream.error is None
    client._judges_from = 0.0
    # The pause was no silence.
    await client._sweep()
    assert stream.error is None
    client._judges_from = 0.0
    stream.check(time.monotonic() + 15)
    assert isinstance(stream.error, IncompleteGeneration)


async def test_a_stream_closed_before_it_is_entered_sends_nothing(client: GenerationClient) -> None:
    stream = client.generate(client.new_job([1], PARAMETERS))
    stream.close()
    with pytest.raises(IncompleteGeneration):
        await stream.__aenter__()
    assert client.idle


async def test_one_reader_at_a_time(client: GenerationClient) -> None:
    stream = _opened(client)
    waiting = stream.__anext__()
    waiting.send(None)
    with pytest.raises(RuntimeError, match="one reader"):
        await anext(stream)
    waiting.close()


async def test_children_are_merged_each_for_itself(client: GenerationClient) -> None:
    job = client.new_job([1, 2], GenerationParameters(max_new_tokens=9, seed=1, children=3))
    stream = client.generate(job)
    client._relay.open(job.id, stream)
    end = Finish("length", 2, 0.5)
    bodies: list[FrameBody] = [
        Accepted("worker"),
        Tokens(0, [_token(0)], None, 1),
        Tokens(1, [_token(1)], end, 1, 2),
        Tokens(0, [_token(5)], None, 0),
        Tokens(0, [_token(7), _token(8)], end, 2, 1),
        Tokens(1, [_token(6)], end, 0, 0),
    ]
    for sequence, body in enumerate(bodies[:-1]):
        _feed(stream, sequence, body)
    assert client.open_streams == 1
    _feed(stream, len(bodies) - 1, bodies[-1])
    assert [step async for step in stream] == [
        Tokens(0, [_token(0), _token(1)], end, 1, 2),
        Tokens(0, [_token(5)], None, 0),
        Tokens(0, [_token(7), _token(8)], end, 2, 1),
        Tokens(1, [_token(6)], end, 0, 0),
    ]
    assert stream.ended
    assert (stream.generated_ids, stream.sibling_ids) == ([5, 6], [[0, 1], [7, 8]])
    assert client.open_streams == 0


async def test_a_second_worker_ends_children_once_and_in_its_own_order(client: GenerationClient) -> None:
    job = client.new_job([1, 2], GenerationParameters(max_new_tokens=9, seed=1, children=2))
    stream = client.generate(job)
    client._relay.open(job.id, stream)
    end = Finish("length", 1, 0.5)
    _feed(stream, 0, Accepted("worker"))
    _feed(stream, 1, Tokens(0, [_token(0)], end, 0, 1))
    again: list[FrameBody] = [
        Accepted("second"),
        Tokens(0, [_token(1)], end, 1, 1),
        Tokens(0, [_token(0)], end, 0, 0),
    ]
    for sequence, body in enumerate(again):
        stream.receive("second", Frame(job.id, 1, sequence, body), time.monotonic())
    assert [(step.child, step.tokens, step.ends) async for step in stream] == [
        (0, [_token(0)], False),
        (1, [_token(1)], True),
    ]


async def test_a_child_nobody_asked_for_is_an_error(client: GenerationClient) -> None:
    stream = _opened(client)
    _feed(stream, 0, Accepted("worker"))
    _feed(stream, 1, Tokens(0, [_token(0)], None, 1))
    with pytest.raises(IncompleteGeneration):
        await anext(stream)
