"""What a failing forward means for the engine: a broken device, one request at fault, or neither."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from workers.engine.model_runner import TransformersRunner
from workers.engine.plan import EngineBroken, RequestFault, Row, StepPlan

if TYPE_CHECKING:
    from tests.integration.engine.conftest import Driver


@pytest.fixture
def fail_with(runner: TransformersRunner, monkeypatch: pytest.MonkeyPatch) -> Any:
    def fail_with(error: Exception) -> None:
        def call(*_: Any) -> SimpleNamespace:
            raise error

        monkeypatch.setattr(runner, "_model", call)

    return fail_with


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: unspecified launch failure"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ],
)
def test_a_device_that_fails_breaks_the_engine(driver: Driver, fail_with: Any, error: Exception) -> None:
    sequence = driver.sequence([5, 6, 7])
    fail_with(error)
    with pytest.raises(EngineBroken):
        driver.step((sequence, 3))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
    ],
)
def test_out_of_memory_blames_the_largest_row(
    driver: Driver, runner: TransformersRunner, fail_with: Any, error: Exception
) -> None:
    one, two, three = (driver.sequence(ids) for ids in ([5, 6, 7], [8, 9, 10], [11]))
    fail_with(error)
    with pytest.raises(RequestFault, match="out of memory") as caught:
        runner.forward(StepPlan([Row(one, 0, 3, 1), Row(two, 0, 3, 1), Row(three, 0, 1, 1)]))
    assert caught.value.sequence is two
    assert caught.value.retryable
    assert caught.value.error.error_type == "generation"


def test_a_step_of_one_names_the_culprit(driver: Driver, runner: TransformersRunner, fail_with: Any) -> None:
    one, two = driver.sequence([5, 6, 7]), driver.sequence([8, 9])
    fail_with(ValueError("odd"))
    with pytest.raises(RequestFault, match="ValueError: odd") as caught:
        driver.step((one, 3))
    assert caught.value.sequence is one
    assert caught.value.error.error_type == "generation"
    # Of several any may be at fault: the engine decides.
    with pytest.raises(ValueError, match="odd"):
        runner.forward(StepPlan([Row(one, 0, 3, 1), Row(two, 0, 2, 1)]))
