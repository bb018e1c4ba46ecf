"""Before a model is served: does it compute through the engine what it computes by itself?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from common.parameters import GenerationParameters
from common.wire import Job
from workers.engine.attention import ModelRefused
from workers.engine.model_runner import ModelCall
from workers.engine.plan import FloatArray, ModelRunner, Row, StepPlan
from workers.engine.sequence import Sequence
from workers.engine.whole_attention import WholeAttention

TOKENS = 24
TIPPED = 8
"""Forwards that find out what rounding to half precision makes of them (see `rounding`)."""
FACTOR = 1.5
"""How many times as much as rounding makes of it a row of logits may be off, the outliers aside.

In bfloat16 and float16 small models of 92 types, and 600 mixtures, stay within 1.0. In bfloat16 a wrong position, window,
sink or cap makes 2 and more, attention's scale 20 % off 9.8 in SmolLM2-135M and 1.7 to 6 in small dense models. What makes
less, as that scale in one of 30 layers (0.8), no bound tells from rounding.
"""
OUTLIERS, OUTLIER_LIMIT = 2, 1.0
"""In half precision so many rows may be off by up to this limit: rounding sends single tokens of a mixture to other experts,
which was seen to make 0.6. Rows that have nothing in common differ by 1.4."""

QUANTIZATION_TOLERANCE = 0.2
"""Root mean square of what 8-bit weights change, in standard deviations of the logits. SmolLM2-135M: 0.06."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounding alone may make of the check's logits."""

    rows: FloatArray
    """Of each row, as `row_errors` tells it, `[TOKENS]`."""
    outliers: int = 0
    """Rows that may be off by more."""


FLOAT32_ROUNDING = Rounding(np.full(TOKENS, 3e-4, dtype=np.float32))
"""Measured: 1e-5 in SmolLM2-135M and small models of 92 types; attention's scale 10 % off makes 0.013 and more."""
INT8_ROUNDING = Rounding(np.full(TOKENS, 0.01, dtype=np.float32))
"""The same where activations are quantized. Measured: 0.0025 in SmolLM2-135M, below 0.0003 in small models."""


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


def row_errors(found: FloatArray, expected: FloatArray) -> FloatArray:
    """Root mean square of the difference of each row, in standard deviations of the row expected: `[rows]`."""
    error: FloatArray = np.sqrt(np.square(found - expected).mean(axis=-1)) / np.maximum(expected.std(axis=-1), 1e-6)
    return error


def rounding(model: PreTrainedModel, dtype: torch.dtype, vocab_size: int, reference: FloatArray) -> Rounding:
    """What rounding makes of this model's logits.

    In half precision that is a matter of the model: bfloat16 puts rows off by 0.01 to 0.6, in the engine as in the model's
    own forward. So it is measured: the embeddings are tipped by their last bit, this way and that, and the largest change of
    each row counts.

    Args:
        model: with eager attention.
        dtype: of what its layers hand on; quantized weights have another.
        reference: its `eager_logits`.
    """
    if dtype == torch.float32:
        return FLOAT32_ROUNDING
    generator = torch.Generator().manual_seed(0)
    last_bit = torch.finfo(dtype).eps

    def tip(_module: nn.Module, _given: object, embeddings: Tensor) -> Tensor:
        signs = torch.randint(0, 2, embeddings.shape, generator=generator).to(embeddings) * 2 - 1
        return embeddings * (1 + last_bit * signs)

    hook = model.get_input_embeddings().register_forward_hook(tip)
    try:
        changes = [row_errors(eager_logits(model, vocab_size), reference) for _ in range(TIPPED)]
    finally:
        hook.remove()
    return Rounding(np.maximum(np.max(changes, axis=0), FLOAT32_ROUNDING.rows), OUTLIERS)


def check_runner(runner: ModelRunner, reference: FloatArray, rounded: Rounding) -> None:
    """Run the check's tokens through the runner, in two chunks and then one by one beside a second sequence.

    Args:
        rounded: what rounding makes of `reference`.

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
    errors = row_errors(np.concatenate(found), reference)
    outliers = TOKENS - int(np.count_nonzero(errors <= np.minimum(FACTOR * rounded.rows, OUTLIER_LIMIT)))
    # A NaN compares false: it must not pass.
    if outliers > rounded.outliers or (outliers and not errors.max() <= OUTLIER_LIMIT):
        raise ModelRefused(
            f"the engine's logits differ from the model's own in {outliers} of {TOKENS} places, by {errors.max():.2g} of their "
            f"spread (rounding: {rounded.rows.max():.2g}): it computes something the engine does not know"
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
