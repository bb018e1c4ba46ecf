"""Before a kernel is trusted: does it compute attention on this device?

Over pages some releases of torch gave wrong results without an error. A wrong kernel is not used, and the log says so.
"""

from __future__ import annotations

import numpy as np
import torch

from common.parameters import GenerationParameters
from common.wire import Job
from workers.engine.attention import LayerOptions, LayerShape, StagedRow, StagedStep
from workers.engine.attention_cuda import VarlenAttention
from workers.engine.attention_paged import PAGE, GatherAttention
from workers.engine.layer_probe import LayerProbe
from workers.engine.sequence import Sequence

TOLERANCE = 0.05
"""Largest difference; values are of the order of 1, and half precision rounds each of them by up to 0.004."""
_BLOCKS = 8


def kernel_fault(probe: LayerProbe, dtype: torch.dtype, device: torch.device) -> str | None:
    """What is wrong with flash attention here, for some layer of a model; None when nothing is."""
    kinds = {
        (probe.shapes[layer], probe.heads[layer], options.window, options.sinks is None): options
        for layer, options in probe.options.items()
    }
    faults = (layer_fault(shape, heads, options, dtype, device) for (shape, heads, *_), options in kinds.items())
    return next((fault for fault in faults if fault is not None), None)


@torch.inference_mode()
def layer_fault(
    shape: LayerShape, heads: int, options: LayerOptions, dtype: torch.dtype, device: torch.device
) -> str | None:
    """The same for layers of one kind.

    Two sequences, one of them longer than a page, are computed as prompts, token by token, and in a step of both kinds, and
    compared with the definition.

    Args:
        heads: of the queries.
    """
    checked = VarlenAttention({0: shape}, _BLOCKS, dtype, device)
    defined = GatherAttention({0: shape}, _BLOCKS, dtype, device)
    long, short = sequence([5, 6] if checked.contiguous_blocks else [6, 3]), sequence([2])
    steps = [
        [(short, 0, 20), (long, 0, PAGE + 30)],
        [(short, 20, 1), (long, PAGE + 30, 1)],
        [(short, 21, 1), (long, PAGE + 31, 40)],
    ]
    # So that scores spread over a few units whatever their scale: over many keys of equal weight a mistake is hardly seen.
    sharpness = 4.0 / (options.scale * shape.key_width**0.5)
    generator = torch.Generator().manual_seed(0)
    for rows in steps:
        staged = step(rows)
        query, key, value = (
            torch.randn(len(staged.ids), count, width, generator=generator).to(device, dtype)
            for count, width in (
                (heads, shape.key_width),
                (shape.kv_heads, shape.key_width),
                (shape.kv_heads, shape.value_width),
            )
        )
        query *= sharpness
        try:
            found = checked.prepare(staged).attend(0, query, key, value, options)
        except (RuntimeError, TypeError, ValueError) as error:
            return str(error).partition("\n")[0]
        difference = float((found - defined.prepare(staged).attend(0, query, key, value, options)).abs().max())
        # A NaN compares false: it must not pass.
        if not difference <= TOLERANCE:
            return f"its results are off by {difference:.2g}"
    return None


def sequence(blocks: list[int]) -> Sequence:
    """One that holds these blocks."""
    parameters = GenerationParameters(max_new_tokens=1, seed=0)
    made = Sequence(Job(id="kernel-check", model="", prompt_ids=[0], parameters=parameters, submitted_at=0.0))
    made.blocks = blocks
    return made


def step(rows: list[tuple[Sequence, int, int]]) -> StagedStep:
    """Of rows given as sequence, first position and number of tokens; only their places are right."""
    staged: list[StagedRow] = []
    slots: list[int] = []
    for one, start, count in rows:
        staged.append(StagedRow(one, start, count, len(slots)))
        slots += [one.blocks[p // PAGE] * PAGE + p % PAGE for p in range(start, start + count)]
    positions = np.concatenate([np.arange(start, start + count) for _, start, count in rows])
    return StagedStep(np.zeros_like(positions), positions, np.array(slots), staged)
