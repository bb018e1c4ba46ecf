"""Three hundred random requests, each cut somewhere and resumed on a fresh engine: nobody can tell."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from common.grammar import Grammar
from common.parameters import Watermark
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Failed, Finish, Job, Token, Tokens
from tests.unit.engine.support import HashedModel, make_job, run, text_of
from workers.engine.engine import Engine

GROUPS = 30
REQUESTS = 10
"""Requests of a group, in one batch."""
GRAMMARS = [
    Grammar("regex", r"([a-z]{1,4}[ ,])*[é你🤗.]"),
    Grammar("regex", r"[0-9]+(-[0-9]{2}){2,}"),
    Grammar(
        "json", '{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"boolean"}}}}'
    ),
]

Frames = list[tuple[list[Token], Finish | None]]


def random_parameters(chance: random.Random) -> dict[str, Any]:
    """Any mixture of parameters, sampled or greedy."""

    def sometimes(value: Any, share: float = 0.3) -> Any:
        return value if chance.random() < share else None

    drawn = {
        "max_new_tokens": chance.randint(3, 40),
        "seed": chance.randrange(2**64),
        "sample": sometimes(True, 0.7),
        "temperature": sometimes(chance.uniform(0.2, 2.0)),
        "top_k": sometimes(chance.randint(1, 50)),
        "top_p": sometimes(chance.uniform(0.1, 0.99)),
        "min_p": sometimes(chance.uniform(0.01, 0.3), 0.2),
        "typical_p": sometimes(chance.uniform(0.1, 0.99), 0.2),
        "repetition_penalty": sometimes(chance.uniform(0.5, 1.8)),
        "frequency_penalty": sometimes(chance.uniform(-2, 2)),
        "presence_penalty": sometimes(chance.uniform(-2, 2)),
        "openai_frequency_penalty": sometimes(chance.uniform(-2, 2)),
        "logit_bias": sometimes({chance.randrange(300): chance.uniform(-10, 10) for _ in range(5)}, 0.2),
        "watermark": sometimes(Watermark(), 0.2),
        "grammar": sometimes(chance.choice(GRAMMARS), 0.25),
        "stop_token_ids": sometimes([chance.randrange(300) for _ in range(3)], 0.1),
        "ignore_eos": sometimes(True, 0.2),
        "top_n_tokens": sometimes(chance.randint(1, 5), 0.2),
        "prefill_logprobs": sometimes(True, 0.1),
    }
    return {name: value for name, value in drawn.items() if value is not None}


def answers(tokenizer: Tokenizer, jobs: list[Job]) -> dict[str, Frames]:
    engine = Engine(HashedModel(tokenizer.vocab_size, num_blocks=1000), tokenizer, Settings.of(model_id="test"))
    frames: dict[str, Frames] = {job.id: [] for job in jobs}
    for event in run(engine, jobs):
        assert not isinstance(event.body, Failed), event
        if isinstance(event.body, Tokens):
            finish = event.body.finish
            if finish is not None:
                finish = msgspec.structs.replace(finish, inference_seconds=0.0)
            frames[event.request].append((event.body.tokens, finish))
    return frames


def flat(frames: Frames) -> list[Token]:
    return [token for tokens, _ in frames for token in tokens]


@pytest.mark.parametrize("group", range(GROUPS))
def test_cut_and_resumed_is_the_same(tokenizer: Tokenizer, group: int) -> None:
    chance = random.Random(group)
    jobs = []
    for index in range(REQUESTS):
        prompt = [chance.randrange(3, 300) for _ in range(chance.randint(1, 30))]
        jobs.append(make_job(prompt, name=str(index), **random_parameters(chance)))
    # A third of them stop at a piece of what they would have said.
    said = {name: text_of(flat(frames)) for name, frames in answers(tokenizer, jobs).items()}
    for index, job in enumerate(jobs):
        if index % 3 == 0 and (text := said[job.id]):
            start = chance.randrange(len(text))
            stop = [text[start : start + chance.randint(1, 8)], "never said"]
            jobs[index] = msgspec.structs.replace(job, parameters=msgspec.structs.replace(job.parameters, stop=stop))

    whole = answers(tokenizer, jobs)
    # The last tokens and the end come in one frame, so that behind it nobody resumes; it works all the same, but for the
    # prompt's details.
    cuts = {job.id: chance.randint(0, len(whole[job.id]) - job.parameters.prefill_logprobs) for job in jobs}
    resumed = answers(
        tokenizer,
        [
            msgspec.structs.replace(job, attempt=2, generated_ids=[t.id for t in flat(whole[job.id][: cuts[job.id]])])
            for job in jobs
        ],
    )
    for job in jobs:
        cut = cuts[job.id]
        assert flat(whole[job.id][:cut]) + flat(resumed[job.id]) == flat(whole[job.id]), job.parameters
        assert resumed[job.id][-1][1] == whole[job.id][-1][1], job.parameters
        assert whole[job.id][-1][1] is not None
