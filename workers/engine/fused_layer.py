"""A decoder layer of Llama's kind in as few operations as it takes: what a small step on CPU spends beside its products.

Queries, keys and values are one product, so are gate and up; queries and keys are rotated together; sums are made in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from workers.engine.attention import AttentionBatch, LayerOptions


class RmsNorm:
    """`x / sqrt(mean(x * x) + epsilon) * weight` over the last dimension, in float32 on CPU."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        width = weight.shape[0]
        # What x is divided by is the square root of the sum, not of the mean, of its squares.
        self._weight = weight * width**0.5
        # A tensor: adding a number of Python's costs three times as much.
        self._floor = torch.tensor(epsilon * width)

    def __call__(self, x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x.div(size.mul_(size).add_(self._floor).sqrt_()).mul_(self._weight)


class Rotation:
    """A step's rotary embedding, made ready once for all layers that are given the same."""

    def __init__(self) -> None:
        self._given: Any = None
        self._ready: tuple[Tensor, Tensor] | None = None

    def of(self, embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """From cosine and sine `[1, tokens, width]`: `[tokens, 1, width]` both, the sine's first half negated."""
        if self._ready is None or self._given is not embeddings:
            cosine, sine = embeddings
            half = sine.shape[-1] // 2
            signed = torch.cat((-sine[0, :, None, :half], sine[0, :, None, half:]), dim=-1)
            # The argument is kept, so that no other can take its place and look the same.
            self._given, self._ready = embeddings, (cosine[0, :, None], signed)
        return self._ready


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
        rotation: Rotation,
    ) -> None:
        """
        Args:
            norms: before attention and before the feed-forward part.
            projections: to queries, keys and values; from the heads; to gate and up; down.
            heads: of queries and of keys.
            rotation: shared by all layers.
        """
        super().__init__()
        self._attention_norm, self._feed_norm = norms
        self.qkv_proj, self.o_proj, self.gate_up_proj, self.down_proj = projections
        self.activation = activation
        self._layer = layer
        self._heads, self._kv_heads = heads
        self._all_heads = self._heads + 2 * self._kv_heads
        self._options = options
        self._rotation = rotation
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
        heads = parts["qkv_proj"].forward(self._attention_norm(hidden_states)).view(tokens, self._all_heads, -1)
        turning, value = heads.split_with_sizes((self._heads + self._kv_heads, self._kv_heads), 1)
        turned = self._rotate(turning, *self._rotation.of(position_embeddings))
        query, key = turned.split_with_sizes((self._heads, self._kv_heads), 1)
        answer = batch.attend(self._layer, query, key, value, self._options)
        hidden: Tensor = parts["o_proj"].forward(answer.view(1, tokens, -1)).add_(hidden_states)
        gate, up = parts["gate_up_proj"].forward(self._feed_norm(hidden)).chunk(2, -1)
        active = nn.functional.silu(gate, inplace=True) if self._silu else parts["activation"](gate)
        return hidden.add_(parts["down_proj"].forward(active.mul_(up)))

    @staticmethod
    def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return (x * cosine).addcmul_(x.roll(x.shape[-1] // 2, -1), sine)
