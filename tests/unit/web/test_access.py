"""Who may come in: routes that want a key, and what browsers may send."""

from __future__ import annotations

import pytest

from web.access import needs_key
from web.middleware.cors import _allowed_headers


@pytest.mark.parametrize(
    ("method", "route", "protected", "expected"),
    [
        ("POST", "/generate", True, (True, True)),
        ("POST", "/", True, (True, True)),
        ("GET", "/", True, (False, False)),
        ("HEAD", "/", True, (False, False)),
        ("GET", "/v1/models", False, (True, True)),
        ("DELETE", "/v1/requests/{id}", False, (True, True)),
        ("OPTIONS", "/v1/models", False, (False, False)),
        ("GET", "/info", False, (False, True)),
        ("GET", "/metrics", False, (False, True)),
        ("GET", "/v2", False, (False, True)),
        ("GET", "/health", False, (False, False)),
        ("GET", "/v2/health/ready", False, (False, False)),
    ],
)
def test_which_routes_want_a_key(method: str, route: str, protected: bool, expected: tuple[bool, bool]) -> None:
    assert expected == tuple(
        needs_key(method, route, protected=protected, everything=everything) for everything in (False, True)
    )


def test_preflights_are_told_what_they_asked_for_and_nothing_odd() -> None:
    ours = set(_allowed_headers("").split(", "))
    assert {"authorization", "content-type", "idempotency-key", "last-event-id", "x-request-id"} <= ours
    assert set(_allowed_headers("X-Stainless-OS , authorization").split(", ")) == ours | {"x-stainless-os"}
    for odd in ("*", "a b", "a,,b", "a\r\nb: c", "x" * 3000):
        assert set(_allowed_headers(odd).split(", ")) == ours
