"""A real model within grammars, and plain requests beside grammars that are hard to compile."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import jsonschema
import pytest

from common.grammar import Grammar, read_grammar
from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Failed, Job, Tokens
from workers.engine.engine import Engine
from workers.engine.model_runner import TransformersRunner

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "temperature": {
            "type": "array",
            "items": {"type": "integer", "minimum": -99, "maximum": 99},
            "minItems": 1,
            "maxItems": 4,
        },
        "place": {"anyOf": [{"type": "string", "maxLength": 20}, {"type": "null"}]},
    },
    "required": ["unit", "temperature"],
}
SETTINGS = Settings.of(engine_threads=1, device="cpu")


def chat(tokenizer: Tokenizer, question: str) -> list[int]:
    return tokenizer.ids(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")


def job(name: str, ids: list[int], **parameters: Any) -> Job:
    chosen = GenerationParameters(**{"max_new_tokens": 500, "seed": 1, **parameters})
    return Job(id=name, model="", prompt_ids=ids, parameters=chosen, submitted_at=0.0)


@pytest.mark.parametrize("sample", [False, True])
def test_answers_are_valid_and_the_same_in_any_company(
    runner: TransformersRunner, tokenizer: Tokenizer, sample: bool
) -> None:
    asked = [
        ("Describe a person as JSON with name, age and hobbies.", PERSON),
        ("What is the weather in Paris today? Answer as JSON.", WEATHER),
    ]
    jobs = [
        job(str(i), chat(tokenizer, question), grammar=read_grammar("json", schema), sample=sample)
        for i, (question, schema) in enumerate(asked)
    ]
    jobs.append(
        job("phone", chat(tokenizer, "What is your number?"), grammar=Grammar("regex", r"\d{3}-\d{4}"), sample=sample)
    )
    together = texts(Engine(runner, tokenizer, SETTINGS), jobs)
    for (_, schema), text in zip(asked, together, strict=False):
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    assert [texts(Engine(runner, tokenizer, SETTINGS), [one])[0] for one in jobs] == together


def texts(engine: Engine, jobs: list[Job]) -> list[str]:
    engine.add(jobs)
    found = {one.id: "" for one in jobs}
    while engine.has_work:
        for event in engine.step():
            assert not isinstance(event.body, Failed), event
            if isinstance(event.body, Tokens):
                found[event.request] += "".join(token.text for token in event.body.tokens if not token.special)
                assert event.body.finish is None or event.body.finish.reason == "eos_token"
    return list(found.values())


def test_plain_steps_stay_flat_beside_hostile_grammars(runner: TransformersRunner, tokenizer: Tokenizer) -> None:
    # Other work on the machine may begin between the halves of a round; grammars that block block in all of them.
    rounds = []
    for number in range(5):
        quiet, busy = medians(runner, tokenizer, [19_997 - 12 * number - n for n in range(12)])
        if busy < 4 * quiet:
            return
        rounds.append((quiet, busy))
    raise AssertionError(f"seconds a step, alone and beside grammars: {rounds}")


def medians(runner: TransformersRunner, tokenizer: Tokenizer, multiples: list[int]) -> tuple[float, float]:
    """Seconds of a step of plain decode, alone and while a grammar of each multiple is compiled."""
    engine = Engine(runner, tokenizer, SETTINGS)
    engine.add([job("plain", chat(tokenizer, "Tell me a story."), max_new_tokens=300, ignore_eos=True)])
    for _ in range(5):
        engine.step()
    hostile = [
        json.dumps({"properties": {"f": {"type": "integer", "multipleOf": multiple}}, "required": ["f"]})
        for multiple in multiples
    ]
    quiet: list[float] = []
    busy: list[float] = []
    for steps, schemas in ((quiet, []), (busy, hostile)):
        engine.add(
            [job(f"hostile {n}", [5], grammar=Grammar("json", s), max_new_tokens=2) for n, s in enumerate(schemas)]
        )
        for _ in range(60):
            started = time.perf_counter()
            events = engine.step()
            if len([event for event in events if event.request == "plain"]) == len(events):
                steps.append(time.perf_counter() - started)
    return statistics.median(quiet), statistics.median(busy)
