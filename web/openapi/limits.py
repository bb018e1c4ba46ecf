"""Limits of values that the protocols' rules apply after parsing, as JSON Schema tells them."""

from __future__ import annotations

from typing import Any

from common.parameters import MAX_LOGIT_BIASES, MAX_STOP_CHARACTERS, MAX_STOP_TOKEN_IDS
from common.protocols import open_inference_request, tgi_request
from common.protocols.openai_batch_request import (
    ANCHOR,
    ENDPOINTS,
    LONGEST_EXPIRY,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    SHORTEST_EXPIRY,
    BatchCreate,
    ExpiresAfter,
)
from common.protocols.openai_chat_request import ChatRequest
from common.protocols.openai_completion_request import CompletionRequest
from common.settings import Settings

Limits = dict[str, dict[str, Any]]
"""Field -> keywords that go where its values are described."""


def limits(settings: Settings) -> dict[type, Limits]:
    """By request model."""
    native, shared = _native(settings), _openai(settings)
    prompt = {"minLength": 1}
    return {
        tgi_request.GenerateRequest: {"inputs": prompt},
        tgi_request.CompatGenerateRequest: {"inputs": prompt},
        tgi_request.GenerateParameters: {
            **native,
            "temperature": {"exclusiveMinimum": 0},
            "top_p": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        },
        open_inference_request.GenerateRequest: {"text_input": prompt},
        # Its temperature and top_p are in the model, as the protocol has them.
        open_inference_request.GenerateParameters: native,
        BatchCreate: {
            "endpoint": {"enum": list(ENDPOINTS)},
            "completion_window": {"enum": list(settings.batch_completion_windows)},
            "metadata": {
                "maxProperties": MAX_METADATA,
                "propertyNames": {"maxLength": MAX_METADATA_KEY},
                "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE},
            },
        },
        ExpiresAfter: {
            "anchor": {"enum": [ANCHOR]},
            "seconds": {"minimum": SHORTEST_EXPIRY, "maximum": LONGEST_EXPIRY},
        },
        ChatRequest: {**shared, "top_logprobs": {"maximum": settings.max_top_logprobs}},
        CompletionRequest: {
            **shared,
            "best_of": {"minimum": 1, "maximum": settings.max_choices},
            "logprobs": {"maximum": settings.max_top_logprobs},
        },
    }


def _common() -> Limits:
    return {
        "logit_bias": {"maxProperties": MAX_LOGIT_BIASES},
        "min_p": {"minimum": 0, "maximum": 1},
        "frequency_penalty": {"minimum": -2, "maximum": 2},
        "presence_penalty": {"minimum": -2, "maximum": 2},
        "repetition_penalty": {"exclusiveMinimum": 0},
        "stop_token_ids": {"maxItems": MAX_STOP_TOKEN_IDS},
    }


def _native(settings: Settings) -> Limits:
    return {
        **_common(),
        "best_of": {"maximum": settings.max_best_of},
        "max_new_tokens": {"minimum": 1},
        "stop": _stops(settings),
        "top_k": {"minimum": 1},
        "top_n_tokens": {"maximum": settings.max_top_n_tokens},
        "truncate": {"minimum": 1},
        "typical_p": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    }


def _openai(settings: Settings) -> Limits:
    return {
        **_common(),
        "n": {"minimum": 1, "maximum": settings.max_choices},
        "stop": _stops(settings),
        "temperature": {"minimum": 0},
        "top_k": {"minimum": -1},
        "top_p": {"minimum": 0, "maximum": 1},
        "typical_p": {"exclusiveMinimum": 0, "maximum": 1},
    }


def _stops(settings: Settings) -> dict[str, Any]:
    return {
        "maxItems": settings.max_stop_sequences,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS},
    }
