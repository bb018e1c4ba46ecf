"""Finds out by one forward what a model's layers ask of their attention, instead of guessing it from the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from workers.engine.attention import LayerOptions, LayerShape, ModelRefused
from workers.engine.model_runner import ModelCall

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


@dataclass
class LayerProbe:
    """An `AttentionBatch` that computes nothing and notes what each layer passed."""

    shapes: dict[int, LayerShape] = field(default_factory=dict)
    options: dict[int, LayerOptions] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    """Of the queries."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
        if layer in self.shapes:
            raise ModelRefused(f"layer {layer} attends more than once per token, which is not supported")
        if query.shape[1] % key.shape[1]:
            raise ModelRefused(f"layer {layer} has {query.shape[1]} heads over {key.shape[1]} key heads")
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        self.options[layer] = options
        self.heads[layer] = query.shape[1]
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


@torch.inference_mode()
def probe_layers(model: PreTrainedModel, tokens: int, rows: int = 1) -> tuple[LayerProbe, int]:
    """Run `tokens` tokens through the model, the largest step there will be where its memory matters.

    Args:
        rows: logits to compute.

    Returns:
        What the layers passed, and the width of the logits.

    Raises:
        ModelRefused: the model's layers cannot be served by a plain key/value pool.
    """
    probe = LayerProbe()
    # All at position 0: a step may be longer than the model's context.
    zeros = np.zeros(tokens, dtype=np.int64)
    logits = ModelCall(model)(zeros, zeros, probe, list(range(min(rows, tokens)))).float()
    config = model.config.get_text_config()
    kinds = list(getattr(config, "layer_types", None) or [])
    if strange := sorted(set(kinds) - _KNOWN_LAYERS):
        raise ModelRefused(f"layers of kind {', '.join(strange)} are not supported")
    if len(probe.shapes) != config.num_hidden_layers:
        raise ModelRefused(
            f"{len(probe.shapes)} of {config.num_hidden_layers} layers use transformers' attention interface; all must"
        )
    for layer, kind in enumerate(kinds):
        # A window that a model keeps in its mask only would be lost, and no short check would notice.
        if kind == "sliding_attention" and layer in probe.options and probe.options[layer].window is None:
            raise ModelRefused(f"layer {layer} has a sliding window but does not say how wide it is")
    return probe, logits.shape[-1]


def graph_bytes(model: PreTrainedModel, rows: int, width: int) -> int:
    """Memory that graphs of at most `rows` rows take on a CUDA device, over logits of this width.

    They share what the largest takes, which kernel by kernel is measured here, and one array of logits.
    """
    if not rows:
        return 0
    before = torch.cuda.memory_allocated(model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
    probe_layers(model, rows, rows)
    return torch.cuda.max_memory_allocated(model.device) - before + rows * width * torch.float32.itemsize
