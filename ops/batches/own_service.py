"""The settings of a service that runs for one batch and nobody else."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from common.settings import Settings
from ops.configuration import variables

_WINDOW = "365d"
_FOREIGN = ("redis_url", "redis_password_file", "redis_data", "api_key", "api_keys_file", "batch_webhook_url")
"""Settings of the service that other people use here."""


def own_service_settings(folder: Path, file_bytes: int) -> tuple[Settings, str, str]:
    """Settings for a private service, which the environment of this process has, too, from now on.

    Args:
        folder: where it may keep what it needs; must exist.
        file_bytes: size of the batch's input.

    Returns:
        The settings, the key that the service wants of its callers, and a completion window that is no limit.
    """
    for name in _FOREIGN:
        for variable in variables(name):
            os.environ.pop(variable, None)
    key = secrets.token_urlsafe(24)
    ours = {
        "hostname": "127.0.0.1",
        "port": "0",
        "api_key": key,
        "batch_storage": str(folder.resolve() / "storage"),
        "batch_workers": "1",
        "batch_reserve": "0",
        "batch_max_requests": str(10**9),
        "batch_completion_windows": _WINDOW,
        "max_file_bytes": str(max(Settings().max_file_bytes, file_bytes)),
    }
    os.environ.update({Settings.variable(name): value for name, value in ours.items()})
    os.environ.setdefault(Settings.variable("log_level"), "error")
    return Settings(), key, _WINDOW
