"""One row times a weight, read nearly as fast as the memory gives it, with the bits of MKL's product of several rows.

A product of one row reads its weight once and computes next to nothing, and a core that reads one stream of memory waits
for most of it. MKL's packed weight is one stream. Here the weight lies in eight, and the rows of a table that are added
up one after the other, times an element of the row each, come from all of them in turn: `embedding_bag`'s kernel does
just that. It adds in the order of MKL's product: blocks of inputs, and then the sums of the blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

Memory = Callable[[int], Tensor]

_STREAMS = 8
_WIDTHS = (192, 256, 160, 128, 224, 320, 96, 64)
"""Outputs that are computed together, the best first. Whichever divides a layer's outputs saves a copy."""
_BLOCK = 384
"""MKL adds up blocks of at most so many inputs, equally many in each, ..."""
_BLOCK_STEP = 4
"""... a multiple of this."""


class SingleRow:
    """`x @ weight.T` for one row `[in]`, with the memory of a second copy of the weight `[out, in]`; float32."""

    def __init__(self, weight: Tensor, memory: Memory = torch.empty) -> None:
        """
        Args:
            memory: gives room for a number of float32.
        """
        self._outputs, inputs = weight.shape
        width = next((width for width in _WIDTHS if self._outputs % width == 0), _WIDTHS[0])
        self._panels = -(-self._outputs // width)
        padded = torch.nn.functional.pad(weight.detach(), (0, 0, 0, self._panels * width - self._outputs))
        rows = padded.view(self._panels, width, inputs).transpose(1, 2).reshape(-1, width)
        order, self._places, self._bags = _layout(self._panels, inputs)
        self._table = memory(rows.numel()).view(rows.shape)
        torch.index_select(rows, 0, order, out=self._table)
        self._shape = (self._panels, -1, width)
        self._exact = self._panels * width == self._outputs

    def __call__(self, x: Tensor) -> Tensor:
        """`[1, 1, in]` to `[1, 1, out]`."""
        # A row of the table is one input of one panel. `repeat` would make the same of many small operations.
        factors = x.expand(1, self._panels, -1).reshape(-1)
        sums = torch.embedding_bag(self._table, self._places, self._bags, False, 0, False, factors, False)[0]
        answer = sums.view(self._shape).sum(1).view(1, 1, -1)
        return answer if self._exact else answer[..., : self._outputs]


class Arena:
    """Hands out a large array in parts: what needs less than a large page shares one."""

    def __init__(self, array: Tensor) -> None:
        self._array = array
        self._taken = 0

    def __call__(self, count: int) -> Tensor:
        """`[count]`; of its own memory when the array is used up."""
        first, self._taken = self._taken, self._taken + count
        return self._array[first : self._taken] if self._taken <= len(self._array) else torch.empty(count)


@functools.cache
def _layout(panels: int, inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Shared by all layers of a size: which rows lie one after the other, the place of each, where each sum begins."""
    count = panels * inputs
    order = torch.cat([torch.arange(first, count, _STREAMS) for first in range(_STREAMS)])
    places = torch.empty(count, dtype=torch.int32)
    places[order] = torch.arange(count, dtype=torch.int32)
    blocks = -(-inputs // _BLOCK)
    size = -(-inputs // (blocks * _BLOCK_STEP)) * _BLOCK_STEP
    bags = torch.arange(0, inputs, size)[None] + torch.arange(0, count, inputs)[:, None]
    return order, places, bags.reshape(-1).to(torch.int32)
