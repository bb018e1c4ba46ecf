"""Scripts: what they say, when, and how they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.tokenizer import Tokenizer
from common.wire import Accepted, Failed, Tokens
from tests.unit.engine.support import (
    Clock,
    byte_level,
    last_of,
    make_job,
    run,
    save,
    script_prompt,
    scripted_engine,
    text_of,
    tokens_of,
)
from workers.engine.scripted_model import SENTENCE, parse_script


def say(tokenizer: Tokenizer, prompt: list[int], **parameters: Any) -> tuple[str, str]:
    """Text and reason of the end."""
    events = run(scripted_engine(tokenizer), [make_job(prompt, **{"max_new_tokens": 200, **parameters})])
    last = last_of(events)
    assert isinstance(last, Tokens), last
    assert last.finish is not None
    return text_of(tokens_of(events)), last.finish.reason


def test_text_then_end(tokenizer: Tokenizer) -> None:
    assert say(tokenizer, script_prompt(tokenizer, text=" Hello, 🤗 world.")) == (" Hello, 🤗 world.", "eos_token")


def test_ids_repeated(tokenizer: Tokenizer) -> None:
    ids = tokenizer.ids(" fox")
    assert say(tokenizer, script_prompt(tokenizer, ids=ids, repeat=3)) == (" fox fox fox", "eos_token")
    assert say(tokenizer, script_prompt(tokenizer, text=" fox", repeat=0)) == ("", "eos_token")


def test_without_a_script_a_sentence_over_and_over(tokenizer: Tokenizer) -> None:
    text, reason = say(tokenizer, tokenizer.ids("hello"))
    assert reason == "length"
    assert (SENTENCE * 20).startswith(text)
    assert len(text) > 2 * len(SENTENCE)


def test_the_last_script_counts_wherever_it_is(tokenizer: Tokenizer) -> None:
    prompt = '<|user|>say <<script {"text": "no"}>> or <<script {"text": "a >> b"}>> please<|end|><|start|>'
    assert say(tokenizer, tokenizer.ids(prompt)) == ("a >> b", "eos_token")


def test_stop_strings_and_sampling_act_on_it(tokenizer: Tokenizer) -> None:
    prompt = script_prompt(tokenizer, text="The capital is Paris.")
    assert say(tokenizer, prompt, stop=["Pari"]) == ("The capital is Pari", "stop_sequence")
    for seed in range(5):
        assert say(tokenizer, prompt, sample=True, seed=seed, top_p=0.9)[0] == "The capital is Paris."
    assert say(tokenizer, prompt, sample=True, temperature=50.0)[0] != "The capital is Paris."


def test_a_resumed_script_goes_on(tokenizer: Tokenizer) -> None:
    prompt = script_prompt(tokenizer, text="abcdef")
    whole = tokens_of(run(scripted_engine(tokenizer), [make_job(prompt)]))
    job = make_job(prompt, attempt=2, generated_ids=[token.id for token in whole[:3]])
    assert tokens_of(run(scripted_engine(tokenizer), [job])) == whole[3:]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("<<script {", "cannot be read"),
        ("<<script [1]>>", "cannot be read"),
        ('<<script {"text": "a"}', "does not end with `}>>`"),
        ('<<script {"txt": "a"}>>', "txt"),
        ('<<script {"text": 1}>>', "text"),
        ('<<script {"text": "a", "ids": [1]}>>', "both"),
        ('<<script {"text": "a", "step_ms": -1}>>', "negative"),
        ('<<script {"ids": [100000]}>>', "`ids` that are not between 0 and"),
    ],
)
def test_a_malformed_script_fails_its_request_only(tokenizer: Tokenizer, script: str, message: str) -> None:
    jobs = [make_job(tokenizer.ids(script)), make_job(script_prompt(tokenizer, text="fine"), name="other")]
    events = run(scripted_engine(tokenizer), jobs)
    failed = last_of(events)
    assert isinstance(failed, Failed)
    assert failed.error_type == "validation"
    assert failed.message.startswith("Input validation error: the script in the prompt")
    assert message in failed.message
    assert text_of(tokens_of(events, "other")) == "fine"


def test_no_script() -> None:
    assert parse_script("an ordinary prompt") is None


@pytest.mark.parametrize("at", [0, 3])
def test_raise_at(tokenizer: Tokenizer, at: int) -> None:
    jobs = [
        make_job(script_prompt(tokenizer, text="abcdefg", raise_at=at)),
        make_job(script_prompt(tokenizer, text="abcdefg"), name="other"),
    ]
    events = run(scripted_engine(tokenizer), jobs)
    assert text_of(tokens_of(events)) == "abcdefg"[:at]
    failed = last_of(events)
    assert failed == Failed("generation", f"Request failed during generation: the script raises at token {at}", False)
    assert text_of(tokens_of(events, "other")) == "abcdefg"


def test_pauses_hold_up_nobody_else(tokenizer: Tokenizer) -> None:
    clock = Clock()
    engine = scripted_engine(tokenizer, clock)
    slow = make_job(script_prompt(tokenizer, text="ab", first_ms=500, step_ms=200), name="slow")
    engine.add([slow, make_job(script_prompt(tokenizer, text="xyz"), name="quick")])
    events = []
    for _ in range(4):
        events += engine.step()
    assert text_of(tokens_of(events, "quick")) == "xyz"
    assert [event.body for event in events if event.request == "slow"] == [Accepted("")]
    arrivals: list[float] = []
    while engine.has_work:
        due = engine.next_due()
        assert due is not None
        clock.now = max(clock.now, due)
        for event in engine.step():
            arrivals.append(round(clock.now - 1000.0, 6))
            events.append(event)
    assert arrivals == [0.5, 0.7, 0.9]
    assert text_of(tokens_of(events, "slow")) == "ab"


def test_next_due_knows_pauses_and_deadlines(tokenizer: Tokenizer) -> None:
    clock = Clock()
    engine = scripted_engine(tokenizer, clock, max_batch_size=1)
    assert engine.next_due() is None
    engine.add([make_job(script_prompt(tokenizer, text="a", first_ms=5000), name="a")])
    assert engine.next_due() == 0.0
    engine.step()
    assert engine.next_due() == clock.now + 5
    engine.add([make_job([5], name="b", deadline=1003.0)])
    engine.take_events()
    assert engine.next_due() == clock.now + 3


def test_many_streams_share_one_buffer(tokenizer: Tokenizer) -> None:
    jobs = [make_job(script_prompt(tokenizer, text=f"number {n}."), name=str(n), max_new_tokens=50) for n in range(40)]
    events = run(scripted_engine(tokenizer), jobs)
    assert [text_of(tokens_of(events, str(n))) for n in range(40)] == [f"number {n}." for n in range(40)]


FAULTY = """
import sys
from pathlib import Path
from common.model_files import ModelFiles
from common.tokenizer import Tokenizer
from tests.unit.engine.support import make_job, script_prompt, scripted_engine

tokenizer = Tokenizer(ModelFiles("test", Path(sys.argv[1])))
engine = scripted_engine(tokenizer)
engine.add([make_job(script_prompt(tokenizer, text="abc", **{sys.argv[2]: 2}))])
for _ in range(20):
    engine.step()
    print("stepped", flush=True)
"""


def faulty(folder: Path, fault: str) -> subprocess.Popen[str]:
    save(byte_level(), folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    command = [sys.executable, "-c", FAULTY, str(folder), fault]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_kill_at_kills_its_process(tmp_path: Path) -> None:
    with faulty(tmp_path / "tokenizer", "kill_at") as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert output.count("stepped") == 2


def test_hang_at_never_answers(tmp_path: Path) -> None:
    with faulty(tmp_path / "tokenizer", "hang_at") as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["stepped\n"] * 2
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
        finally:
            process.kill()
