"""Whether the libraries that were installed are those the service was made for.

The worker's transport (`workers.transport`) overrides private methods of kombu's, which Celery calls, and the connections that
follow a primary (`common.redis_connections`) some of redis-py's: other releases may import well, and then stand still or lose
jobs after the first lost connection. So they are looked at before anything is imported. redis-py 7 and 8.0 have no
`maint_notifications_config` for asynchronous connections, redis-py 6 has none at all.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

RELEASES = {"celery": "5.7", "kombu": "5.7", "redis": "8.1"}
"""Library -> the releases of it that pass the fault tests, as in `requirements.in`."""


def unfit_libraries() -> str | None:
    """What must be installed instead of what is there, in one sentence; None when all is well."""
    found = {name: _installed(name) for name in RELEASES}
    unfit = [name for name, release in RELEASES.items() if not f"{found[name]}.".startswith(f"{release}.")]
    if not unfit:
        return None
    wrong = ", ".join(f"{name} {found[name] or '(none)'}" for name in unfit)
    wanted = ", ".join(f"{name} {release}.*" for name, release in RELEASES.items())
    return f"{wrong} cannot be worked with: install the versions of requirements.lock ({wanted})"


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
