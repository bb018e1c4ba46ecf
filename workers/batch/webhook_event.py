"""What a webhook says, signed as Standard Webhooks (standardwebhooks.com) has it: OpenAI's SDK unwraps it. Pure."""

from __future__ import annotations

import base64
import hmac

import msgspec

from common.batches.objects import BatchObject

_ENCODED = "whsec_"


class Event(msgspec.Struct, frozen=True):
    id: str
    object: str
    created_at: int
    type: str
    data: BatchObject


def event_of(batch: BatchObject) -> Event:
    """Of a batch that has ended; the same each time."""
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at or batch.created_at
    return Event(f"evt_{batch.id}", "event", ended_at, f"batch.{batch.status}", batch)


def signed_headers(event_id: str, body: bytes, secret: bytes, now: int) -> dict[str, str]:
    """
    Args:
        now: Unix seconds.
    """
    signature = hmac.digest(secret, f"{event_id}.{now}.".encode() + body, "sha256")
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


def secret_bytes(secret: str) -> bytes:
    """What a secret stands for that is `whsec_` and base64, or the very characters.

    Raises:
        ValueError: it begins with `whsec_` and is no base64.
    """
    if secret.startswith(_ENCODED):
        try:
            return base64.b64decode(secret.removeprefix(_ENCODED), validate=True)
        except ValueError:
            raise ValueError("TGQ_BATCH_WEBHOOK_SECRET begins with `whsec_`, and what follows is no base64") from None
    return secret.encode()
