"""A job as a Celery message: protocol 2 inside kombu's virtual-transport envelope, ready for one `LPUSH`.

`app.send_task` builds the same message in about 0.5 ms and on a blocking connection; this takes about 20 microseconds and
does no I/O, so that a web process can push it with the script call that also bounds the queue. A stock Celery worker
reads it. The envelope's last members are headers and properties: the worker's pull script reads them from the tail of
the message without decoding the prompt.
"""

from __future__ import annotations

import os
import socket
import uuid
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from common.wire import Job, encode_json

TASK_NAME = "tgq.generate"
"""The Celery task: one argument, a `Job` as a plain dict."""

_ORIGIN = f"{os.getpid()}@{socket.gethostname()}"


class _Headers(Struct, frozen=True):
    id: str
    root_id: str
    expires: str | None
    ignore_result: bool
    cost: int
    prompt: int
    sequences: int
    attempt: int
    submitted: float
    deadline: float | None
    tenant: str
    weight: float
    lang: str = "py"
    task: str = TASK_NAME
    shadow: None = None
    eta: None = None
    group: None = None
    group_index: None = None
    retries: int = 0
    timelimit: tuple[None, None] = (None, None)
    parent_id: None = None
    # Celery copies these into logs and events: never the prompt.
    argsrepr: str = ""
    kwargsrepr: str = ""
    origin: str = _ORIGIN
    replaced_task_nesting: int = 0
    stamped_headers: None = None
    stamps: dict[str, str] = {}


class _DeliveryInfo(Struct, frozen=True):
    routing_key: str
    exchange: str = ""


class _Properties(Struct, frozen=True):
    correlation_id: str
    reply_to: str
    delivery_info: _DeliveryInfo
    delivery_tag: str
    delivery_mode: int = 2
    priority: int = 0
    body_encoding: str = "utf-8"


class _Envelope(Struct, frozen=True, rename={"content_encoding": "content-encoding", "content_type": "content-type"}):
    body: str
    headers: _Headers
    properties: _Properties
    content_encoding: str = "utf-8"
    content_type: str = "application/json"


def celery_message(job: Job, queue: str, tag: str | None = None) -> bytes:
    """The bytes to `LPUSH` on `queue` (a name from `Keys.queue`); `tag` is its delivery tag, unique for each message.

    Headers beyond Celery's own, which the scripts read: `cost` (KV-cache tokens at most, over all `sequences`), `prompt` (those
    that are known by now), `attempt`, `submitted` and `deadline` (Unix seconds), `tenant` (percent-encoded, as in the
    name of its list) and its `weight`. The property `reply_to` is
    the job's reply channel, so that a message whose body is broken can still be answered.
    """
    expires = None if job.deadline is None else datetime.fromtimestamp(job.deadline, UTC).isoformat()
    embed = b',{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]'
    envelope = _Envelope(
        body=(b"[[" + encode_json(job) + b"],{}" + embed).decode(),
        headers=_Headers(
            id=job.id,
            root_id=job.id,
            expires=expires,
            ignore_result=job.reply_to is not None,
            cost=job.cost,
            prompt=job.known,
            sequences=job.parameters.children,
            attempt=job.attempt,
            submitted=job.submitted_at,
            deadline=job.deadline,
            tenant=quote(job.tenant, safe=""),
            weight=job.weight,
        ),
        properties=_Properties(
            correlation_id=job.id,
            reply_to=job.reply_to or "",
            delivery_info=_DeliveryInfo(routing_key=queue),
            delivery_tag=str(uuid.uuid4()) if tag is None else tag,
        ),
    )
    return encode_json(envelope)


def job_of(arguments: Any) -> Job:
    """The job in a task's positional arguments, as Celery decoded them.

    Raises:
        msgspec.ValidationError: the arguments are not exactly one valid job; names the field.
    """
    # JSON has no other keys than strings: those of `logit_bias` are integers.
    (job,) = msgspec.convert(arguments, tuple[Job], str_keys=True)
    return job
