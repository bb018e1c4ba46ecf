"""Celery's consumer, made safe for messages nobody should have sent and quick to come back when Redis does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

from common.errors import InvalidRequest
from workers.publisher import Outgoing
from workers.refusal import refusal

log = structlog.get_logger()

RECONNECT_SECONDS = (0.2, 0.4, 2.0)
"""First pause, what each further one adds, and the longest: Celery's own reach 30 s."""
AGAIN_SECONDS = 10.0
"""A connection that does not serve for so long is no remedy: after it the next one waits, longer each time ..."""
FIRST_AGAIN, LONGEST_AGAIN = 0.1, 2.0
"""... within these bounds."""


class JobConsumer(Consumer):  # type: ignore[misc]
    """Subclass it with `send`; Celery makes the instance.

    The stock consumer logs the body of what it cannot read, which may be a prompt, and stops the worker at some of it.
    Here such a message is refused: its submitter is told, as far as the headers name one, and it is gone.
    """

    send: Callable[[list[Outgoing]], None]
    _failed_at = 0.0
    _pause = 0.0

    def on_connection_error_after_connected(self, exc: BaseException) -> None:
        """Whatever breaks each new connection at once, such as a script that Redis refuses, must not keep the worker busy."""
        super().on_connection_error_after_connected(exc)
        now = time.monotonic()
        again = now - self._failed_at - self._pause < AGAIN_SECONDS
        self._pause = min(max(2 * self._pause, FIRST_AGAIN), LONGEST_AGAIN) if again else 0.0
        self._failed_at = now
        while time.monotonic() < now + self._pause:
            maybe_shutdown()
            time.sleep(min(0.05, self._pause))

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], None]:
        handle = super().create_task_handler(*args, **options)

        def on_task_received(message: Any) -> None:
            try:
                handle(message)
            except Exception as error:
                # The boundary between one message and the next.
                log.exception("message_failed", error=type(error).__name__)
                self._refuse(message, type(error).__name__)

        return on_task_received

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self._refuse(message, "no task is named")

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self._refuse(message, "no such task")

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self._refuse(message, "an invalid task message")

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        self._refuse(message, "the body cannot be decoded")

    def _refuse(self, message: Any, reason: str) -> None:
        headers = message.headers if isinstance(message.headers, dict) else {}
        log.error(
            "message_refused", reason=reason, request=str(headers.get("id"))[:100], task=str(headers.get("task"))[:100]
        )
        type(self).send(refusal(headers, message.properties or {}, InvalidRequest(f"not a job: {reason}")))
        if not message.acknowledged:
            message.ack()

    def ensure_connected(self, conn: Any) -> Any:
        first, step, longest = RECONNECT_SECONDS

        def on_error(error: BaseException, interval: float) -> None:
            log.warning("broker_unreachable", error=type(error).__name__, again_in_seconds=interval)

        conn = conn.ensure_connection(
            on_error, None, interval_start=first, interval_step=step, interval_max=longest, callback=maybe_shutdown
        )
        self.first_connection_attempt = False
        return conn
