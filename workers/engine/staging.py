"""What a step needs on the device, sent there in one copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Upload = Callable[[npt.NDArray[Any]], Tensor]
"""Gives the device's copy of an array."""

_ALIGNMENT = 16
"""Bytes; kernels may read as much at once."""


class Stage:
    """Arrays laid one behind another in pinned memory, and the same layout on the device.

    `add` gives the device's view at once; its content is right for whatever is launched after `send`. Steps that add
    arrays of the same sizes in the same order find them at the same addresses, which is what captured graphs rely on.

    The memory on the device is the same for every step, because steps run there one after another. That on the host is
    there twice: a step is laid out while the copy of the one before may still be under way.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        """
        Args:
            size: bytes; what a step needs beyond them is sent array by array.
        """
        self._cuda = device.type == "cuda"
        self._target = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sources = [torch.zeros(size, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(2)]
        self._bytes = [source.numpy() for source in self._sources]
        self._sent: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0
        self._used = 0

    def begin(self) -> None:
        """Begin a step's layout."""
        self._turn = 1 - self._turn
        self._used = 0
        if (sent := self._sent[self._turn]) is not None:
            sent.synchronize()

    def add(self, array: npt.NDArray[Any]) -> Tensor:
        """Lay an array out; what it holds by now is sent."""
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        end = start + array.nbytes
        if end > len(self._target):
            return torch.from_numpy(array).to(self._target.device)
        source = np.ascontiguousarray(array)
        self._bytes[self._turn][start:end] = source.reshape(-1).view(np.uint8)
        self._used = end
        dtype = torch.from_numpy(source).dtype
        return self._target[start:end].view(dtype).view(array.shape)

    def send(self) -> None:
        """Start the copy of all that was added."""
        part = slice(self._used)
        self._target[part].copy_(self._sources[self._turn][part], non_blocking=True)
        if self._cuda:
            event = self._sent[self._turn] or torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._sent[self._turn] = event
