"""Greedy tokens are those of transformers' own `generate`, alone and in a crowd that comes and goes."""

from __future__ import annotations

import time

import pytest
import torch
from transformers import AutoModelForCausalLM

from common.model_files import ModelFiles
from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Cancelled, Job, Tokens
from workers.engine.engine import Engine
from workers.engine.messages import JobEvent
from workers.engine.model_runner import TransformersRunner

LENGTHS = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 200, 333, 512, 700]
NEW_TOKENS = 7


@pytest.fixture(scope="module")
def prompts(prose: list[int]) -> list[list[int]]:
    return [prose[i : i + length] if length < 600 else prose[:length] for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def expected(model_files: ModelFiles, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_files.path, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=-1,
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.fixture
def engine(runner: TransformersRunner, tokenizer: Tokenizer, engine_settings: Settings) -> Engine:
    return Engine(runner, tokenizer, engine_settings)


def _job(name: str, prompt: list[int], new_tokens: int = NEW_TOKENS) -> Job:
    parameters = GenerationParameters(max_new_tokens=new_tokens, seed=0, ignore_eos=True)
    return Job(id=name, model="", prompt_ids=prompt, parameters=parameters, submitted_at=time.time())


def _ids(events: list[JobEvent], name: str) -> list[int]:
    bodies = [event.body for event in events if event.request == name]
    return [token.id for body in bodies if isinstance(body, Tokens) for token in body.tokens]


def test_twenty_prompts_one_after_the_other(
    engine: Engine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    for index, prompt in enumerate(prompts):
        engine.add([_job(str(index), prompt)])
        events = []
        while engine.has_work:
            events += engine.step()
        assert _ids(events, str(index)) == expected[index], f"prompt of {len(prompt)} tokens"


def test_twenty_prompts_at_once_while_others_come_and_go(
    engine: Engine, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine.add([_job("early", prompts[10], 400)])
    events = engine.step()
    pending = [_job(str(index), prompt) for index, prompt in enumerate(prompts)]
    steps = 0
    while engine.has_work or pending:
        steps += 1
        engine.add(pending[:2])
        del pending[:2]
        if steps == 4:
            engine.add([_job("late", prompts[13], 3)])
        if steps == 9:
            engine.cancel(["early"])
        events += engine.step()
    for index, prompt in enumerate(prompts):
        assert _ids(events, str(index)) == expected[index], f"prompt of {len(prompt)} tokens"
    assert _ids(events, "late") == expected[13][:3]
    assert any(event.request == "early" and isinstance(event.body, Cancelled) for event in events)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.reserved_tokens) == (0, 0, 0)
