"""Which routes want an API key, when there are keys."""

from __future__ import annotations

HEALTH = frozenset(("/health", "/ping", "/v2/health/live", "/v2/health/ready"))


def needs_key(method: str, route: str, *, protected: bool, everything: bool) -> bool:
    """
    Args:
        route: the route's template.
        protected: the resource says so of itself.
        everything: the setting `protect` is `all`.
    """
    if method == "OPTIONS" or route in HEALTH or (route == "/" and method in ("GET", "HEAD")):
        return False  # preflights carry no keys, nor do probes
    return everything or protected or route == "/v1" or route.startswith("/v1/")
