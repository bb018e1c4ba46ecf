"""A decoder layer of Llama's kind in as few operations as it takes: what a small step on CPU spends beside its products.

Queries, keys and values are one product, so are gate and up; what lies between the products is a kernel each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from workers.engine.attention import AttentionBatch, LayerOptions
from workers.engine.cpu_kernels import add_rms_norm, rms_norm, rotate, silu_product


class RmsNorm:
    """`x / sqrt(mean(x * x) + epsilon) * weight` over the last dimension, for `[1, rows, width]` in float32 on CPU."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight.detach().float().contiguous().numpy()
        self._epsilon = np.float32(epsilon)

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty(x.shape)
        rms_norm(x.contiguous().numpy()[0], self._weight, self._epsilon, out.numpy()[0])
        return out

    def of_sum(self, x: Tensor, more: Tensor) -> Tensor:
        """Adds `more` to `x` in place, and returns the norm of that."""
        out = torch.empty(x.shape)
        add_rms_norm(x.numpy()[0], more.contiguous().numpy()[0], self._weight, self._epsilon, out.numpy()[0])
        return out


class FusedLayer(nn.Module):
    """Stands in a transformers model for one of its decoder layers."""

    def __init__(
        self,
        layer: int,
        *,
        norms: tuple[RmsNorm, RmsNorm],
        projections: tuple[nn.Module, nn.Module, nn.Module, nn.Module],
        activation: nn.Module,
        heads: tuple[int, int],
        options: LayerOptions,
    ) -> None:
        """
        Args:
            norms: before attention and before the feed-forward part.
            projections: to queries, keys and values; from the heads; to gate and up; down.
            heads: of queries and of keys.
        """
        super().__init__()
        self._attention_norm, self._feed_norm = norms
        self.qkv_proj, self.o_proj, self.gate_up_proj, self.down_proj = projections
        self.activation = activation
        self._layer = layer
        self._heads, self._kv_heads = heads
        self._all_heads = self._heads + 2 * self._kv_heads
        self._options = options
        self._silu = isinstance(activation, (nn.SiLU, SiLUActivation))

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        batch: AttentionBatch,
        **_: Any,
    ) -> Tensor:
        """`[1, tokens, width]` to the same; what else transformers hands to a layer concerns its masks and caches."""
        # What torch's modules do to find their parts and to call them takes as long as the smaller operations.
        parts: dict[str, Any] = self._modules
        tokens = hidden_states.shape[1]
        cosine, sine = position_embeddings
        heads = parts["qkv_proj"].forward(self._attention_norm(hidden_states)).view(tokens, self._all_heads, -1)
        if not cosine.shape == sine.shape == (1, tokens, heads.shape[-1]):
            raise ValueError("the rotary embedding is not one of whole heads")
        turning = self._heads + self._kv_heads
        rotate(heads.numpy(), cosine.contiguous().numpy()[0], sine.contiguous().numpy()[0], turning)
        query, key, value = heads.split_with_sizes((self._heads, self._kv_heads, self._kv_heads), 1)
        answer = batch.attend(self._layer, query, key, value, self._options)
        hidden: Tensor = parts["o_proj"].forward(answer.view(1, tokens, -1))
        normed = self._feed_norm.of_sum(hidden, hidden_states)
        return hidden.add_(parts["down_proj"].forward(self._active(parts["gate_up_proj"].forward(normed))))

    def _active(self, gate_up: Tensor) -> Tensor:
        """`[1, tokens, 2 * width]` to `[1, tokens, width]`."""
        if not self._silu:
            gate, up = gate_up.chunk(2, -1)
            active: Tensor = self.activation(gate)
            return active.mul_(up)
        out = torch.empty(*gate_up.shape[:2], gate_up.shape[2] // 2)
        silu_product(gate_up.numpy()[0], out.numpy()[0])
        return out
