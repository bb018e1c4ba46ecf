"""Cases of batches that other services got wrong, by their numbers."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.local_service import LocalService
from tests.acceptance.batches import BatchClient, content, done, saying

SECRETS = {"alice": "alices-secret", "bob": "bobs-secret"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """With two callers, and a window short enough to see it end."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    entries = [
        {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest()} for name, secret in SECRETS.items()
    ]
    keys.write_text(json.dumps({"keys": entries}))
    settings = {
        "MODEL_ID": "scripted",
        "MAX_BATCH_SIZE": "16",
        "TGQ_BATCH_COMPLETION_WINDOWS": "24h,5s",
        "TGQ_API_KEYS_FILE": str(keys),
    }
    with LocalService(settings, batch_workers=1) as service:
        yield service


@pytest.fixture
def alice(service: LocalService) -> Iterator[BatchClient]:
    with BatchClient(service.url, SECRETS["alice"]) as client:
        yield client


@pytest.fixture
def bob(service: LocalService) -> Iterator[BatchClient]:
    with BatchClient(service.url, SECRETS["bob"]) as client:
        yield client


def quick(count: int) -> list[dict[str, Any]]:
    return [saying(f"quick {number}", f"answer {number}") for number in range(count)]


def endless(count: int) -> list[dict[str, Any]]:
    return [saying(f"endless {number}", "on and on ", repeat=300, step_ms=1000) for number in range(count)]


def test_j01_a_duplicate_custom_id_fails_the_batch(alice: BatchClient) -> None:
    ended = alice.until(alice.submit([saying("same", "a"), saying("same", "b"), saying("other", "c")]))
    assert ended["status"] == "failed"
    assert ended["errors"]["object"] == "list"
    (error,) = ended["errors"]["data"]
    assert error.pop("message")
    assert error == {"code": "duplicate_custom_id", "line": 2, "param": "custom_id"}
    assert ended["output_file_id"] is ended["error_file_id"] is None


def test_j03_a_batch_in_which_every_line_fails(alice: BatchClient) -> None:
    ended = alice.until(alice.submit([saying(f"{number}", "x" * 200_000) for number in range(5)]))
    assert (ended["status"], ended["output_file_id"]) == ("completed", None)
    assert ended["request_counts"] == {"total": 5, "completed": 0, "failed": 5}
    errors = alice.results(ended["error_file_id"])
    assert set(errors) == {"0", "1", "2", "3", "4"}
    bodies = [line["response"]["body"]["error"] for line in errors.values()]
    live = alice.http.post("/chat/completions", json=saying("", "x" * 200_000)["body"])
    assert bodies == [live.json()["error"]] * 5
    assert {line["response"]["status_code"] for line in errors.values()} == {live.status_code}


def test_j04_cancelled_half_way(alice: BatchClient) -> None:
    batch = alice.submit(quick(30) + endless(30))
    alice.until(batch, lambda now: done(now) == 30)
    answer = alice.cancel(batch)
    assert answer["status"] == "cancelling"
    assert answer["cancelling_at"] is not None
    began = time.monotonic()
    ended = alice.until(batch)
    assert time.monotonic() - began < 60  # running lines would take five minutes
    assert ended["status"] == "cancelled"
    assert ended["request_counts"] == {"total": 60, "completed": 30, "failed": 30}
    kept, left = alice.results(ended["output_file_id"]), alice.results(ended["error_file_id"])
    assert {name: content(line) for name, line in kept.items()} == {f"quick {n}": f"answer {n}" for n in range(30)}
    assert set(left) == {f"endless {number}" for number in range(30)}
    assert {line["error"]["code"] for line in left.values()} == {"batch_cancelled"}
    # What ran is stopped: the slots are free for another batch.
    assert alice.until(alice.submit(quick(1)))["status"] == "completed"


