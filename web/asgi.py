"""The application for ASGI servers (`web.asgi:app`), built from the environment."""

from __future__ import annotations

from common.logs import configure_logging
from common.settings import Settings
from web.app import create_app

_settings = Settings.of()
configure_logging(_settings)
app = create_app(_settings)
