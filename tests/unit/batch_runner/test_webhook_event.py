"""Webhooks as OpenAI's SDK takes them."""

from __future__ import annotations

import base64
import json
import time

import msgspec
import openai
import pytest
from pydantic import ValidationError

from common.batches.objects import BatchObject, BatchStatus
from common.settings import Settings
from workers.batch.webhook_event import event_of, secret_bytes, signed_headers

ENCODED = "whsec_" + base64.b64encode(b"some secret bytes").decode()


def batch(status: BatchStatus) -> BatchObject:
    return BatchObject(
        id="batch_1",
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        created_at=5,
        status=status,
        completed_at=7,
    )


@pytest.mark.parametrize("secret", [ENCODED, "just characters"])
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "expired"])
def test_the_sdk_unwraps_it(secret: str, status: BatchStatus) -> None:
    event = event_of(batch(status))
    body = msgspec.json.encode(event)
    headers = signed_headers(event.id, body, secret_bytes(secret), int(time.time()))
    client = openai.OpenAI(api_key="none", webhook_secret=secret)
    unwrapped = client.webhooks.unwrap(body, headers)
    assert unwrapped.type == f"batch.{status}"
    assert (unwrapped.id, unwrapped.created_at) == ("evt_batch_1", 7)
    assert unwrapped.model_dump()["data"]["id"] == "batch_1"
    assert json.loads(body)["data"]["status"] == status


def test_a_changed_body_is_noticed() -> None:
    body = msgspec.json.encode(event_of(batch("completed")))
    headers = signed_headers("evt_batch_1", body, b"secret", int(time.time()))
    client = openai.OpenAI(api_key="none", webhook_secret="secret")
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body.replace(b"completed", b"cancelled"), headers)


def test_a_secret_that_is_no_base64() -> None:
    with pytest.raises(ValueError, match="TGQ_BATCH_WEBHOOK_SECRET"):
        secret_bytes("whsec_???")


def test_an_endpoint_needs_a_secret() -> None:
    with pytest.raises(ValidationError, match="TGQ_BATCH_WEBHOOK_SECRET"):
        Settings.of(batch_webhook_url="http://127.0.0.1:1/hook")
    settings = Settings.of(batch_webhook_url="http://127.0.0.1:1/hook", batch_webhook_secret="secret")
    assert "secret" not in str(settings.batch_webhook_secret)
    with pytest.raises(ValidationError):
        Settings.of(batch_webhook_url="ftp://127.0.0.1/hook", batch_webhook_secret="secret")
