"""The chaos driver notices whatever may go wrong with an answer: nodes that misbehave on purpose."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from ops.chaos.client import Ask, Balancer, Manner
from ops.chaos.crowd import Crowd
from ops.chaos.faults import FAULTS
from ops.chaos.options import parse
from ops.chaos.questions import STREAM, WHOLE, Question, scripted_question
from ops.chaos.report import Report
from ops.chaos.runs import Struck, row_of
from ops.chaos.verdict import Verdict, judge, said
from ops.process_figures import catches

ERROR = b'{"error":"Incomplete generation","error_type":"incomplete_generation"}'


def event(index: int, text: str = "x", generated_text: str | None = None) -> bytes:
    token = {"id": 5, "text": text, "logprob": -0.5, "special": False}
    return json.dumps({"index": index, "token": token, "generated_text": generated_text}).encode()


EVENTS = [event(1), event(2), event(3, generated_text="xxx")]


@pytest.mark.parametrize(
    ("heard", "ending", "verdict"),
    [
        (EVENTS, "right", "right"),
        (EVENTS[:2], "right", "wrong"),
        (EVENTS[:2], "lost", "lost"),
        (EVENTS[:2], "cut", "cut"),
        (EVENTS[:1], "left", "left"),
        ([], "right", "wrong"),
        ([*EVENTS[:2], ERROR], "right", "error"),
        ([ERROR], "right", "error"),
        ([b'{"error":"Internal server error","error_type":"internal"}'], "right", "wrong"),
        ([EVENTS[0], ERROR, EVENTS[2]], "right", "wrong"),
        ([*EVENTS[:2], b'{"error":"no type"}'], "right", "wrong"),
        ([EVENTS[0], EVENTS[0], *EVENTS[1:]], "right", "duplicated"),
        ([*EVENTS[:2], *EVENTS], "right", "duplicated"),
        ([*EVENTS, EVENTS[2]], "right", "duplicated"),
        ([EVENTS[0], EVENTS[2]], "right", "wrong"),
        ([EVENTS[0], event(2, "y"), EVENTS[2]], "right", "wrong"),
        ([EVENTS[0], event(2, "y")], "left", "wrong"),
        ([EVENTS[0], EVENTS[0]], "cut", "duplicated"),
        ([*EVENTS, event(4)], "right", "wrong"),
    ],
)
def test_verdicts(heard: list[bytes], ending: Verdict, verdict: Verdict) -> None:
    assert judge(EVENTS, heard, ending)[0] == verdict


def test_what_an_answer_says() -> None:
    assert said(EVENTS, streams=True) == "xxx"
    assert said([b'{"generated_text":"whole"}'], streams=False) == "whole"
    assert said([event(1, "a"), event(2, "b", "other")], streams=True) != "other"


def test_the_seed_makes_the_questions() -> None:
    def payloads(seed: int) -> list[bytes]:
        return [scripted_question(number, rng).payload for rng in [Random(seed)] for number in range(8)]

    assert payloads(1) == payloads(1)
    assert len(set(payloads(1))) == 8
    assert payloads(1) != payloads(2)


def test_a_fault_excuses_what_it_must_cause_and_nothing_else() -> None:
    def failed(fault: str, verdict: Verdict) -> bool:
        ask = Ask(Question("q", STREAM, b"", None), EVENTS, verdict=verdict)
        report = Report(1, "scripted")
        report.add(fault, [ask])
        assert report.json()["faults"][fault][verdict] == 1
        return report.failed

    assert not failed("worker-kill", "right")
    assert not failed("disconnects", "left")
    assert failed("worker-kill", "error")
    assert failed("worker-kill", "cut")
    assert not failed("redis-wipe", "error")
    assert not failed("web-kill", "cut")
    assert not failed("several", "error")
    never: tuple[Verdict, ...] = ("lost", "wrong", "duplicated")
    assert all(failed(fault, verdict) for fault in FAULTS for verdict in never)


def test_answers_are_counted_under_a_row_of_their_time() -> None:
    struck = [Struck(FAULTS["web-kill"], 10, 12), Struck(FAULTS["worker-kill"], 13, 14)]
    question = Question("q", STREAM, b"", None)

    def met(started: float, ended: float, verdict: Verdict) -> str:
        return row_of(Ask(question, EVENTS, started=started, ended=ended, verdict=verdict), struck)

    assert met(1, 9, "right") == "none"
    assert met(9, 11, "right") == "web-kill"
    assert met(9, 14, "right") == "worker-kill"
    assert met(9, 14, "cut") == "web-kill"
    assert met(9, 14, "error") == "several"
    assert met(9, 11, "error") == "web-kill"
    assert met(30, 31, "cut") == "none"


def test_a_process_that_listens_for_a_signal_is_told_from_one_that_does_not() -> None:
    listening = "import signal, sys; signal.signal(signal.SIGTERM, print); print('now', flush=True); sys.stdin.read()"
    deaf = "import sys; print('now', flush=True); sys.stdin.read()"
    for program, catching in ((listening, True), (deaf, False)):
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"now\n"
            assert catches(process.pid, signal.SIGTERM) is catching
            assert not catches(process.pid, signal.SIGUSR1)
            process.kill()


def test_options_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--minutes", "1"]).mode == "mixed"
    assert parse([]).mode == "rounds"
    assert [fault.name for fault in parse(["--faults", "web-kill,worker-kill"]).faults] == ["web-kill", "worker-kill"]
    assert parse(["--mode", "markers"]).requests == 10_000
    with pytest.raises(SystemExit):
        parse(["--faults", "web-kill,earthquake"])
    assert "there is no earthquake" in capsys.readouterr().err


# -- nodes of every kind


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream(*payloads: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    frames = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    # Chunks that end anywhere, and a comment in between.
    middle = len(frames) // 3
    return head + chunk(b":\n") + b"".join(chunk(part) for part in (frames[:middle], frames[middle:]) if part) + end


def whole(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@asynccontextmanager
async def nodes(*answers: bytes | None) -> AsyncIterator[Balancer]:
    """A node that gives these answers in turn, the last one again and again; None says nothing and keeps the connection."""
    left = list(answers)
    held = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer = left.pop(0) if len(left) > 1 else left[0]
        if answer is None:
            await held.wait()
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Balancer([server.sockets[0].getsockname()[:2]])
    finally:
        held.set()
        server.close()


async def ask(
    balancer: Balancer,
    *,
    manner: Manner = "reads",
    path: str = STREAM,
    limit: float = 10.0,
    expected: list[bytes] = EVENTS,
) -> Ask:
    asked = Ask(Question("q", path, b"{}", None), expected, manner)
    await asked.run(balancer, limit, Random(1))
    return asked


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (stream(*EVENTS), "right"),
        (stream(*EVENTS[:2]), "wrong"),
        (stream(*EVENTS[:2], end=b""), "cut"),
        (stream(*EVENTS[:2], ERROR), "error"),
        (stream(EVENTS[0], *EVENTS), "duplicated"),
        (b"HTTP/1.1 200 OK\r\nContent-Ty", "cut"),
        (whole("424 Failed", ERROR), "error"),
        (whole("500 Oops", b"<html>"), "wrong"),
    ],
)
async def test_a_stream_is_seen_for_what_it_is(answer: bytes, verdict: Verdict) -> None:
    async with nodes(answer) as balancer:
        asked = await ask(balancer)
    assert asked.verdict == verdict, asked.detail
    assert asked.ended >= asked.started > 0
    assert asked.begun.is_set()


async def test_a_whole_answer_is_compared_too() -> None:
    body = b'{"generated_text":"xxx"}'
    async with nodes(whole("200 OK", body)) as balancer:
        assert (await ask(balancer, path=WHOLE, expected=[body])).verdict == "right"
        assert (await ask(balancer, path=WHOLE, expected=[body.replace(b"xxx", b"xxy")])).verdict == "wrong"


async def test_refusals_are_no_endings() -> None:
    async with nodes(whole("503 Unavailable", ERROR), b"", whole("429 Full", ERROR), stream(*EVENTS)) as balancer:
        asked = await ask(balancer)
    assert (asked.verdict, asked.refusals) == ("right", 3)


async def test_silence_is_loss() -> None:
    async with nodes(None) as balancer:
        assert (await ask(balancer, limit=0.3)).verdict == "lost"
    async with nodes(whole("503 Unavailable", ERROR)) as balancer:
        assert (await ask(balancer, limit=0.5)).verdict == "lost"


async def test_clients_that_leave() -> None:
    async with nodes(stream(*EVENTS)) as balancer:
        assert (await ask(balancer, manner="leaves")).verdict == "left"
    async with nodes(stream(*[EVENTS[0]] * 3)) as balancer:
        asked = Ask(Question("q", STREAM, b"{}", None), EVENTS, "leaves")
        await asked.run(balancer, 5, Random(5))  # leaves after the third event
        assert asked.verdict == "duplicated"


async def test_the_crowd_knows_its_own_marks() -> None:
    foreign = json.dumps({"generated_text": "m999999 hello m999999. "}).encode()
    async with nodes(whole("200 OK", foreign)) as balancer:
        crowd = Crowd([balancer.next()], Random(1), clients=2, leaving=0.0, slow=0.0, repeats=1)
        await crowd.send(6)
        assert crowd.verdicts.total() == 6
        assert crowd.verdicts["wrong"] > 0 == crowd.verdicts["right"]
        assert any("m999999" in detail for detail in crowd.details)
