"""Linear layers on CPU with the weight packed once, whose rows do not depend on how many rows there are.

MKL's product behind `nn.Linear` picks its kernel, and with it the order of summation, by the number of rows (and of
threads): a token's result would change with the size of its batch. oneDNN's product over a packed weight gives every
row the same bits in any company of at least `MIN_ROWS` rows, and is faster below 64 rows because it packs only once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

MIN_ROWS = 2
"""A single row goes through another kernel."""


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` with `weight` `[out, in]` in oneDNN's layout; inference only."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self.register_buffer("weight", packed, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch packs weights of this type on this processor."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    try:
        with torch.inference_mode():
            PackedLinear(torch.zeros(16, 16, dtype=dtype), None)(torch.zeros(MIN_ROWS, 16, dtype=dtype))
    except (RuntimeError, AttributeError):
        return False
    return True


@torch.inference_mode()
def pack_linears(model: nn.Module) -> None:
    """Replace the model's dense layers in place; a weight that nothing else uses is freed as it is packed."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child.weight, child.bias))
            elif type(child) is Conv1D:
                # GPT-2's own layer: the same product with the weight stored the other way round.
                setattr(parent, name, PackedLinear(child.weight.t(), child.bias))
