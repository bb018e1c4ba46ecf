"""What people are told of answers that are refusals."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from ops.service_client import ServiceClient, ServiceError, _refusal


@pytest.mark.parametrize(
    ("response", "words", "passing"),
    [
        (
            httpx.Response(429, headers={"retry-after": "7"}, json={"error": {"message": "Model is overloaded"}}),
            "Model is overloaded (try again in 7 s)",
            True,
        ),
        (
            httpx.Response(422, json={"error": "Input validation error: no", "error_type": "validation"}),
            "Input validation error: no",
            False,
        ),
        (
            httpx.Response(401, json={"error": {"message": "Wrong key"}}),
            "Wrong key (give a key with --api-key or API_KEY)",
            False,
        ),
        (httpx.Response(502, text="<html>"), "http://host/v1/x answered 502 Bad Gateway", True),
        (httpx.Response(404, json=["?"]), "http://host/v1/x answered 404 Not Found", False),
    ],
)
def test_refusals_in_words(response: httpx.Response, words: str, passing: bool) -> None:
    response.request = httpx.Request("GET", "http://host/v1/x")
    error = _refusal(response)
    assert (str(error), error.passing, error.status) == (words, passing, response.status_code)


@pytest.mark.parametrize("url", ["host:80", "http://host:80/", "http://host:80/v1", "host:80/v1/"])
def test_addresses_are_taken_as_people_write_them(url: str) -> None:
    assert ServiceClient(url).url == "http://host:80"


def test_what_is_no_address_is_said() -> None:
    with pytest.raises(ServiceError, match="is no address"):
        ServiceClient("http://[::1")
