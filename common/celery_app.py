"""The Celery application as producers see it, and the settings workers share with it.

Producers use kombu's stock transport; a worker replaces transport, pool and consumer with its own (`workers.worker`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from celery import Celery
from kombu.entity import Queue

from common.keys import Keys
from common.settings import Settings

BROKER_HEALTH_CHECK_SECONDS = 25
UNACKED_FOREVER_SECONDS = 7 * 24 * 3600
"""Kombu's visibility timeout. It would run long requests twice; the reaper does its job, by worker liveness."""


def make_app(settings: Settings) -> Celery:
    """A Celery application for the service's queues: `app.send_task("tgq.generate", [job], queue=...)` works with it."""
    keys = Keys(settings.key_prefix)
    interactive = keys.queue(settings.model_name, "interactive")
    batch = keys.queue(settings.model_name, "batch")
    url, options, tls = broker(settings)
    app = Celery("tgq", set_as_current=False)
    app.conf.update(
        broker_url=url,
        broker_use_ssl=tls,
        broker_transport_options={
            "priority_steps": [0],
            "body_encoding": "utf-8",
            "socket_timeout": settings.redis_timeout,
            "socket_connect_timeout": settings.redis_connect_timeout,
            "socket_keepalive": True,
            "health_check_interval": BROKER_HEALTH_CHECK_SECONDS,
            **options,
        },
        task_queues=[Queue(name) for name in (interactive, batch)],  # type: ignore[no-untyped-call]
        task_default_queue=interactive,
        task_default_exchange=settings.key_prefix,
        task_create_missing_queues=False,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        result_backend=None,
        task_acks_late=True,
        task_acks_on_failure=True,
        task_acks_on_timeout=True,
        # A timed-out push may have happened: sending it again would run the request twice.
        task_publish_retry=False,
    )
    return app


def broker(settings: Settings) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    """Kombu's URL, transport options and TLS options for `settings.broker_url`.

    Takes `redis://`, `rediss://` and `sentinel://[user:password@]host:port[,host:port...]/<db>?master_name=<name>`.
    """
    parts = urlsplit(settings.broker_url)
    query = dict(parse_qsl(parts.query))
    if parts.scheme == "sentinel":
        credentials, at, hosts = parts.netloc.rpartition("@")
        path = parts.path or "/0"
        urls = [f"sentinel://{credentials}{at}{host}{path}" for host in hosts.split(",")]
        return ";".join(urls), {"master_name": query["master_name"]}, None
    tls: dict[str, Any] | None = None
    if parts.scheme == "rediss":
        # Left out, kombu would check no certificate at all.
        tls = {"ssl_cert_reqs": "required"}
        tls.update({name: value for name, value in query.items() if name.startswith("ssl_")})
        if "ssl_check_hostname" in tls:
            tls["ssl_check_hostname"] = str(tls["ssl_check_hostname"]).lower() not in ("false", "no", "0")
    return urlunsplit(parts._replace(query="", path=parts.path or "/0")), {}, tls
