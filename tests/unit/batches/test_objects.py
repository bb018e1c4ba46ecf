"""Files and batches have exactly the fields of OpenAI's own types, and ids in the order of time."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from msgspec import Struct
from openai.types import Batch, BatchError, BatchRequestCounts, BatchUsage, FileDeleted, FileObject
from openai.types.batch import Errors
from openai.types.batch_usage import InputTokensDetails, OutputTokensDetails
from pydantic import BaseModel

from common.batches import objects


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (objects.FileObject, FileObject),
        (objects.FileDeleted, FileDeleted),
        (objects.BatchObject, Batch),
        (objects.BatchErrors, Errors),
        (objects.BatchError, BatchError),
        (objects.Counts, BatchRequestCounts),
        (objects.BatchUsage, BatchUsage),
        (objects.InputTokensDetails, InputTokensDetails),
        (objects.OutputTokensDetails, OutputTokensDetails),
    ],
)
def test_fields_are_those_of_the_sdk(ours: type[Struct], theirs: type[BaseModel]) -> None:
    assert set(ours.__struct_fields__) == set(theirs.model_fields)


def words(kind: Any) -> set[str]:
    return set(get_args(kind))


def test_words_are_those_of_the_sdk() -> None:
    assert words(objects.BatchStatus) == words(Batch.model_fields["status"].annotation)
    assert words(objects.FilePurpose) < words(FileObject.model_fields["purpose"].annotation)


def test_encoded_the_sdk_reads_them() -> None:
    batch = objects.BatchObject(
        id=objects.new_batch_id(),
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        created_at=1,
        errors=objects.BatchErrors([objects.BatchError("code", "message", line=1)]),
        usage=objects.BatchUsage.of(3, 4, cached=2),
        metadata={"a": "b"},
    )
    told = msgspec.to_builtins(batch)
    assert Batch.model_validate(told, strict=True).to_dict() == told
    assert msgspec.json.decode(msgspec.json.encode(batch), type=objects.BatchObject) == batch


def test_usage_adds_up() -> None:
    total = objects.BatchUsage.of(3, 4, cached=2) + objects.BatchUsage.of(10, 20, cached=5)
    assert total == objects.BatchUsage.of(13, 24, cached=7)
    assert total.total_tokens == 37


def test_ids_come_in_the_order_of_time() -> None:
    ids = [objects.new_file_id() for _ in range(100)]
    assert len(set(ids)) == 100
    times = [one[: len("file-") + 14] for one in ids]
    assert times == sorted(times)
    assert objects.new_batch_id().startswith("batch_")
