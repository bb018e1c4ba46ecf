"""Linear layers on CPU with 8-bit weights: a quarter of the memory, integer sums, rows that are exact in any company.

Weights are int8 with one scale per output channel. Activations are quantized as they come, with one scale per token, so
that no token changes another's result, into two digits of 8 bits: with one alone the few large channels that language
models have leave too little to the others (SmolLM2-135M: 0.036 nats of divergence instead of 0.005). Both digits are rows
of the same product, so the weight is still read once. Integer sums have no order, so a row is the same bits in any batch.

Digits are unsigned around a zero point of 128: oneDNN has no fast kernel for signed ones on processors without AMX.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from workers.engine import cpu_kernels
from workers.engine.byte_product import MOST_ROWS, ByteProduct, serves
from workers.engine.linear import dense_layers, dense_parameters

Quantized = tuple[Tensor, npt.NDArray[np.float32]]

_LARGEST = 127
_ZERO_POINT = 128
_DIGIT = 256
_SMALLEST_RANGE = 1e-30
"""Keeps a row of zeros from dividing by zero."""

_OFFSET = np.float32(_ZERO_POINT + 0.5 + 0.5 / _DIGIT)
"""Conversion cuts off what is behind the point, and all values are positive: with half a last digit it rounds."""


class Activations:
    """The last input that was quantized: projections that share an input quantize it once."""

    def __init__(self) -> None:
        self._input: Tensor | None = None
        self._quantized: Quantized | None = None

    def quantize(self, x: Tensor) -> Quantized:
        """`quantize_rows(x)`."""
        if self._quantized is None or self._input is not x:
            self._quantized = quantize_rows(x)
            # Kept, so that no other tensor can take its place and look the same.
            self._input = x
        return self._quantized

    def forget(self) -> None:
        """Let go of the last input; between two steps nothing is kept."""
        self._input = self._quantized = None


class QuantizedLinear(nn.Module):
    """`x @ weight.T + bias` for float32 `x`, with `weight` `[out, in]` in int8; inference only."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None
    _zero_points: Tensor

    def __init__(
        self, weight: Tensor, bias: Tensor | None, activations: Activations, *, second_copy: bool = False
    ) -> None:
        """
        Args:
            second_copy: keep the weight once more for products of few rows.
        """
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._activations = activations
        quantized, scale = quantize_channels(weight.detach().float())
        self.register_buffer("weight", torch.ops.onednn.qlinear_prepack(quantized, None), persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("_zero_points", torch.zeros(self.out_features, dtype=torch.long), persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach().float(), persistent=False)
        self._few_rows: ByteProduct | None = None
        if second_copy and serves(self.in_features):
            self._keep_for_few_rows(ByteProduct(quantized, scale, _ZERO_POINT))

    def _keep_for_few_rows(self, few_rows: ByteProduct) -> None:
        """If its bits are those of oneDNN, which makes numbers of the sums in its own way."""
        largest = torch.full((3, self.in_features), 255, dtype=torch.uint8)
        largest[1] = torch.arange(self.in_features)
        largest[2, ::2] = 0
        if torch.equal(few_rows(largest), self._product(largest)):
            self._few_rows = few_rows

    def _product(self, rows: Tensor) -> Tensor:
        """Digits `[rows, in]` to `[rows, out]`."""
        if self._few_rows is not None and len(rows) <= MOST_ROWS:
            return self._few_rows(rows)
        return _product(rows, self.weight, self.scale, self._zero_points)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        digits, scales = self._activations.quantize(x)
        products = self._product(digits.view(-1, self.in_features)).view(2, -1, self.out_features)
        cpu_kernels.join_digits(products.numpy(), scales)
        product = products[0].view(*x.shape[:-1], self.out_features)
        return product if self.bias is None else product.add_(self.bias)


def quantize_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of `[out, in]`: int8 values, and the scale of each output channel `[out]`."""
    scale = weight.abs().amax(dim=1).clamp_min_(_SMALLEST_RANGE) / _LARGEST
    return torch.round(weight / scale[:, None]).to(torch.int8).contiguous(), scale


def quantize_rows(x: Tensor) -> Quantized:
    """Of `[..., in]`: the two digits of the rows `[2, rows, in]`, and the rows' scales `[rows]`.

    `x` is close to `scale * ((high - 128) + (low - 128) / 256)`.
    """
    rows = x.contiguous().numpy().reshape(-1, x.shape[-1])
    digits = torch.empty(2, *rows.shape, dtype=torch.uint8)
    scales = np.empty(len(rows), dtype=np.float32)
    high, low = digits.numpy()
    cpu_kernels.quantize_rows(rows, _OFFSET, high, low, scales)
    return digits, scales


def _product(values: Tensor, weight: Tensor, scale: Tensor, zero_points: Tensor) -> Tensor:
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        values, 1.0, _ZERO_POINT, weight, scale, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


def int8_obstacle() -> str | None:
    """Why this build of torch, on this processor, cannot multiply in 8 bits; None: it can, and its sums are exact.

    Processors without dot products of bytes add pairs of products in 16 bits, which overflow: the largest values tell.
    """
    values = torch.full((3, 96), 255, dtype=torch.uint8)
    values[1] = torch.arange(96)
    weight = torch.full((32, 96), _LARGEST, dtype=torch.int8)
    weight[1::2] = -_LARGEST
    expected = (values.long() - _ZERO_POINT) @ weight.long().t()
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        found = [_product(values[:n], packed, torch.ones(32), torch.zeros(32, dtype=torch.long)) for n in (1, 3)]
    except (RuntimeError, AttributeError) as error:
        return f"this build of torch has no product of int8 matrices for this processor ({error})"
    if not all(torch.equal(product, expected[: len(product)].float()) for product in found):
        return "this processor's product of int8 matrices is not exact"
    return None


@torch.inference_mode()
def quantize_linears(model: nn.Module, *, spare_bytes: int = 0) -> Activations:
    """Replace the model's dense layers in place; a weight that nothing else uses is freed as it is quantized.

    Args:
        spare_bytes: memory for second copies of weights, which make small steps faster: all of them or none.
    """
    activations = Activations()
    second_copy = dense_parameters(model) <= spare_bytes
    for parent, name, weight, bias in dense_layers(model):
        setattr(parent, name, QuantizedLinear(weight, bias, activations, second_copy=second_copy))
    return activations
