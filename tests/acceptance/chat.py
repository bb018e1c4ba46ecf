"""Chat requests with messages of one's own, answered whole or streamed."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx

from tests.acceptance.native import TIMEOUT
from tests.event_streams import openai_data

CHAT: Final = "/v1/chat/completions"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def post(url: str, messages: Any, **fields: Any) -> httpx.Response:
    return httpx.post(url + CHAT, json={"messages": messages, "max_tokens": 200, **fields}, timeout=TIMEOUT)


def choice(url: str, messages: Any, **fields: Any) -> dict[str, Any]:
    """The only choice of a whole answer."""
    response = post(url, messages, **fields)
    assert response.status_code == 200, response.text
    (found,) = response.json()["choices"]
    return dict(found)


def streamed(url: str, messages: Any, **fields: Any) -> list[dict[str, Any]]:
    """The choice in each chunk of a streamed answer."""
    response = post(url, messages, stream=True, **fields)
    assert response.status_code == 200, response.text
    return [json.loads(data)["choices"][0] for data in openai_data(response.text)]


def refused(response: httpx.Response, param: str | None = None, said: str = "", code: str = "validation") -> str:
    """The message of a refusal."""
    assert response.status_code == 422, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert param is None or error["param"] == param, error
    assert said in error["message"]
    return str(error["message"])
