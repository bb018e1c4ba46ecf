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
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
    ],
)
def test_a_device_that_fails_breaks_the_engine(driver: Driver, fail_with: Any, error: Exception) -> None:
    sequence = driver.sequence([5, 6, 7])
    fail_with(error)
    with pytest.raises(EngineBroken):
        driver.step((sequence, 3))


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
