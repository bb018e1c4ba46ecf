"""Speculation saves steps and changes nothing that a client can see."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Finish, Job, Token, Tokens
from workers.engine.engine import Engine
from workers.engine.model_runner import TransformersRunner
from workers.engine.speculation import NGrams

LIST = "Numbers in words: one, two, three, one, two, three, one, two, three, one, two,"


def test_what_followed_before_is_proposed() -> None:
    index = NGrams()
    ids = array("I", [5, 6, 7, 8, 9, 6, 7])
    assert index.following(ids, 3) == (8, 9, 6)
    ids.extend([8])
    assert index.following(ids, 2) == (9, 6)
    ids.extend([1])
    assert index.following(ids, 2) == ()
    # The newest place counts.
    ids.extend([6, 7])
    assert index.following(ids, 1) == (8,)
    assert NGrams().following(array("I", [5]), 2) == ()
    assert NGrams().following(array("I", [4, 4, 4]), 9) == (4,)


def _generate(
    runner: TransformersRunner, tokenizer: Tokenizer, speculate: int, jobs: list[Job]
) -> tuple[dict[str, tuple[list[Token], Finish]], int]:
    settings = Settings.of(device="cpu", speculate=speculate, prefix_caching=False)
    engine = Engine(runner, tokenizer, settings)
    engine.add(jobs)
    tokens: dict[str, list[Token]] = {job.id: [] for job in jobs}
    ends: dict[str, Finish] = {}
    steps = 0
    while engine.has_work:
        for event in engine.step():
            if isinstance(event.body, Tokens):
                assert event.body.offset == len(tokens[event.request])
                tokens[event.request].extend(event.body.tokens)
                if event.body.finish is not None:
                    ends[event.request] = event.body.finish
        steps += 1
    return {name: (tokens[name], ends[name]) for name in tokens}, steps


@pytest.mark.parametrize("together", [False, True])
def test_answers_are_the_same(
    runner: TransformersRunner, tokenizer: Tokenizer, prose: list[int], together: bool
) -> None:
    ids = tokenizer.ids(LIST)
    options: list[dict[str, Any]] = [
        {},
        {"sample": True, "temperature": 0.7, "seed": 11, "top_n_tokens": 2},
        {"repetition_penalty": 1.1, "sample": True, "seed": 5, "top_k": 20},
        {"stop": ["three, one"], "max_new_tokens": 20},
        {"max_new_tokens": 3},
    ]
    jobs = [
        Job(
            id=str(i),
            model="",
            prompt_ids=ids if i != 1 else prose[:80],
            parameters=GenerationParameters(**{"max_new_tokens": 40, "seed": 0, "ignore_eos": True, **own}),
            submitted_at=0.0,
        )
        for i, own in enumerate(options)
    ]
    batches = [jobs] if together else [[job] for job in jobs]
    saved = 0
    for batch in batches:
        plain, steps = _generate(runner, tokenizer, 0, batch)
        drafted, fewer = _generate(runner, tokenizer, 5, batch)
        for name, (tokens, end) in plain.items():
            assert drafted[name][0] == tokens
            found = drafted[name][1]
            assert (found.reason, found.generated_tokens, found.stop) == (end.reason, end.generated_tokens, end.stop)
        saved += steps - fewer
    # Steps of a batch end with its slowest sequence.
    assert together or saved >= 10
