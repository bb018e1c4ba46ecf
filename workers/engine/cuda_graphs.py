"""Decode steps captured as CUDA graphs: launched as one instead of kernel by kernel.

A graph is right for one number of rows, so a few sizes are captured and a step is padded to the next one; a step with
more rows than the largest runs kernel by kernel. Sampling stays outside.
"""

from __future__ import annotations

import logging
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Work = Callable[[], None]
Capture = Callable[[Work], Work]
"""Runs some work and gives what runs it again, over the same addresses."""


def graph_sizes(sizes: Iterable[int], batch_size: int) -> list[int]:
    """The sizes to capture, ascending, of those in the settings; none where 0 is among them."""
    wanted = set(sizes)
    # No step has more rows than `batch_size`: a larger graph serves in its place with fewer.
    return [] if 0 in wanted else sorted({min(size, batch_size) for size in wanted})


class CudaCapture:
    """Captures work on a CUDA device, all of it into one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, work: Work) -> Work:
        """
        Raises:
            RuntimeError: the work waits for the device, so that it cannot be captured, or the capture failed.
        """
        outside = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outside)
        # This context restores the stream even where a failed capture does not.
        with torch.cuda.stream(self._stream):
            _without_waiting(work)
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        outside.wait_stream(self._stream)
        replay: Work = graph.replay
        return replay


def _without_waiting(work: Work) -> None:
    """Warm up, and fail where the work waits for the device: better here than in the middle of a capture."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # That this mode is a prototype.
        warnings.simplefilter("ignore")
        # Kernels are loaded and libraries set up by the first run, which may wait.
        work()
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)


class DecodeGraphs:
    """Captured steps by their number of rows."""

    def __init__(self, sizes: Many[int], capture: Capture) -> None:
        """
        Args:
            sizes: ascending.
        """
        self._sizes = list(sizes)
        self._capture = capture
        self._captured: dict[int, tuple[list[int], Work]] = {}

    @property
    def largest(self) -> int:
        return max(self._sizes, default=0)

    def capture(self, prepare: Callable[[int], tuple[list[Tensor], Work]]) -> None:
        """Capture all sizes, the largest first: the others then fit into the memory it took.

        A model that cannot be captured goes without graphs, and the log says why.

        Args:
            prepare: gives for a number of rows the step's inputs, and the work over them.
        """
        try:
            for size in reversed(self._sizes):
                inputs, work = prepare(size)
                self._captured[size] = (_addresses(inputs), self._capture(work))
        except RuntimeError as error:
            self._sizes, self._captured = [], {}
            log.warning("this model runs without CUDA graphs: %s", str(error).partition("\n")[0])

    def size(self, rows: int) -> int | None:
        """The smallest captured size with room for so many rows."""
        index = bisect_left(self._sizes, rows)
        return self._sizes[index] if index < len(self._sizes) else None

    def replay(self, size: int, inputs: list[Tensor]) -> None:
        """Run the captured step over its inputs, which must lie where they lay."""
        addresses, replay = self._captured[size]
        if _addresses(inputs) != addresses:
            raise RuntimeError(f"the inputs of the graph of {size} rows have moved")
        replay()


def _addresses(inputs: list[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in inputs]
