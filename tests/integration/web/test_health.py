"""What probes are told, in every state of the service."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from common.keys import WORKER_RECORD_SECONDS, Keys
from common.redis_clients import sync_redis
from common.wire import WIRE_VERSION, WorkerRecord, WorkerState, encode_json
from ops.embedded_redis import EmbeddedRedis
from tests.integration.client.fake_worker import settings_for
from tests.integration.web.serving import WebNode, eventually, saying, web_node, worker


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path_factory.mktemp("health")) as server:
        yield server


@pytest.fixture
def node(node_folder: Path, own_redis: EmbeddedRedis) -> Iterator[WebNode]:
    """A node that has seen no worker."""
    with web_node(node_folder / "health", own_redis.url, redis_timeout=0.5, redis_connect_timeout=0.5) as node:
        yield node


@pytest.fixture
async def http(node: WebNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
        yield http


def beat(url: str, state: WorkerState, progress: float) -> None:
    """One heartbeat of a worker that never beats again."""
    keys = Keys()
    record = WorkerRecord(
        version=WIRE_VERSION,
        id=f"worker-{state}",
        pid=1,
        engine_pid=None,
        host="test",
        model="scripted",
        state=state,
        started_at=time.time(),
        progress=progress,
    )
    with sync_redis(settings_for(url)) as client:
        client.zadd(keys.workers, {record.id: client.time()[0] + 5})
        client.set(keys.worker(record.id), encode_json(record), ex=WORKER_RECORD_SECONDS)


async def statuses(http: httpx.AsyncClient) -> dict[str, int]:
    return {name: (await http.get(f"/health/{name}")).status_code for name in ("live", "ready", "startup")}


async def readiness(http: httpx.AsyncClient) -> str:
    response = await http.get("/health/ready")
    if response.status_code == 200:
        assert response.content == b""
        return "ready"
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    told = response.json()
    assert told["error_type"] == "healthcheck"
    return str(told["error"])


async def test_probes_tell_how_far_the_service_is(http: httpx.AsyncClient, own_redis: EmbeddedRedis) -> None:
    """G08: alive from the beginning, ready only when a worker has the model, with the progress until then."""
    assert await statuses(http) == {"live": 200, "ready": 503, "startup": 503}
    assert await readiness(http) == "not ready: no worker has the model"
    assert (await http.get("/health/startup")).json() == {"started": False, "progress": 0.0, "workers": []}

    beat(own_redis.url, "starting", 0.4)

    async def loading() -> bool:
        return await readiness(http) == "not ready: the model is being loaded (40%)"

    await eventually(loading)
    startup = await http.get("/health/startup")
    assert startup.status_code == 503
    assert startup.json() == {
        "started": False,
        "progress": 0.4,
        "workers": [{"state": "starting", "progress": 0.4}],
    }

    refused = await http.post("/generate", json={"inputs": "x"})
    assert refused.status_code == 503
    assert refused.json() == {"error": "The model `scripted` is being loaded", "error_type": "unavailable"}
    assert int(refused.headers["retry-after"]) >= 1

    async def ready() -> bool:
        return await statuses(http) == {"live": 200, "ready": 200, "startup": 200}

    async with worker(own_redis.url, saying("ok"), "scripted"):
        await eventually(ready)
        assert (await http.get("/health/startup")).json()["started"] is True
        assert (await http.post("/generate", json={"inputs": "x"})).status_code == 200
        assert (await http.head("/health/ready")).status_code == 200

    async def gone() -> bool:
        return await readiness(http) != "ready"

    await eventually(gone)  # what has started stays so: a probe of the start is not one of the workers
    assert await statuses(http) == {"live": 200, "ready": 503, "startup": 200}


async def test_without_redis_it_lives_and_is_not_ready(http: httpx.AsyncClient, own_redis: EmbeddedRedis) -> None:
    async with worker(own_redis.url, saying("ok")):

        async def ready() -> bool:
            return await readiness(http) == "ready"

        await eventually(ready)
        own_redis.freeze()
        try:

            async def away() -> bool:
                return await readiness(http) == "not ready: Redis does not answer"

            await eventually(away)
            for path, status in (("live", 200), ("ready", 503), ("startup", 200)):
                began = time.monotonic()
                response = await http.get(f"/health/{path}")
                assert time.monotonic() - began < 10.0, path  # a client of Redis by default waits 25 s
                assert path == "startup" or response.status_code == status, path
        finally:
            own_redis.thaw()
        await eventually(ready)


async def test_a_full_service_is_healthy(client: httpx.AsyncClient, redis_url: str) -> None:
    """G07: load has no part in it."""
    async with worker(redis_url, saying("ok")) as fake:
        fake.taking = False
        requests = [client.build_request("POST", "/generate_stream", json={"inputs": "x"}) for _ in range(8)]
        responses = [await client.send(request, stream=True) for request in requests]
        refused = await client.post("/generate", json={"inputs": "x"})
        assert refused.status_code == 429

        async def healthy() -> bool:
            return await statuses(client) == {"live": 200, "ready": 200, "startup": 200}

        await eventually(healthy)
        for response in responses:
            await response.aclose()
