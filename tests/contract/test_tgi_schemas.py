"""The contract checks themselves: they pass TGI's own examples and fail on what breaks the contract."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import ValidationError

from tests.contract.tgi import VERSIONS, check_schema

TOKEN = {"id": 1, "text": " is", "logprob": -0.5, "special": False}


@pytest.mark.parametrize("version", VERSIONS)
def test_examples_fit(version: str) -> None:
    check_schema(version, "StreamResponse", {"index": 1, "token": TOKEN, "generated_text": None, "details": None})
    check_schema(version, "Token", TOKEN | {"logprob": None})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("StreamResponse", {"token": TOKEN}),
        ("StreamResponse", {"index": 1, "token": TOKEN | {"id": -1}}),
        ("Token", TOKEN | {"logprob": "high"}),
        ("GenerateResponse", {"generated_text": None}),
        ("ErrorResponse", {"error": "x"}),
        ("Info", {"model_id": "x"}),
    ],
)
def test_breaches_are_found(version: str, name: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        check_schema(version, name, value)
