"""Inputs and outputs of batches, as clients have them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx

from tests.acceptance.chat import CHAT
from tests.acceptance.clients import script


def line(custom_id: str, body: dict[str, Any], url: str = CHAT) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def saying(custom_id: str, text: str, *, repeat: int = 1, **fields: Any) -> dict[str, Any]:
    """A chat request that has the scripted model say `text`; `fields` are the body's."""
    prompt = script(
        text, repeat=repeat, **{name: fields.pop(name) for name in ("step_ms", "first_ms") if name in fields}
    )
    return line(custom_id, {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1000, **fields})


def jsonl(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in lines)


def by_id(output: bytes) -> dict[str, dict[str, Any]]:
    """Lines of a result file by `custom_id`; each one must be there once."""
    entries = [json.loads(text) for text in output.splitlines()]
    found = {entry["custom_id"]: entry for entry in entries}
    assert len(found) == len(entries)
    return found


def content(entry: dict[str, Any]) -> str:
    """What the model said in an output line of a chat."""
    assert entry["error"] is None
    assert entry["response"]["status_code"] == 200
    return str(entry["response"]["body"]["choices"][0]["message"]["content"])


class BatchClient:
    """What a caller does with batches over HTTP."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        self.http = httpx.Client(base_url=f"{url}/v1", headers=headers, timeout=60.0, trust_env=False)

    def __enter__(self) -> BatchClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.http.close()

    def upload(self, data: bytes) -> str:
        answer = self.http.post("/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", data)})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def submit(self, lines: Iterable[dict[str, Any]], *, endpoint: str = CHAT, window: str = "24h") -> str:
        request = {"input_file_id": self.upload(jsonl(lines)), "endpoint": endpoint, "completion_window": window}
        answer = self.http.post("/batches", json=request)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def cancel(self, batch: str) -> dict[str, Any]:
        answer = self.http.post(f"/batches/{batch}/cancel")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def get(self, batch: str) -> dict[str, Any]:
        """The batch; waits for a web node that is just being started."""
        deadline = time.monotonic() + 60
        while True:
            try:
                answer = self.http.get(f"/batches/{batch}")
                if answer.status_code == 200:
                    return dict(answer.json())
            except httpx.TransportError:
                answer = None
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)

    def until(
        self, batch: str, reached: Callable[[dict[str, Any]], bool] = lambda _: False, seconds: float = 60.0
    ) -> dict[str, Any]:
        """The batch once it is as wanted, or has ended."""
        deadline = time.monotonic() + seconds
        while True:
            now = self.get(batch)
            if reached(now) or now["status"] in ("completed", "failed", "expired", "cancelled"):
                return now
            assert time.monotonic() < deadline, now
            time.sleep(0.05)

    def results(self, file: str | None) -> dict[str, dict[str, Any]]:
        """The lines of a result file; empty when there is no file."""
        if file is None:
            return {}
        answer = self.http.get(f"/files/{file}/content")
        assert answer.status_code == 200, answer.text
        return by_id(answer.content)


def done(batch: dict[str, Any]) -> int:
    counts = batch["request_counts"]
    return int(counts["completed"] + counts["failed"])
