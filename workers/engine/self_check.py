"""Before a model is served: does it compute through the engine what it computes by itself?"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from common.parameters import GenerationParameters
from common.wire import Job
from workers.engine.attention import ModelRefused
from workers.engine.model_runner import ModelCall
from workers.engine.plan import FloatArray, ModelRunner, Row, StepPlan
from workers.engine.sequence import Sequence
from workers.engine.whole_attention import WholeAttention

TOKENS = 24
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Largest difference of two logits, in standard deviations of a row of logits."""
INT8_TOLERANCE = 0.05
"""The same where activations are quantized: rounding tips some of them over to the next value."""

QUANTIZATION_TOLERANCE = 0.2
"""Root mean square of what 8-bit weights change, in standard deviations of the logits. SmolLM2-135M: 0.06."""


def check_ids(vocab_size: int) -> list[int]:
    """Ids spread over the vocabulary."""
    return [(7 + 7919 * i) % vocab_size for i in range(TOKENS)]


@torch.inference_mode()
def eager_logits(model: PreTrainedModel, vocab_size: int) -> FloatArray:
    """The model's own forward of the check's tokens, `[TOKENS, vocab_size]`; its attention must be set to `eager`."""
    ids = torch.tensor([check_ids(vocab_size)], device=model.device)
    logits: FloatArray = model(input_ids=ids, use_cache=False).logits[0].float().cpu().numpy()
    return logits


@torch.inference_mode()
def whole_logits(model: PreTrainedModel, vocab_size: int) -> FloatArray:
    """The same of a model that has the engine's attention, and may have layers that know no other."""
    ids, rows = check_ids(vocab_size), list(range(TOKENS))
    logits: FloatArray = ModelCall(model)(np.array(ids), np.array(rows), WholeAttention(), rows).float().numpy()
    return logits


def check_runner(runner: ModelRunner, reference: FloatArray, tolerance: float) -> None:
    """Run the check's tokens through the runner, in two chunks and then one by one beside a second sequence.

    Args:
        tolerance: one of the constants above.

    Raises:
        ModelRefused: the logits differ from `reference` by more than rounding.
    """
    ids = check_ids(runner.vocab_size)
    blocks = -(-TOKENS // runner.block_size)
    checked = _sequence(ids, list(range(1, 1 + blocks)))
    beside = _sequence(ids[::-1], list(range(1 + blocks, 1 + 2 * blocks)))
    found = []
    for start, count in [(0, 9), (9, 8), *((position, 1) for position in range(17, TOKENS))]:
        rows = [Row(beside, start, count, logits=1), Row(checked, start, count, logits=count)]
        found.append(runner.forward(StepPlan(rows))[1:].copy())
    logits = np.concatenate(found)
    spread = float(reference.std(axis=-1).max())
    difference = float(np.abs(logits - reference).max())
    # A NaN compares false: it must not pass.
    if not difference <= tolerance * max(spread, 1e-6):
        raise ModelRefused(
            f"the engine's logits differ from the model's own by {difference:.3g} where they spread over {spread:.3g}: "
            "this kind of model computes something the engine does not know"
        )


def check_quantization(found: FloatArray, exact: FloatArray) -> None:
    """Compare the logits of the quantized model with those of the model itself.

    Raises:
        ModelRefused: 8 bits are too few for this model's weights.
    """
    error = float((found - exact).std() / max(float(exact.std()), 1e-6))
    if not error <= QUANTIZATION_TOLERANCE:
        raise ModelRefused(
            f"with QUANTIZE=int8 the logits are off by {error:.0%} of their spread; this model needs its full precision"
        )


def _sequence(ids: list[int], blocks: list[int]) -> Sequence:
    parameters = GenerationParameters(max_new_tokens=1, seed=0)
    sequence = Sequence(Job(id="self-check", model="", prompt_ids=ids, parameters=parameters, submitted_at=0.0))
    sequence.blocks = blocks
    return sequence
