"""The Celery application as producers see it, and the settings workers share with it.

Producers use kombu's stock transport; a worker replaces transport, pool and consumer with its own (`workers.worker`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from celery import Celery
from kombu.entity import Queue

from common.keys import Keys
from common.redis_clients import HEALTH_CHECK_SECONDS
from common.redis_url import RedisAddress
from common.settings import Settings

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
            "health_check_interval": HEALTH_CHECK_SECONDS,
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
    """Kombu's URL, transport options and TLS options for `settings.broker_url` (see `common.redis_url`)."""
    address = RedisAddress.parse(settings.broker_url)
    credentials = ""
    if address.username or address.password:
        credentials = f"{quote(address.username or '', safe='')}:{quote(address.password or '', safe='')}@"
    tls = None if address.tls is None else dict(address.tls)
    if address.path is not None:
        # Kombu takes what is behind `?` for redis-py's, except for this name.
        return f"redis+socket://{credentials}{quote(address.path)}?virtual_host={address.db}", {}, None
    hosts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.hosts]
    scheme = "redis" if tls is None else "rediss"
    if address.master_name is None:
        return f"{scheme}://{credentials}{hosts[0]}/{address.db}", {}, tls
    sentinel_options: dict[str, Any] = {
        "username": address.sentinel_username,
        "password": address.sentinel_password,
        "socket_timeout": settings.redis_connect_timeout,
        "socket_connect_timeout": settings.redis_connect_timeout,
        **({} if tls is None else {"ssl": True, **tls}),
    }
    urls = [f"sentinel://{credentials}{host}/{address.db}" for host in hosts]
    return ";".join(urls), {"master_name": address.master_name, "sentinel_kwargs": sentinel_options}, tls
