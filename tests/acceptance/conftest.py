"""Whole services as real processes: one with the scripted model, one with the real one, shared by the tests that only use them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ops.local_service import LocalService


@pytest.fixture(scope="session")
def scripted_service() -> Iterator[LocalService]:
    """One web node and one worker with the scripted model. Tests that break or fill it start their own."""
    with LocalService({"MODEL_ID": "scripted"}) as service:
        yield service


@pytest.fixture(scope="session")
def real_service() -> Iterator[LocalService]:
    """One web node and one worker with the default model on the CPU."""
    with LocalService({"TGQ_DEVICE": "cpu"}) as service:
        yield service
