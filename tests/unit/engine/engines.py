"""An engine over the model that checks how it is used, and what came of it."""

from __future__ import annotations

from typing import Any

from common.settings import Settings
from common.tokenizer import Tokenizer
from tests.unit.engine.support import (
    Clock,
    HashedModel,
    hashed_logits,
    tokens_of,
)
from workers.engine.engine import Engine
from workers.engine.messages import JobEvent


def make_engine(
    tokenizer: Tokenizer, model: HashedModel | None = None, *, unix_time: Clock | None = None, **values: Any
) -> Engine:
    model = model or HashedModel(tokenizer.vocab_size)
    return Engine(
        model,
        tokenizer,
        Settings.of(**{"max_batch_prefill_tokens": 16, **values}),
        clock=Clock(),
        unix_time=unix_time or Clock(),
    )


def greedy(prompt: list[int], count: int, vocab_size: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(hashed_logits(ids, vocab_size).argmax()))
    return ids[len(prompt) :]


def ids_of(events: list[JobEvent], request: str = "r") -> list[int]:
    return [token.id for token in tokens_of(events, request)]


def bodies(events: list[JobEvent], request: str = "r") -> list[Any]:
    return [event.body for event in events if event.request == request]
