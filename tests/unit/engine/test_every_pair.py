"""Every pair of parameters, in one batch with sixteen different neighbours, gives what it gives alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.grammar import Grammar
from common.parameters import GenerationParameters, Watermark
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Failed, Job, Tokens
from tests.unit.engine.support import HashedModel, make_job, run
from workers.engine.engine import Engine
from workers.engine.messages import JobEvent

NEIGHBOURS = 16
TOKENS = 12

PARAMETERS: dict[str, Any] = {
    "sample": True,
    "seed": 2**64 - 5,
    "temperature": 0.6,
    "top_k": 9,
    "top_p": 0.8,
    "min_p": 0.05,
    "typical_p": 0.7,
    "repetition_penalty": 1.4,
    "frequency_penalty": 1.5,
    "presence_penalty": 1.0,
    "openai_frequency_penalty": 0.7,
    "logit_bias": {40: 3.0, 41: -100.0, 90: 2.0},
    "watermark": Watermark(),
    "grammar": Grammar("regex", r"[a-z ]{3,}"),
    "stop": ["I", "zz"],
    "stop_token_ids": list(range(40, 104)),
    "ignore_eos": True,
    "top_n_tokens": 4,
    "prefill_logprobs": True,
    "prefill_top_n_tokens": 3,
    "children": 2,
    "max_new_tokens": 5,
}
"""One telling value of each."""


def neighbours() -> list[Job]:
    """Requests that differ from one another in parameters, lengths and seeds."""
    names = list(PARAMETERS)
    jobs = []
    for index in range(NEIGHBOURS):
        chosen = {names[(index * 5 + step * 3) % len(names)] for step in range(4)} - {"children"}
        parameters: dict[str, Any] = {"max_new_tokens": TOKENS, "sample": bool(index % 2), "seed": index}
        parameters |= {name: PARAMETERS[name] for name in chosen}
        jobs.append(make_job([3 + index, *range(20, 21 + index * 2)], name=f"neighbour {index}", **parameters))
    return jobs


def answer_of(tokenizer: Tokenizer, jobs: list[Job]) -> list[Tokens]:
    """What the request `r` says, time left out, one child after the other."""
    model = HashedModel(tokenizer.vocab_size, num_blocks=2000, max_batch_size=NEIGHBOURS + 2)
    engine = Engine(model, tokenizer, Settings.of(model_id="test", max_batch_prefill_tokens=40))
    events = run(engine, jobs)
    assert not [event for event in events if isinstance(event.body, Failed)]
    return sorted((_timeless(event) for event in events if _is_answer(event)), key=lambda tokens: tokens.child)


def _is_answer(event: JobEvent) -> bool:
    return event.request == "r" and isinstance(event.body, Tokens)


def _timeless(event: JobEvent) -> Tokens:
    tokens = event.body
    assert isinstance(tokens, Tokens)
    if tokens.finish is None:
        return tokens
    finish = msgspec.structs.replace(tokens.finish, inference_seconds=0.0)
    # Which child ends last is a matter of the batch.
    return msgspec.structs.replace(tokens, finish=finish, unfinished=0)


def test_every_parameter_is_here() -> None:
    assert set(PARAMETERS) == set(GenerationParameters.__struct_fields__)


@pytest.mark.parametrize("first", PARAMETERS)
def test_with_every_other_one(tokenizer: Tokenizer, first: str) -> None:
    names = list(PARAMETERS)
    for second in names[names.index(first) + 1 :]:
        parameters = {"max_new_tokens": TOKENS, first: PARAMETERS[first], second: PARAMETERS[second]}
        job = make_job([9, 30, 31, 31, 32], **parameters)
        around = neighbours()
        together = [*around[: NEIGHBOURS // 2], job, *around[NEIGHBOURS // 2 :]]
        assert answer_of(tokenizer, together) == answer_of(tokenizer, [job]) != [], (first, second)


IDLE_ALONE = ("seed", "ignore_eos", "prefill_top_n_tokens")


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name not in IDLE_ALONE])
def test_each_one_matters(tokenizer: Tokenizer, name: str) -> None:
    """The values above change the answer, so that the comparison means something."""
    plain: dict[str, Any] = {"max_new_tokens": TOKENS, "sample": name != "sample"}
    jobs = [make_job([9, 30, 31, 31, 32], **parameters) for parameters in (plain, plain | {name: PARAMETERS[name]})]
    assert answer_of(tokenizer, jobs[:1]) != answer_of(tokenizer, jobs[1:])
