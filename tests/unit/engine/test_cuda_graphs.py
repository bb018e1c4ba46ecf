"""Which sizes are captured, which one serves a step, and what a replay insists on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workers.engine import cuda_graphs
from workers.engine.cuda_graphs import DecodeGraphs, Work, graph_sizes


@pytest.mark.parametrize(
    ("setting", "batch_size", "sizes"),
    [
        ([1, 2, 4, 8], 256, [1, 2, 4, 8]),
        ([8, 2, 2, 1], 256, [1, 2, 8]),
        ([1, 2, 4, 8], 5, [1, 2, 4, 5]),
        ([0], 256, []),
        ([0, 1, 2], 256, []),
        ([], 256, []),
    ],
)
def test_sizes(setting: list[int], batch_size: int, sizes: list[int]) -> None:
    assert graph_sizes(setting, batch_size) == sizes


class _Model:
    """Adds one to its input, whatever is there at the time."""

    def __init__(self) -> None:
        self.input = torch.zeros(8)
        self.output = torch.zeros(8)
        self.prepared: list[int] = []

    def prepare(self, size: int) -> tuple[list[Tensor], Work]:
        self.prepared.append(size)

        def work() -> None:
            self.output[:size] = self.input[:size] + 1

        return [self.input], work


def test_the_largest_is_captured_first_and_the_smallest_that_fits_serves() -> None:
    model = _Model()
    graphs = DecodeGraphs([1, 2, 8], lambda work: work)
    assert graphs.largest == 8
    graphs.capture(model.prepare)
    assert model.prepared == [8, 2, 1]
    assert [graphs.size(rows) for rows in (1, 2, 3, 8, 9)] == [1, 2, 8, 8, None]
    model.input.fill_(3)
    graphs.replay(2, [model.input])
    assert model.output.tolist() == [4, 4, 0, 0, 0, 0, 0, 0]


def test_inputs_that_moved_are_refused() -> None:
    model = _Model()
    graphs = DecodeGraphs([1], lambda work: work)
    graphs.capture(model.prepare)
    with pytest.raises(RuntimeError, match="moved"):
        graphs.replay(1, [model.input[1:]])


def test_after_a_failed_capture_there_are_no_graphs_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    # Not `caplog`: what other tests of this process do to loggers would decide.
    monkeypatch.setattr(cuda_graphs.log, "warning", lambda text, *values: messages.append(text % values))

    def capture(work: Work) -> Work:
        if len(model.prepared) == 2:
            raise RuntimeError("CUDA error: operation not permitted\nCompile with ...")
        return work

    model = _Model()
    graphs = DecodeGraphs([1, 2, 8], capture)
    graphs.capture(model.prepare)
    assert graphs.size(8) is graphs.size(1) is None
    assert messages == ["this model runs without CUDA graphs: CUDA error: operation not permitted"]