def test_j05_the_completion_window_is_kept_to(alice: BatchClient) -> None:
    batch = alice.submit(quick(20) + endless(30), window="5s")
    answered = alice.until(batch, lambda now: done(now) == 20)["request_counts"]["completed"]
    ended = alice.until(batch)
    assert ended["status"] == "expired"
    assert ended["expires_at"] == ended["created_at"] + 5
    assert 5 <= ended["expired_at"] - ended["created_at"] < 60  # running lines would take five minutes
    kept, left = alice.results(ended["output_file_id"]), alice.results(ended["error_file_id"])
    # A busy machine may not have done all the quick ones in time.
    assert len(kept) >= answered
    assert set(kept) <= {f"quick {number}" for number in range(20)}
    assert kept.keys() | left.keys() == {entry["custom_id"] for entry in quick(20) + endless(30)}
    assert ended["request_counts"] == {"total": 50, "completed": len(kept), "failed": len(left)}
    assert [line["error"] for line in left.values()] == len(left) * [
        {
            "code": "batch_expired",
            "message": "This request could not be executed before the completion window expired.",
        }
    ]


def test_j06_a_line_that_wants_a_stream(alice: BatchClient) -> None:
    ended = alice.until(alice.submit([saying("a", "x"), saying("b", "x", stream=True)]))
    assert ended["status"] == "failed"
    (error,) = ended["errors"]["data"]
    assert (error["line"], error["param"]) == (2, "body.stream")


def test_j06_everything_is_restarted_half_way(tmp_path: Path) -> None:
    # Few at once at first: it must not be over when it is looked at half way.
    settings = {"MODEL_ID": "scripted", "MAX_BATCH_SIZE": "2", "TGQ_BATCH_LEASE_SECONDS": "1"}
    lines = [saying(f"line {number}", f"answer {number}", step_ms=20) for number in range(200)]
    with LocalService(settings, batch_workers=1, directory=tmp_path, append_only=True) as service:
        assert service.redis is not None
        with BatchClient(service.url) as client:
            batch = client.submit(lines)
            half = client.until(batch, lambda now: done(now) >= 50)
            assert half["status"] == "in_progress"
            for part in (*service.web, *service.workers, *service.batch_workers):
                part.kill()
            service.redis.kill()
            for parts in (service.web, service.workers, service.batch_workers, service.urls):
                parts.clear()
            service.redis.start()
            service.add_worker({"MAX_BATCH_SIZE": "32"})
            service.add_batch_worker()
            service.add_web()
            service.wait_ready()
        with BatchClient(service.url) as client:
            ended = client.until(batch)
            assert (ended["status"], ended["request_counts"]["completed"]) == ("completed", 200)
            results = client.results(ended["output_file_id"])
    assert {name: content(line) for name, line in results.items()} == {f"line {n}": f"answer {n}" for n in range(200)}


def test_j08_live_requests_go_before_a_batch(alice: BatchClient) -> None:
    """The batch alone would fill every slot for minutes."""
    batch = alice.submit(endless(200))
    alice.until(batch, lambda now: now["status"] == "in_progress")
    for number in range(20):
        answer = alice.http.post("/chat/completions", json=saying("", f"live {number}")["body"])
        assert answer.json()["choices"][0]["message"]["content"] == f"live {number}"
    assert alice.get(batch)["status"] == "in_progress"
    alice.cancel(batch)
    assert alice.until(batch)["status"] == "cancelled"


def test_j09_a_model_nobody_serves(alice: BatchClient) -> None:
    ended = alice.until(alice.submit([saying(f"{number}", "x", model="gpt-9") for number in range(3)]))
    assert ended["status"] == "failed"
    errors = ended["errors"]["data"]
    assert [(error["code"], error["line"]) for error in errors] == [("model_not_found", line) for line in (1, 2, 3)]
    assert all("gpt-9" in error["message"] for error in errors)


def test_j10_another_key_sees_nothing(alice: BatchClient, bob: BatchClient) -> None:
    batch = alice.until(alice.submit(quick(1)))
    for file in (batch["input_file_id"], batch["output_file_id"]):
        assert alice.http.get(f"/files/{file}").status_code == 200
        for answer in (
            bob.http.get(f"/files/{file}"),
            bob.http.get(f"/files/{file}/content"),
            bob.http.delete(f"/files/{file}"),
        ):
            assert answer.status_code == 404
    for answer in (bob.http.get(f"/batches/{batch['id']}"), bob.http.post(f"/batches/{batch['id']}/cancel")):
        assert answer.status_code == 404
    request = {"input_file_id": batch["input_file_id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert bob.http.post("/batches", json=request).status_code == 404
    assert bob.http.get("/files").json()["data"] == bob.http.get("/batches").json()["data"] == []
    assert alice.http.get(f"/files/{batch['output_file_id']}").status_code == 200
