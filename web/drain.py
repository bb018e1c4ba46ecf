"""How a web process leaves: it says so, takes nothing more, lets its requests end."""

from __future__ import annotations

import structlog

from common.client.generation import GenerationClient
from common.errors import ServiceUnavailable
from common.settings import Settings

log = structlog.get_logger(__name__)


class Drain:
    """Begun by the server when it is told to stop; from then on readiness is gone and new requests are refused."""

    def __init__(self, client: GenerationClient, settings: Settings) -> None:
        self.begun = False
        self.limit = settings.graceful_termination_timeout
        """Seconds what runs has to end."""
        self.notice = settings.drain_notice
        """Seconds to go on answering at least."""
        self._client = client

    def begin(self) -> None:
        """Idempotent."""
        if not self.begun:
            self.begun = True
            log.info("draining", open_requests=self._client.open_streams, limit_seconds=self.limit)

    def end_requests(self) -> None:
        """The limit is reached: what still runs ends with an error that its client is told."""
        if self._client.open_streams:
            log.warning("requests_ended_by_drain", requests=self._client.open_streams)
        self._client.end_streams(lambda: ServiceUnavailable("The web node stopped", reason="shutdown"))
