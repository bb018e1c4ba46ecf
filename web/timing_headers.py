"""TGI's response headers: what computed, how long each stage took, how many tokens."""

from __future__ import annotations

from web.request_record import RequestRecord
from web.services import Services


async def prompt_headers(services: Services, prompt: str) -> dict[str, str]:
    """Headers of every successful generation, streams too."""
    card = await services.workers.card()
    return {"x-compute-type": card.device_type if card else "unknown", "x-compute-characters": str(len(prompt))}


def answer_headers(record: RequestRecord, generated: int) -> dict[str, str]:
    """Headers of a whole answer of `generated` tokens; times in milliseconds, save `x-compute-time` in seconds."""
    assert record.valid is not None
    return {
        "x-compute-time": f"{record.total_seconds:.6f}",
        "x-total-time": _milliseconds(record.total_seconds),
        "x-validation-time": _milliseconds(record.validation_seconds),
        "x-queue-time": _milliseconds(record.queue_seconds),
        "x-inference-time": _milliseconds(record.inference_seconds),
        "x-time-per-token": _milliseconds(record.inference_seconds / max(generated, 1)),
        "x-prompt-tokens": str(len(record.valid.prompt_ids)),
        "x-generated-tokens": str(generated),
    }


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
