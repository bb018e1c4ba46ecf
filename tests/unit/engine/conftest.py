"""Tokenizers, made once."""

from __future__ import annotations

import pytest

from common.tokenizer import Tokenizer
from tests.unit.engine.support import KINDS, byte_level, save


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A byte-level one."""
    return save(byte_level(), tmp_path_factory.mktemp("tokenizer") / "byte_level")


@pytest.fixture(scope="session", params=KINDS)
def any_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One of each kind."""
    return save(KINDS[request.param](), tmp_path_factory.mktemp("tokenizers") / str(request.param))
