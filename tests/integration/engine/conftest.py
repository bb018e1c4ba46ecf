"""A real model on CPU, loaded once, and a driver that runs sequences through a runner by hand."""

from __future__ import annotations

import os

# Before the hub library is imported: everything here is local.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from common.model_files import ModelFiles, find_model
from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Job
from workers.engine.block_pool import BlockPool
from workers.engine.model_loader import load_runner
from workers.engine.model_runner import TransformersRunner
from workers.engine.plan import FloatArray, ModelRunner, Row, StepPlan
from workers.engine.sequence import Sequence

PROSE = """The lighthouse keeper had two clocks, and they never agreed. One hung in the kitchen, above the stove, and ran
fast when soup was cooking; the other stood in the lamp room, where the cold made it slow. On the first of March 1921 the
difference was eleven minutes. "Which of them is right?" asked the boy who brought the mail. The keeper thought about it
for a while. "Neither", he said, "but the ships are used to it." A ship's captain, he explained, does not need to know what
time it is: he needs to know that the light comes every nine seconds, that it is white, and that it is where the chart says.
If the keeper is late, everyone is late together. The boy wrote this down in his notebook, under the heading "Things to
remember", between the price of butter (2.40) and a drawing of a seal. Years later, when he was a captain himself, he found
the page again, and laughed. He had forgotten the butter, and the seal looked like a boot; but the light still came every
nine seconds, white, and it was still where the chart said it would be. """


class Driver:
    """Sequences over one runner, step by step as a test wants them."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.pool = BlockPool(runner.num_blocks, runner.block_size, contiguous=runner.contiguous_blocks)

    def sequence(self, ids: list[int], room: int = 64) -> Sequence:
        """A sequence with blocks for its ids and `room` tokens more."""
        parameters = GenerationParameters(max_new_tokens=room, seed=0)
        sequence = Sequence(Job(id="test", model="", prompt_ids=ids, parameters=parameters, submitted_at=0.0))
        blocks = self.pool.allocate(self.pool.blocks_for(len(ids) + room))
        assert blocks is not None
        sequence.blocks = blocks
        return sequence

    def free(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.pool.free(sequence.blocks)
            sequence.blocks = []

    def step(self, *shares: tuple[Sequence, int]) -> list[FloatArray]:
        """Compute `count` further tokens of each sequence together; the logits of all of them, one array per share."""
        plan = StepPlan([Row(sequence, sequence.computed, count, count) for sequence, count in shares])
        logits = self.runner.forward(plan)
        answers = []
        for sequence, count in shares:
            answers.append(logits[:count].copy())
            logits = logits[count:]
            sequence.computed += count
        assert len(logits) == 0
        return answers

    def whole(self, ids: list[int]) -> FloatArray:
        """Logits of all ids, computed at once and alone, `[len(ids), vocab]`."""
        sequence = self.sequence(ids)
        (logits,) = self.step((sequence, len(ids)))
        self.free(sequence)
        return logits

    def in_chunks(self, ids: list[int], sizes: list[int]) -> FloatArray:
        """Logits of all ids, alone, in chunks of these sizes; the last one again and again to the end."""
        sequence = self.sequence(ids)
        found = []
        while sequence.computed < len(ids):
            count = min(sizes[0] if len(sizes) == 1 else sizes.pop(0), len(ids) - sequence.computed)
            found.extend(self.step((sequence, count)))
        self.free(sequence)
        return np.concatenate(found)


@pytest.fixture(scope="session")
def engine_settings() -> Settings:
    """The default model with a small cache and one thread."""
    return Settings.of(engine_threads=1, max_batch_total_tokens=32_768, device="cpu")


@pytest.fixture(scope="session")
def _loaded(engine_settings: Settings) -> TransformersRunner:
    return load_runner(engine_settings, lambda stage, fraction: None)


@pytest.fixture
def runner(_loaded: TransformersRunner) -> Iterator[TransformersRunner]:
    """The default model; a test may change the number of threads."""
    torch.set_num_threads(1)
    yield _loaded
    torch.set_num_threads(1)


@pytest.fixture
def driver(runner: TransformersRunner) -> Driver:
    return Driver(runner)


@pytest.fixture(scope="session")
def model_files(engine_settings: Settings, _loaded: TransformersRunner) -> ModelFiles:
    return find_model(engine_settings, weights=True)


@pytest.fixture(scope="session")
def tokenizer(model_files: ModelFiles) -> Tokenizer:
    return Tokenizer(model_files)


@pytest.fixture(scope="session")
def prose(tokenizer: Tokenizer) -> list[int]:
    """Ids of ordinary text, 700 and more."""
    ids = tokenizer.ids(PROSE.replace("\n", " ") * 4)
    assert len(ids) >= 700
    return ids


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return tmp_path / "model"
