"""Rules of OpenAI's batches that are not in their shapes; the routes' tests have the rest."""

from __future__ import annotations

import pytest

from common.errors import BadRequest
from common.protocols.openai_batch_request import BatchCreate, check_batch, window_seconds


@pytest.mark.parametrize(("window", "seconds"), [("5s", 5), ("90m", 5400), ("24h", 86_400), ("7d", 604_800)])
def test_windows(window: str, seconds: int) -> None:
    assert window_seconds(window) == seconds


def test_the_message_tells_what_may_be() -> None:
    body = BatchCreate(input_file_id="file-1", endpoint="/v1/completions", completion_window="1h")
    with pytest.raises(BadRequest, match="`completion_window` must be '24h'"):
        check_batch(body, ["24h"])
    with pytest.raises(BadRequest, match="`completion_window` must be one of '24h', '7d'"):
        check_batch(body, ["24h", "7d"])
    assert check_batch(body, ["1h"]) == "/v1/completions"


def test_unknown_keys_are_told_by_their_paths() -> None:
    body = BatchCreate.model_validate(
        {
            "input_file_id": "file-1",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "x": 1,
            "output_expires_after": {"anchor": "created_at", "seconds": 3600, "y": 2},
        }
    )
    assert body.ignored == ["x", "output_expires_after.y"]
