"""What spans of both sides of the queue say of a job's message, in the words of OpenTelemetry's messaging conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.celery_message import TASK_NAME
from common.wire import Job

if TYPE_CHECKING:
    from common.tracing.tracing import Attributes, Span, Tracing


def begin_sending(tracing: Tracing, job: Job, queue: str, tag: str, cause: str | None) -> Span:
    """The span `enqueue QUEUE` of one attempt, until Redis has its message.

    Args:
        tag: the message's delivery tag.
        cause: what became of the attempt before.
    """
    attributes = {**message_attributes(job, queue, tag), "tgq.resend.cause": cause}
    operation = {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
    return tracing.begin(f"enqueue {queue}", "producer", job.trace, {**attributes, **operation})


def message_attributes(job: Job, queue: str, tag: str) -> Attributes:
    return {
        "messaging.system": "celery",
        "messaging.destination.name": queue,
        "messaging.message.id": tag,
        "messaging.message.conversation_id": job.id,
        "tgq.task": TASK_NAME,
        "tgq.attempt": job.attempt,
        "tgq.job.class": job.job_class,
        "gen_ai.request.model": job.model,
        "gen_ai.usage.input_tokens": len(job.prompt_ids),
        "tgq.generated_before": len(job.generated_ids) + sum(map(len, job.sibling_ids)) or None,
    }
