"""Fixtures of the worker tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.workers.support import Submitter


@pytest.fixture
def submitter(redis_url: str) -> Iterator[Submitter]:
    submitter = Submitter(redis_url)
    yield submitter
    submitter.close()
