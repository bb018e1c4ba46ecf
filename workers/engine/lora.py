"""LoRA in the forward: what each sequence's adapter adds to the model's linear layers.

Tokens are sorted by adapter once per step; a layer then makes one pair of small products for each adapter at work, over
the rows of its tokens alone. So the cost is that of the tokens that have one, and a token's result depends on neither the
other adapters nor the other tokens: the products are the same row by row (see `linear`) and the sum is element by element.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from workers.engine.attention import StagedRow
from workers.engine.linear import pack
from workers.engine.staging import Upload


@dataclass(frozen=True, eq=False)
class Adapter:
    """One version of an adapter, ready to be used. A sequence keeps the version it began with."""

    name: str
    version: bytes
    """Digest of its files."""
    deltas: dict[str, LowRank]
    """By the name of the linear layer."""

    @property
    def salt(self) -> bytes:
        """What keys and values computed with it depend on: for the prefix cache."""
        return self.version


class LowRank(nn.Module):
    """`scale * (x @ down.T) @ up.T` with `down` `[rank, in]` and `up` `[out, rank]`; rows do not depend on each other."""

    def __init__(self, down: Tensor, up: Tensor, scale: float, *, packed: bool) -> None:
        """
        Args:
            packed: multiply on CPU with packed weights (`linear.can_pack`).
        """
        super().__init__()
        up = up * scale
        self._down, self._up = (pack(w, None) if packed else _plain(w) for w in (down, up))

    def forward(self, x: Tensor) -> Tensor:
        delta: Tensor = self._up(self._down(x))
        return delta


class LoraStep:
    """Which tokens of the step at hand have which adapter; shared by all layers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.parts: list[tuple[Adapter, Tensor]] = []
        """Adapters at work, each with the places of its tokens, int64 `[n]`."""

    def begin(self, rows: list[StagedRow], upload: Upload | None = None) -> None:
        """Sort the tokens of a step; the places are sent by `upload` if there is one."""
        places: dict[Adapter, list[range]] = {}
        for row in rows:
            if isinstance(row.sequence.adapter, Adapter):
                places.setdefault(row.sequence.adapter, []).append(range(row.first, row.first + row.count))
        self.parts = [
            (adapter, (upload or self._upload)(np.concatenate(ranges).astype(np.int64)))
            for adapter, ranges in places.items()
        ]

    def _upload(self, places: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(places).to(self._device)


LayerParts = dict[str, list[tuple[str, slice]]]
"""By the name of a linear layer: the model's own layers it computes in one, each with its part of the outputs."""


class LoraLinear(nn.Module):
    """A linear layer and what the adapters at work add to it, over `[1, tokens, in]`."""

    def __init__(self, base: nn.Module, parts: list[tuple[str, slice]], step: LoraStep) -> None:
        super().__init__()
        self.base = base
        self._parts = parts
        self._step = step

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        for adapter, places in self._step.parts:
            for name, part in self._parts:
                delta = adapter.deltas.get(name)
                if delta is not None:
                    y[0, :, part].index_add_(0, places, delta(x[0].index_select(0, places)))
        return y


@dataclass(frozen=True, slots=True)
class LinearShape:
    """Of a layer that adapters may change."""

    inputs: int
    outputs: int


@contextmanager
def adaptable_layers(model: PreTrainedModel, tokens: int) -> Iterator[dict[str, LinearShape]]:
    """Collects the linear layers that see every token of a step of `tokens` tokens which runs inside this context.

    The output layer is none of them, as it sees only the rows whose logits are wanted; a layer inside a mixture of experts
    is none either.
    """
    found: dict[str, LinearShape] = {}
    hooks = []
    output = model.get_output_embeddings()  # type: ignore[no-untyped-call]

    def note(name: str, shape: LinearShape, x: Tensor) -> None:
        if tuple(x.shape) == (1, tokens, shape.inputs):
            found[name] = shape

    for name, module in model.named_modules():
        shape = _shape(module)
        if shape is not None and module is not output:
            hooks.append(module.register_forward_pre_hook(lambda _, x, n=name, s=shape: note(n, s, x[0])))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def wrap_layers(model: PreTrainedModel, names: Collection[str], joined: LayerParts, step: LoraStep) -> None:
    """Put a `LoraLinear` around each of these layers, in place.

    Args:
        joined: what was made of some of them.
    """
    parts = {joint: members for joint, members in joined.items() if any(name in names for name, _ in members)}
    gone = {name for members in joined.values() for name, _ in members}
    parts |= {name: [(name, slice(None))] for name in names if name not in gone}
    for name, members in parts.items():
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, LoraLinear(model.get_submodule(name), members, step))


def _shape(module: nn.Module) -> LinearShape | None:
    if isinstance(module, Conv1D):
        return LinearShape(module.weight.shape[0], module.weight.shape[1])
    inputs, outputs = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return LinearShape(inputs, outputs) if isinstance(inputs, int) and isinstance(outputs, int) else None


def _plain(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    return layer
