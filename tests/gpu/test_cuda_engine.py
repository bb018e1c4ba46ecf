"""On a GPU: the paged kernel computes what plain attention does, and a real model what transformers does."""

from __future__ import annotations

import os

# Before the hub library is imported: everything here is local.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Job, Tokens
from workers.engine.attention import LayerOptions, LayerShape
from workers.engine.attention_cuda import VarlenAttention
from workers.engine.kernel_check import layer_fault, sequence, step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SHAPE = {0: LayerShape(kv_heads=2, key_width=64, value_width=64)}
HEADS = 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(8, 2, 64), (8, 8, 64), (32, 8, 128), (4, 1, 256), (6, 2, 80)])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_the_kernel_computes_attention(
    dtype: torch.dtype, shape: tuple[int, int, int], window: int | None, with_sinks: bool
) -> None:
    device = torch.device("cuda")
    heads, kv_heads, width = shape
    sinks = torch.randn(heads, device=device) if with_sinks else None
    options = LayerOptions(scale=width**-0.5, window=window, sinks=sinks)
    assert layer_fault(LayerShape(kv_heads, width, width), heads, options, dtype, device) is None


def test_a_row_of_the_paged_kernel_does_not_depend_on_the_others() -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    backend = VarlenAttention(SHAPE, 32, torch.bfloat16, device)
    options = LayerOptions(scale=0.125)
    sequences = [sequence([1 + 3 * i, 2 + 3 * i, 3 + 3 * i]) for i in range(8)]
    fill = step([(one, 0, 40 + 90 * i) for i, one in enumerate(sequences)])
    tokens = len(fill.ids)
    query, key, value = (torch.randn(tokens, heads, 64, dtype=torch.bfloat16, device=device) for heads in (HEADS, 2, 2))
    backend.prepare(fill).attend(0, query, key, value, options)
    query, key, value = (torch.randn(8, heads, 64, dtype=torch.bfloat16, device=device) for heads in (HEADS, 2, 2))
    rows = [(one, 40 + 90 * i, 1) for i, one in enumerate(sequences)]
    together = backend.prepare(step(rows)).attend(0, query, key, value, options)
    for i, row in enumerate(rows):
        alone = backend.prepare(step([row])).attend(0, query[i : i + 1], key[i : i + 1], value[i : i + 1], options)
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
