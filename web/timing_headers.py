"""TGI's response headers: what computed, how long each stage took, how many tokens; and what of the body had no effect."""

from __future__ import annotations

import re

from web.request_record import RequestRecord
from web.services import Services

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_IGNORED_SHOWN = 20


async def prompt_headers(services: Services, model: str, characters: int, ignored: list[str]) -> dict[str, str]:
    """Headers of every successful generation, streams too.

    Args:
        characters: of the prompt as it was sent.
        ignored: paths of the keys that had no effect.
    """
    card = await services.workers.card(model)
    headers = {"x-compute-type": card.device_type if card else "unknown", "x-compute-characters": str(characters)}
    return headers | ignored_headers(ignored)


def ignored_headers(ignored: list[str]) -> dict[str, str]:
    """
    Args:
        ignored: paths of the keys that had no effect.
    """
    shown = [name if _PLAIN.fullmatch(name) else "?" for name in ignored[:_IGNORED_SHOWN]]
    return {"x-ignored-parameters": ", ".join(shown)} if shown else {}


def answer_headers(record: RequestRecord, generated: int) -> dict[str, str]:
    """Headers of a whole answer of `generated` tokens; times in milliseconds, save `x-compute-time` in seconds."""
    return {
        "x-compute-time": f"{record.total_seconds:.6f}",
        "x-total-time": _milliseconds(record.total_seconds),
        "x-validation-time": _milliseconds(record.validation_seconds),
        "x-queue-time": _milliseconds(record.queue_seconds),
        "x-inference-time": _milliseconds(record.inference_seconds),
        "x-time-per-token": _milliseconds(record.inference_seconds / max(generated, 1)),
        "x-prompt-tokens": str(record.prompt_tokens),
        "x-generated-tokens": str(generated),
    }


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
