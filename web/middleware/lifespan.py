"""Starts and stops what the process works with, as the server starts and stops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from web.services import Services


class Lifespan:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def process_startup(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        await self._services.start()

    async def process_shutdown(self, scope: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        await self._services.stop()
