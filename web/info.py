"""The answer of `/info`: the keys of TGI 2.2 and of TGI 1.3, which older clients look for."""

from __future__ import annotations

from msgspec import Struct

from common import TGI_VERSION, __version__
from common.wire import ModelCard
from web.services import Services


class Info(Struct, frozen=True, kw_only=True):
    model_id: str
    model_sha: str | None
    model_dtype: str
    model_device_type: str
    """`cpu` or `cuda`; `scripted` for the model without weights; `unknown` until a worker has been seen."""
    model_pipeline_tag: str | None
    chat: bool
    """Whether the model has a chat template; without one, chats are refused."""
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_input_length: int
    max_total_tokens: int
    waiting_served_ratio: float
    max_batch_total_tokens: int
    max_waiting_tokens: int
    max_batch_size: int | None
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str
    sha: str | None
    docker_label: str | None
    payload_limit: int
    tgq_version: str


def service_info(services: Services, card: ModelCard | None) -> Info:
    """Facts from the settings and from the model card of a worker.

    Args:
        card: of the last worker seen, None when none was.
    """
    settings, model = services.settings, services.models.default
    limits = model.limits
    return Info(
        model_id=settings.model_id,
        model_sha=card.sha if card else model.files.sha,
        model_dtype=card.dtype if card else f"torch.{settings.dtype or 'float32'}",
        model_device_type=card.device_type if card else "unknown",
        model_pipeline_tag="text-generation",
        chat=model.chat_template.exists,
        max_concurrent_requests=settings.max_concurrent_requests,
        max_best_of=settings.max_best_of,
        max_stop_sequences=settings.max_stop_sequences,
        max_input_tokens=limits.max_input_tokens,
        max_input_length=limits.max_input_tokens,
        max_total_tokens=limits.max_total_tokens,
        waiting_served_ratio=settings.waiting_served_ratio,
        max_batch_total_tokens=card.max_batch_total_tokens if card else settings.max_batch_total_tokens or 0,
        max_waiting_tokens=settings.max_waiting_tokens,
        max_batch_size=card.max_batch_size if card else settings.max_batch_size,
        validation_workers=settings.validation_workers,
        max_client_batch_size=settings.max_client_batch_size,
        router="text-generation-router",
        version=TGI_VERSION,
        sha=None,
        docker_label=None,
        payload_limit=settings.payload_limit,
        tgq_version=__version__,
    )
