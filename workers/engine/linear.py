"""Linear layers on CPU with the weight packed once, whose rows do not depend on how many rows there are.

The product behind `nn.Linear` picks its kernel, and with it the order of summation, by the number of rows: a token's
result would change with the size of its batch. Over a weight that is packed beforehand the order is the packed one's,
and every row has the same bits in any company; being packed only once it is faster too. MKL's product takes large
float32 layers, and where there is memory for a second copy of the weights, `few_rows` takes few rows of those; oneDNN's
product takes the others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from workers.engine import cpu_threads
from workers.engine.few_rows import MOST_ROWS, Arena, FewRows, Memory
from workers.engine.memory import large_pages

_PACKED_ROWS = 64
"""MKL's layout is chosen for a number of rows. This one serves all of them well; that for one row has other sums."""
_SMALL = 1 << 16
"""MKL computes a single row of a layer with fewer weights in another order."""
_NARROW = 16
"""The same of a layer with fewer outputs, for several rows too."""
_ALIKE_ROWS = 32
"""Where oneDNN sums bfloat16 in other orders for more rows (with AMX), it is given no more than these at once."""


# The operator itself: choosing among its overloads costs as much as the call.
_mkl_linear = torch.ops.mkl._mkl_linear.default


class MklLinear(nn.Module):
    """`x @ weight.T + bias` in float32 with `weight` `[out, in]` in MKL's layout; inference only."""

    weight: Tensor
    bias: Tensor | None
    _shape: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.detach().contiguous(), _PACKED_ROWS)
        self.register_buffer("weight", packed, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)
        # Of the unpacked weight the product wants the shape only.
        self.register_buffer("_shape", torch.empty(1).expand(weight.shape), persistent=False)
        self._few_rows: FewRows | None = None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // self.in_features
        if rows == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        if self._few_rows is not None and rows <= MOST_ROWS:
            return self._few_rows(x.contiguous())
        # The last argument claims that the weight was packed for this number of rows; otherwise it would not be used.
        product: Tensor = _mkl_linear(x, self.weight, self._shape, self.bias, rows)
        return product

    @property
    def copied(self) -> bool:
        """Whether there is a second copy of the weight, for few rows."""
        return self._few_rows is not None

    def keep_for_few_rows(self, weight: Tensor, memory: Memory = torch.empty) -> None:
        """Take a second copy of the weight `[out, in]` in the layout for few rows, if their product has the same bits here."""
        if not cpu_threads.AVAILABLE:
            return
        few_rows = FewRows(weight, self.bias, memory)
        x = torch.linspace(0, 50, 3 * self.in_features).cos().view(3, -1)
        if torch.equal(few_rows(x), self(x)):
            self._few_rows = few_rows


class OneDnnLinear(nn.Module):
    """`x @ weight.T + bias` in float32 or bfloat16 with `weight` `[out, in]` in oneDNN's layout; inference only."""

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
        rows = x.numel() // self.in_features
        if rows == 1:
            # A single row goes through another kernel: it gets company.
            twice = x.reshape(1, -1).expand(2, -1).contiguous()
            return self.product(twice)[:1].view(*x.shape[:-1], self.out_features)
        if rows > _ALIKE_ROWS and x.dtype == torch.bfloat16 and _order_depends_on_rows():
            parts = torch.split(x.reshape(rows, -1), _ALIKE_ROWS)
            # The last part may be a single row.
            return torch.cat([self(part) for part in parts]).view(*x.shape[:-1], self.out_features)
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """Of two rows or more, as oneDNN computes it."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product


PackedLinear = MklLinear | OneDnnLinear


def pack(weight: Tensor, bias: Tensor | None) -> PackedLinear:
    """A layer with this `[out, in]` weight; `can_pack` says for which types there are any."""
    large = weight.numel() >= _SMALL and weight.shape[0] >= _NARROW
    if large and weight.dtype == torch.float32 and _mkl_serves():
        return MklLinear(weight, bias)
    return OneDnnLinear(weight, bias)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch packs weights of this type on this processor."""
    return dtype in (torch.float32, torch.bfloat16) and _computes(
        OneDnnLinear, torch.linspace(-1, 1, 96 * 160, dtype=torch.float32).sin().view(96, 160).to(dtype), (1, 2, 5, 16)
    )


@functools.cache
@torch.inference_mode()
def _order_depends_on_rows() -> bool:
    """Whether oneDNN sums a row of bfloat16 in another order when there are many of them."""
    generator = torch.Generator().manual_seed(1)

    def halves(rows: int) -> tuple[Tensor, Tensor]:
        half = torch.randn(rows, 512, generator=generator).bfloat16()
        return half, half.flip(1)

    # Sums that cancel: all that is left of them is the order of their rounding, which bfloat16 would hide otherwise.
    (x, turned), (weight, turned_weight) = halves(2 * _ALIKE_ROWS + 1), halves(576)
    layer = OneDnnLinear(torch.cat([weight, -turned_weight], dim=1), None)
    rows = torch.cat([x, turned], dim=1)
    return not torch.equal(layer.product(rows[:_ALIKE_ROWS]), layer.product(rows)[:_ALIKE_ROWS])


@functools.cache
def _mkl_serves() -> bool:
    """Whether MKL multiplies with a weight that was packed for another number of rows, and rows keep their bits."""
    weight = torch.linspace(-1, 1, 200 * 1111).sin().view(200, 1111)
    return _computes(MklLinear, weight, (1, 2, 3, 7, 16, 17, 48, 130))


@torch.inference_mode()
def _computes(layer: type[MklLinear] | type[OneDnnLinear], weight: Tensor, counts: tuple[int, ...]) -> bool:
    x = torch.linspace(0, 50, max(counts) * weight.shape[1]).cos().view(max(counts), -1).to(weight.dtype)
    try:
        packed = layer(weight, None)
        whole = packed(x)
        same = all(torch.equal(packed(x[-count:].clone()), whole[-count:]) for count in counts)
    except (RuntimeError, AttributeError):
        return False
    exact = x.double() @ weight.double().t()
    return same and torch.allclose(whole.double(), exact, rtol=0.02, atol=2e-2 * float(exact.abs().max()))


@torch.inference_mode()
def pack_linears(model: nn.Module, *, spare_bytes: int = 0) -> None:
    """Replace the model's dense layers in place; a weight that nothing else uses is freed as it is packed.

    Args:
        spare_bytes: memory for second copies of weights, which make small steps faster: all of them or none.
    """
    size = dense_parameters(model)
    memory = Arena(large_pages(size)) if size * torch.float32.itemsize <= spare_bytes else None
    for parent, name, weight, bias in dense_layers(model):
        layer = pack(weight, bias)
        if memory is not None and isinstance(layer, MklLinear):
            layer.keep_for_few_rows(weight, memory)
        setattr(parent, name, layer)


def dense_parameters(model: nn.Module) -> int:
    """Weights of all dense layers."""
    return sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear | Conv1D))


def dense_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor, Tensor | None]]:
    """Where each dense layer is, to be replaced there, its weight `[out, in]` and its bias."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                yield parent, name, child.weight, child.bias
            elif type(child) is Conv1D:
                # GPT-2's own layer: the same product with the weight stored the other way round.
                yield parent, name, child.weight.t(), child.bias
