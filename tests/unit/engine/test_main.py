"""The engine process at the other end of its pipe."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from common.model_files import default_model_folder
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Accepted, Cancelled, Tokens, encode_msgpack
from tests.unit.engine.support import byte_level, make_job, save, script_prompt, text_of, tokens_of
from workers.engine import main
from workers.engine.messages import (
    AddJobs,
    CancelJobs,
    EngineFailure,
    EngineOutput,
    JobEvent,
    LoadProgress,
    Ready,
    Shutdown,
    ToEngine,
    decode_from_engine,
)

SECONDS = 60
"""Longer than anything here takes."""


class Child:
    def __init__(self, process: SpawnProcess, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.outputs: list[EngineOutput] = []

    def send(self, message: ToEngine) -> None:
        self.pipe.send_bytes(encode_msgpack(message))

    def receive(self) -> Any:
        assert self.pipe.poll(SECONDS), "the engine process is silent"
        return decode_from_engine(self.pipe.recv_bytes())

    def events_until(self, condition: Callable[[list[JobEvent]], bool]) -> list[JobEvent]:
        events: list[JobEvent] = []
        deadline = time.monotonic() + SECONDS
        while not condition(events):
            assert time.monotonic() < deadline, "the events that were waited for do not come"
            output = self.receive()
            assert isinstance(output, EngineOutput)
            self.outputs.append(output)
            events.extend(output.events)
        return events

    def exit_code(self) -> int | None:
        self.process.join(SECONDS)
        return self.process.exitcode


@contextmanager
def start(settings: Settings) -> Iterator[Child]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main.run, args=(theirs, settings), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Child(process, ours)
    finally:
        process.kill()
        process.join()
        ours.close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The scripted model, with a small tokenizer in place of the default model's."""
    settings = Settings.of(model_id="scripted", cache_dir=tmp_path_factory.mktemp("cache"))
    folder = default_model_folder(settings)
    save(byte_level(), folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    return settings


@contextmanager
def ready_child(settings: Settings) -> Iterator[Child]:
    with start(settings) as child:
        ready = child.receive()
        assert isinstance(ready, Ready)
        card = ready.card
        assert (card.model_id, card.device_type, card.max_total_tokens) == ("scripted", "scripted", 512)
        yield child


@pytest.fixture
def child(settings: Settings) -> Iterator[Child]:
    """A process of this test's own."""
    with ready_child(settings) as child:
        yield child


@pytest.fixture(scope="module")
def shared(settings: Settings) -> Iterator[Child]:
    """A process for tests that leave it as it was."""
    with ready_child(settings) as child:
        yield child


def ended(count: int) -> Callable[[list[JobEvent]], bool]:
    def condition(events: list[JobEvent]) -> bool:
        return sum(isinstance(e.body, Tokens) and e.body.finish is not None for e in events) == count

    return condition


def test_jobs_in_events_out_and_leaves_when_told(child: Child, tokenizer: Tokenizer) -> None:
    child.send(AddJobs([make_job(script_prompt(tokenizer, text=f"number {n}"), name=str(n)) for n in range(3)]))
    events = child.events_until(ended(3))
    assert [event.body for event in events[:3]] == [Accepted("")] * 3
    assert [text_of(tokens_of(events, str(n))) for n in range(3)] == ["number 0", "number 1", "number 2"]
    last = child.outputs[-1]
    assert last.stats is not None
    assert (last.stats.running, last.stats.generated_tokens) == (0, len(tokens_of(events, "0")) * 3)
    child.send(Shutdown())
    assert child.exit_code() == 0


def test_accepted_and_cancelled_do_not_wait_for_a_token(shared: Child, tokenizer: Tokenizer) -> None:
    shared.send(AddJobs([make_job(script_prompt(tokenizer, text="late", first_ms=10 * SECONDS * 1000))]))
    assert shared.events_until(bool)[0].body == Accepted("")
    shared.send(CancelJobs(["r"]))
    assert shared.events_until(bool)[0].body == Cancelled()


def test_a_waiting_engine_gives_signs_of_life(shared: Child, tokenizer: Tokenizer) -> None:
    shared.send(AddJobs([make_job(script_prompt(tokenizer, text="late", first_ms=10 * SECONDS * 1000))]))
    shared.events_until(bool)
    outputs = [shared.receive() for _ in range(4)]
    shared.send(CancelJobs(["r"]))
    shared.events_until(bool)
    running = [output.stats.running for output in outputs if isinstance(output, EngineOutput) and output.stats]
    assert len(running) >= 2
    assert set(running) == {1}


def test_leaves_in_the_midst_of_work(child: Child, tokenizer: Tokenizer) -> None:
    child.send(AddJobs([make_job(script_prompt(tokenizer, text="a", repeat=400, step_ms=50), max_new_tokens=300)]))
    child.events_until(lambda events: len(tokens_of(events)) > 1)
    child.send(Shutdown())
    assert child.exit_code() == 0


@pytest.mark.parametrize("busy", [True, False])
def test_leaves_when_the_pipe_is_closed(child: Child, tokenizer: Tokenizer, busy: bool) -> None:
    if busy:
        child.send(AddJobs([make_job(script_prompt(tokenizer, text="a", repeat=400, step_ms=50), max_new_tokens=300)]))
        child.events_until(bool)
    child.pipe.close()
    assert child.exit_code() == 0


def test_interrupts_are_the_workers_business(shared: Child, tokenizer: Tokenizer) -> None:
    assert shared.process.pid is not None
    os.kill(shared.process.pid, signal.SIGINT)
    shared.send(AddJobs([make_job(script_prompt(tokenizer, text="still here"))]))
    assert text_of(tokens_of(shared.events_until(ended(1)))) == "still here"


def test_a_message_nobody_can_read_is_passed_over(shared: Child, tokenizer: Tokenizer) -> None:
    shared.pipe.send_bytes(b"\xc1 not a message")
    shared.send(AddJobs([make_job(script_prompt(tokenizer, text="fine"))]))
    assert text_of(tokens_of(shared.events_until(ended(1)))) == "fine"


def test_a_model_that_cannot_be_loaded_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    with start(Settings.of(model_id="scripted", cache_dir=no_folder)) as child:
        while isinstance(failure := child.receive(), LoadProgress):
            pass
        assert isinstance(failure, EngineFailure)
        assert failure.message.startswith("scripted could not be loaded: ")
        assert str(no_folder) in failure.message
        assert child.exit_code() == main.EXIT_NOT_LOADED
    assert capfd.readouterr().err == f"{failure.message}\n"
