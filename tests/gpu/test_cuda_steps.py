"""On a GPU: captured, overlapped and plain steps of a small model give the same answers."""

from __future__ import annotations

import os

# Before the hub library is imported: everything here is local.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Job, Tokens
from ops.bench import gpu_model
from workers.engine.cuda_graphs import CudaCapture, Work
from workers.engine.device_runner import DeviceRunner
from workers.engine.device_sampler import choose, stage_rules
from workers.engine.engine import Engine
from workers.engine.model_loader import load_runner
from workers.engine.staging import Stage

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    gpu_model.write_model(path, gpu_model.SMALL, "cuda")
    return path


def _load(folder: Path, **settings: Any) -> tuple[DeviceRunner, Settings]:
    values = Settings.of(model_id=str(folder), device="cuda", max_batch_total_tokens=16_384, **settings)
    runner = load_runner(values, lambda stage, fraction: None)
    assert isinstance(runner, DeviceRunner)
    return runner, values


def _answers(folder: Path, runner: DeviceRunner, settings: Settings) -> dict[str, list[int]]:
    from common.model_files import find_model

    engine = Engine(runner, Tokenizer(find_model(settings, weights=False)), settings)
    answers: dict[str, list[int]] = {}
    for i in range(8):
        # As many rows as a captured size, all to the end: padding would change which kernel multiplies.
        parameters = GenerationParameters(max_new_tokens=40, seed=i, sample=i % 2 == 1, ignore_eos=True)
        prompt = [(7 * i + 3 * j) % 256 for j in range(20 + i)]
        engine.add([Job(id=str(i), model="", prompt_ids=prompt, parameters=parameters, submitted_at=0.0)])
        answers[str(i)] = []
    while engine.has_work:
        for event in engine.step():
            if isinstance(event.body, Tokens):
                answers[event.request] += [token.id for token in event.body.tokens]
    return answers


def test_graphs_and_overlap_change_no_answer(folder: Path) -> None:
    plain = _answers(folder, *_load(folder, cuda_graphs=[0], overlap=False))
    assert all(len(ids) == 40 for ids in plain.values())
    assert _answers(folder, *_load(folder, cuda_graphs=[0])) == plain
    assert _answers(folder, *_load(folder, cuda_graphs=[8], overlap=False)) == plain
    assert _answers(folder, *_load(folder, cuda_graphs=[8])) == plain


def test_decode_steps_are_captured(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner, _ = _load(folder, cuda_graphs=[1, 4])
    assert runner._graphs is not None
    assert [runner._graphs.size(rows) for rows in (1, 3, 4, 5)] == [1, 4, 4, None]
    assert "without CUDA graphs" not in caplog.text


def test_work_that_waits_for_the_device_is_not_captured_and_does_no_harm() -> None:
    device = torch.device("cuda")
    numbers = torch.arange(4.0, device=device)
    capture = CudaCapture(device)

    def waits() -> None:
        numbers.sum().item()

    def fine() -> None:
        numbers.add_(1)

    stream = torch.cuda.current_stream()
    with pytest.raises(RuntimeError):
        capture(waits)
    assert torch.cuda.current_stream() == stream
    before = numbers.sum().item()
    replay: Work = capture(fine)
    warmed = numbers.sum().item()
    replay()
    assert numbers.sum().item() == warmed + 4 > before


def test_the_sampler_chooses_on_the_gpu_what_it_chooses_on_the_cpu() -> None:
    logits = torch.randn(70, 50_000, generator=torch.Generator().manual_seed(0)) * 3
    rules: list[dict[str, Any]] = [
        {},
        {"sample": True},
        {"sample": True, "temperature": 0.6, "top_k": 50},
        {"sample": True, "top_p": 0.9},
        {"sample": True, "min_p": 0.05},
    ]
    rows = [(GenerationParameters(max_new_tokens=1, seed=i, **rules[i % len(rules)]), i) for i in range(len(logits))]
    here, _ = choose(logits, stage_rules(rows, logits.shape[1], torch.from_numpy))
    stage = Stage(torch.device("cuda"), 1 << 16)
    stage.begin()
    there = stage_rules(rows, logits.shape[1], stage.add)
    stage.send()
    assert choose(logits.cuda(), there)[0].tolist() == here.tolist()


def test_a_stage_is_not_overwritten_before_it_is_sent() -> None:
    stage = Stage(torch.device("cuda"), 1 << 20)
    kept = []
    for step in range(50):
        stage.begin()
        view = stage.add(np.full(100_000, step, dtype=np.int64))
        # The device is kept busy, so that the host runs ahead.
        torch.randn(2048, 2048, device="cuda").matmul(torch.randn(2048, 2048, device="cuda"))
        stage.send()
        kept.append(view.clone())
    assert all(bool((view == step).all()) for step, view in enumerate(kept))
