"""On a GPU: the paged kernel computes what plain attention does, and a real model what transformers does."""

from __future__ import annotations

import os

# Before the hub library is imported: everything here is local.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch

from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Job, Tokens
from workers.engine.attention import AttentionBackend, LayerOptions, LayerShape, StagedRow, StagedStep
from workers.engine.attention_cuda import VarlenAttention, varlen_obstacle
from workers.engine.attention_paged import PAGE, GatherAttention
from workers.engine.sequence import Sequence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SHAPE = {0: LayerShape(kv_heads=2, key_width=64, value_width=64)}
HEADS = 8


def _sequence(blocks: list[int]) -> Sequence:
    parameters = GenerationParameters(max_new_tokens=1, seed=0)
    sequence = Sequence(Job(id="x", model="", prompt_ids=[1], parameters=parameters, submitted_at=0.0))
    sequence.blocks = blocks
    return sequence


def _step(rows: list[tuple[Sequence, int, int]]) -> StagedStep:
    staged: list[StagedRow] = []
    slots: list[int] = []
    for sequence, start, count in rows:
        staged.append(StagedRow(sequence, start, count, len(slots)))
        slots += [sequence.blocks[p // PAGE] * PAGE + p % PAGE for p in range(start, start + count)]
    positions = np.concatenate([np.arange(start, start + count) for _, start, count in rows])
    return StagedStep(np.zeros_like(positions), positions, np.array(slots), staged)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_the_paged_kernel_computes_plain_attention(window: int | None, with_sinks: bool) -> None:
    device = torch.device("cuda")
    if obstacle := varlen_obstacle(SHAPE, {}, torch.bfloat16):
        pytest.skip(obstacle)
    torch.manual_seed(0)
    backends: list[AttentionBackend] = [
        VarlenAttention(SHAPE, 16, torch.bfloat16, device),
        GatherAttention(SHAPE, 16, torch.bfloat16, device),
    ]
    sinks = torch.randn(HEADS, device=device) if with_sinks else None
    options = LayerOptions(scale=0.125, window=window, sinks=sinks)
    one, two, three = _sequence([7, 3]), _sequence([1]), _sequence([9, 2, 5])
    steps = [
        [(one, 0, 300), (two, 0, 10), (three, 0, 600)],
        [(one, 300, 1), (two, 10, 1), (three, 600, 1)],
        [(one, 301, 1), (two, 11, 40), (three, 601, 100)],
    ]
    for rows in steps:
        step = _step(rows)
        tokens = len(step.ids)
        query = torch.randn(tokens, HEADS, 64, dtype=torch.bfloat16, device=device)
        key, value = (torch.randn(tokens, 2, 64, dtype=torch.bfloat16, device=device) for _ in range(2))
        found, expected = (backend.prepare(step).attend(0, query, key, value, options) for backend in backends)
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


def test_a_row_of_the_paged_kernel_does_not_depend_on_the_others() -> None:
    device = torch.device("cuda")
    if obstacle := varlen_obstacle(SHAPE, {}, torch.bfloat16):
        pytest.skip(obstacle)
    torch.manual_seed(0)
    backend = VarlenAttention(SHAPE, 32, torch.bfloat16, device)
    options = LayerOptions(scale=0.125)
    sequences = [_sequence([1 + 3 * i, 2 + 3 * i, 3 + 3 * i]) for i in range(8)]
    fill = _step([(sequence, 0, 40 + 90 * i) for i, sequence in enumerate(sequences)])
    tokens = len(fill.ids)
    query, key, value = (torch.randn(tokens, heads, 64, dtype=torch.bfloat16, device=device) for heads in (HEADS, 2, 2))
    backend.prepare(fill).attend(0, query, key, value, options)
    query, key, value = (torch.randn(8, heads, 64, dtype=torch.bfloat16, device=device) for heads in (HEADS, 2, 2))
    rows = [(sequence, 40 + 90 * i, 1) for i, sequence in enumerate(sequences)]
    together = backend.prepare(_step(rows)).attend(0, query, key, value, options)
    for i, row in enumerate(rows):
        alone = backend.prepare(_step([row])).attend(0, query[i : i + 1], key[i : i + 1], value[i : i + 1], options)
        assert torch.equal(alone[0], together[i])


def test_the_default_model_answers_on_the_gpu() -> None:
    from common.model_files import find_model
    from workers.engine.engine import Engine
    from workers.engine.model_loader import load_runner

    # The cache is small, because others may share the GPU; loading also runs the self-check.
    settings = Settings.of(device="cuda", max_batch_total_tokens=65_536)
    runner = load_runner(settings, lambda stage, fraction: None)
    assert runner.card.device_type == "cuda"
    tokenizer = Tokenizer(find_model(settings, weights=False))
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    engine = Engine(runner, tokenizer, settings)
    for i in range(8):
        parameters = GenerationParameters(max_new_tokens=24, seed=0)
        ids = tokenizer.ids(prompt)
        engine.add([Job(id=str(i), model="", prompt_ids=ids, parameters=parameters, submitted_at=0.0)])
    texts = dict.fromkeys(map(str, range(8)), "")
    while engine.has_work:
        for event in engine.step():
            if isinstance(event.body, Tokens):
                texts[event.request] += "".join(token.text for token in event.body.tokens if not token.special)
    assert all("Paris" in text for text in texts.values())
