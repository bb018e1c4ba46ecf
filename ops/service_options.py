"""Options of the commands that talk to a service over HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option(envvar="TGQ_URL", help="Address of the service.", show_default="this machine, PORT or 3000"),
]
Key = Annotated[str | None, typer.Option(envvar="API_KEY", help="Key to call it with.", show_default=False)]


def service_url(url: str | None) -> str:
    """The address that was given, or that of the service of this machine."""
    return url or f"http://127.0.0.1:{os.environ.get('PORT') or 3000}"
