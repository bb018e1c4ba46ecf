"""One row times a weight, read as fast as the memory gives it, with the bits of MKL's product of several rows.

A product of one row reads its weight once and computes next to nothing, and a core that reads one stream of memory waits
for most of it. MKL's packed weight is one stream. Here the weight lies in panels of a few outputs, and a core reads
several of them at once, far from each other. It adds in the order of MKL's product: blocks of inputs, and then the sums
of the blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import carray
from torch import Tensor

from workers.engine import cpu_threads
from workers.engine.cpu_kernels import compiled

Memory = Callable[[int], Tensor]

_PANEL = 64
"""Outputs that lie side by side."""
_STREAMS = 8
_BLOCK = 384
"""MKL adds up blocks of at most so many inputs, equally many in each, ..."""
_BLOCK_STEP = 4
"""... a multiple of this."""
_f = np.float32


class SingleRow:
    """`x @ weight.T` for one row `[in]`, with the memory of a second copy of the weight `[out, in]`; float32."""

    def __init__(self, weight: Tensor, memory: Memory = torch.empty) -> None:
        """
        Args:
            memory: gives room for a number of float32.
        """
        self._outputs, inputs = weight.shape
        panels = -(-self._outputs // _PANEL)
        padded = torch.nn.functional.pad(weight.detach(), (0, 0, 0, panels * _PANEL - self._outputs))
        self._table = memory(padded.numel()).view(panels, inputs, _PANEL)
        self._table.copy_(padded.view(panels, _PANEL, inputs).transpose(1, 2))
        blocks = -(-inputs // _BLOCK)
        size = -(-inputs // (blocks * _BLOCK_STEP)) * _BLOCK_STEP
        self._body = _body()
        self._shape = np.array([self._table.data_ptr(), panels, inputs, size, self._outputs], dtype=np.intp)

    def __call__(self, x: Tensor) -> Tensor:
        """`[1, 1, in]` to `[1, 1, out]`."""
        out = np.empty((1, 1, self._outputs), dtype=np.float32)
        _run(self._body, self._shape, x.numpy()[0, 0], out[0, 0], torch.get_num_threads())
        return torch.from_numpy(out)


class Arena:
    """Hands out a large array in parts: what needs less than a large page shares one."""

    def __init__(self, array: Tensor) -> None:
        self._array = array
        self._taken = 0

    def __call__(self, count: int) -> Tensor:
        """`[count]`; of its own memory when the array is used up."""
        first, self._taken = self._taken, self._taken + count
        return self._array[first : self._taken] if self._taken <= len(self._array) else torch.empty(count)


@compiled
def _run(body: int, shape: Any, x: Any, out: Any, threads: int) -> None:
    arguments = np.empty(7, dtype=np.intp)
    arguments[:5] = shape
    arguments[5] = x.ctypes.data
    arguments[6] = out.ctypes.data
    cpu_threads.parallel(body, arguments.ctypes.data, threads, 0)


def _part(arguments: Any) -> None:
    """A thread's share of the panels."""
    panels, inputs, block, outputs = arguments[1], arguments[2], arguments[3], arguments[4]
    table = carray(cpu_threads.pointer(arguments[0], _f(0)), (panels, inputs, _PANEL))
    x = carray(cpu_threads.pointer(arguments[5], _f(0)), (inputs,))
    out = carray(cpu_threads.pointer(arguments[6], _f(0)), (outputs,))
    number, count = cpu_threads.thread_number(), cpu_threads.thread_count()
    begin, end = panels * number // count, panels * (number + 1) // count
    apart = (end - begin + _STREAMS - 1) // _STREAMS
    sums, block_sums = np.empty((_STREAMS, _PANEL), dtype=np.float32), np.empty((_STREAMS, _PANEL), dtype=np.float32)
    for first in range(begin, begin + apart):
        streams = (end - first + apart - 1) // apart
        sums[:] = 0
        done = 0
        while done < inputs:
            stop = min(done + block, inputs)
            block_sums[:] = 0
            for k in range(done, stop):
                factor = x[k]
                for stream in range(streams):
                    row, to = table[first + stream * apart, k], block_sums[stream]
                    for i in range(_PANEL):
                        to[i] += factor * row[i]
            for stream in range(streams):
                for i in range(_PANEL):
                    sums[stream, i] += block_sums[stream, i]
            done = stop
        for stream in range(streams):
            place = (first + stream * apart) * _PANEL
            for i in range(min(_PANEL, outputs - place)):
                out[place + i] = sums[stream, i]


@functools.cache
def _body() -> int:
    return cpu_threads.thread_body(_part)
