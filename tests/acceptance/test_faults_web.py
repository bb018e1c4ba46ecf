"""Streams that are gone on with at another web node, and requests that are cancelled by id."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from common.keys import STREAM_KNOWN_SECONDS
from ops.local_service import LocalService
from tests.acceptance.clients import http_client, script
from tests.acceptance.observation import KEYS, Observer, until
from tests.event_streams import data_of

RESUME_SECONDS = 8
KNOWN_MS = STREAM_KNOWN_SECONDS * 1000
NATIVE = "/generate_stream"
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
OWN = {"authorization": "Bearer one-one-one"}
OTHER = {"authorization": "Bearer two-two-two"}
WORDS = script("word after word ", repeat=20, step_ms=25)
LONG = {"inputs": script("on and on ", repeat=300, step_ms=20), "parameters": {"max_new_tokens": 1000}}

DRAWN: dict[str, Any] = {"max_new_tokens": 100, "do_sample": True, "temperature": 5.0, "seed": 7}
SAMPLED = {"inputs": WORDS, "parameters": DRAWN}
SAMPLED_LONG = {"inputs": script("word ", repeat=1000, step_ms=25), "parameters": {**DRAWN, "max_new_tokens": 1000}}
"""To be left in the middle."""
SEVERAL = {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 80, "n": 2, "stream": True, "seed": 7}
SEVERAL |= {"stream_options": {"include_usage": True}, "logprobs": True, "temperature": 1.5}
PLAIN = {"prompt": WORDS, "max_tokens": 80, "stream": True, "temperature": 0}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(
        '[[keys]]\nname = "one"\nsecret = "one-one-one"\n\n[[keys]]\nname = "two"\nsecret = "two-two-two"\n'
    )
    settings = {
        "MODEL_ID": "scripted",
        "MAX_BATCH_SIZE": "4",
        "TGQ_API_KEYS_FILE": str(keys),
        "TGQ_RESUME_SECONDS": str(RESUME_SECONDS),
        "TGQ_HEARTBEAT_SECONDS": "0.25",
    }
    with LocalService(settings, web=2, workers=2) as running:
        yield running


@pytest.fixture
async def client(service: LocalService) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client() as client:
        client.headers.update(OWN)
        yield client


class Part:
    """The first events of a stream; closing its connection is losing it."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._chunks = response.aiter_raw()
        self._received = b""
        """More than was asked for, perhaps."""
        self.events = 0
        """That its client has heard."""

    async def hear(self, events: int) -> None:
        while self._received.count(b"\n\n") < events:
            self._received += await anext(self._chunks)
        self.events = events

    @property
    def raw(self) -> bytes:
        """What its client has heard."""
        return b"".join(event + b"\n\n" for event in self._received.split(b"\n\n")[: self.events])

    async def rest(self) -> bytes:
        """All, to the end."""
        while (chunk := await anext(self._chunks, None)) is not None:
            self._received += chunk
        return self._received


def resumable(name: str, last: int | None = None) -> dict[str, str]:
    return {"x-tgq-resume": "true", "x-request-id": name} | ({} if last is None else {"last-event-id": str(last)})


async def begin(client: httpx.AsyncClient, url: str, body: Any, headers: dict[str, str], events: int = 3) -> Part:
    request = client.build_request("POST", url, json=body, headers=headers)
    part = Part(await client.send(request, stream=True))
    assert part.response.status_code == 200, await part.response.aread()
    await part.hear(events)
    return part


def comparable(raw: bytes) -> list[str]:
    """But for the second in which it was made, and for which of its choices is ahead."""
    events = data_of(re.sub(rb'"created":[0-9]+', b'"created":0', raw).decode())
    return sorted(events, key=lambda data: re.findall(r'"choices":\[{"index":([0-9]+)', data))


def request_keys(seen: Observer, name: str) -> list[str]:
    return [key.decode() for key in seen.redis.scan_iter(f"{KEYS.prefix}:{name}*")]


async def cancel(client: httpx.AsyncClient, url: str, name: str, **options: Any) -> int:
    return (await client.delete(f"{url}/v1/requests/{name}", **options)).status_code


@pytest.mark.parametrize(("path", "body"), [(NATIVE, SAMPLED), (CHAT, SEVERAL), (TEXT, PLAIN)])
async def test_b08_b09_a_lost_stream_goes_on_at_another_node(
    service: LocalService, client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    here, there = (url + path for url in service.urls[:2])
    name = f"lost{path.replace('/', '-')}"
    undisturbed = (await client.post(here, json=body, headers={"x-request-id": name})).content
    part = await begin(client, here, body, resumable(name), 7)
    await part.response.aclose()
    # A connection on which nothing came leaves its client where it was.
    idle = await begin(client, here, body, resumable(name, part.events), 0)
    await idle.response.aclose()
    again = await begin(client, there, body, resumable(name, part.events), 5)
    await again.response.aclose()
    last = part.events + again.events
    rest = await client.post(here, json=body, headers=resumable(name, last))
    assert comparable(part.raw + again.raw + rest.content) == comparable(undisturbed)
    # The same cursor stays valid, and so does the begin.
    assert (await client.post(there, json=body, headers=resumable(name, last))).content == rest.content
    whole = await client.post(there, json=body, headers=resumable(name, 0))
    assert whole.content == part.raw + again.raw + rest.content
    data_of(whole.text)
    for url in (here, there):
        nothing = await client.post(url, json=body, headers=resumable(name, whole.content.count(b"\n\n")))
        assert (nothing.status_code, nothing.content) == (200, b"")
    with Observer(service) as seen:
        assert request_keys(seen, "stream")
        assert not {key for key in seen.lasting_keys() if b":stream" in key}


async def test_a_drawn_seed_is_kept(service: LocalService, client: httpx.AsyncClient) -> None:
    body = {"inputs": "Draw", "parameters": {"max_new_tokens": 60, "do_sample": True, "temperature": 50.0}}
    # However soon it is over, its client has heard no more than five events.
    part = await begin(client, service.urls[0] + NATIVE, body, resumable("drawn"), 5)
    await part.response.aclose()
    rest = await client.post(service.urls[1] + NATIVE, json=body, headers=resumable("drawn", part.events))
    final = json.loads(data_of(rest.text, first=part.events + 1)[-1])
    heard = [json.loads(data)["token"] for data in data_of((part.raw + rest.content).decode())]
    assert "".join(token["text"] for token in heard if not token["special"]) == final["generated_text"]
    whole = await client.post(service.urls[0] + NATIVE, json=body, headers=resumable("drawn", 0))
    assert whole.content == part.raw + rest.content


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_a_stream_outlives_its_web_node(service: LocalService, client: httpx.AsyncClient, end: str) -> None:
    undisturbed = (await client.post(service.urls[1] + NATIVE, json=SAMPLED)).content
    node = service.add_web({"GRACEFUL_TERMINATION_TIMEOUT": "0"})
    url = service.urls.pop()
    service.web.pop()
    try:
        await until(lambda: answers(client, url), 60, "the new node")
        part = await begin(client, url + NATIVE, SAMPLED, resumable(end), 9)
        getattr(node, end)()
        await part.response.aclose()
        headers = resumable(end, part.events)
        rest = await client.post(service.urls[1] + NATIVE, json=SAMPLED, headers=headers)
        assert part.raw + rest.content == undisturbed
    finally:
        node.kill()


async def test_a_draining_node_lets_its_stream_go(service: LocalService, client: httpx.AsyncClient) -> None:
    """Its client need not wait for the end of the node to go on elsewhere, and the node need not wait for the stream."""
    node = service.add_web()
    url = service.urls.pop()
    service.web.pop()
    try:
        await until(lambda: answers(client, url), 60, "the new node")
        part = await begin(client, url + NATIVE, SAMPLED_LONG, resumable("drained"), 5)
        node.terminate()
        await until(lambda: refuses(client, url), 15, "the drain")
        headers = resumable("drained", part.events)
        again = await begin(client, service.urls[1] + NATIVE, SAMPLED_LONG, headers, 20)
        *told, error = data_of((await part.rest()).decode())
        assert json.loads(error)["error_type"] == "taken_over"
        assert node.wait(30) == 0
        # What the node said on to nobody is said again.
        await again.hear(max(20, len(told)))
        said = data_of((part.raw + again.raw).decode())
        assert said[: len(told)] == told
        assert await cancel(client, service.urls[1], "drained") == 200
        await again.rest()
    finally:
        node.kill()


async def test_a_kept_stream_outlasts_a_redis_that_forgets_it(service: LocalService, client: httpx.AsyncClient) -> None:
    assert service.redis is not None
    here, there = (url + NATIVE for url in service.urls[:2])
    undisturbed = (await client.post(here, json=SAMPLED)).content
    part = await begin(client, here, SAMPLED, resumable("forgotten"), 5)
    heard = part.raw
    service.redis.kill()
    service.redis.start()
    assert await part.rest() == undisturbed
    await until(lambda: answers(client, service.urls[1]), 20, "Redis to be found again")
    rest = await client.post(there, json=SAMPLED, headers=resumable("forgotten", heard.count(b"\n\n")))
    assert heard + rest.content == undisturbed


async def refuses(client: httpx.AsyncClient, url: str) -> bool:
    return not await answers(client, url)


async def answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).status_code == 200
    except httpx.HTTPError:
        return False


async def test_of_two_clients_the_last_one_has_the_stream(service: LocalService, client: httpx.AsyncClient) -> None:
    here, there = (url + NATIVE for url in service.urls[:2])
    first = await begin(client, here, SAMPLED_LONG, resumable("two"), 4)
    second = await begin(client, there, SAMPLED_LONG, resumable("two", first.events), 1)
    heard = first.raw
    *told, error = data_of((await first.rest()).decode())
    assert json.loads(error)["error_type"] == "taken_over"
    # Past the place where the first one was cut off.
    await second.hear(len(told) + 10)
    assert data_of((heard + second.raw).decode())[: len(told)] == told
    assert await cancel(client, service.urls[0], "two") == 200
    await second.rest()


async def test_b09_what_is_not_there_is_not_gone_on_with(service: LocalService, client: httpx.AsyncClient) -> None:
    here, there = (url + NATIVE for url in service.urls[:2])
    cut = await begin(client, here, SAMPLED, {"x-request-id": "plain"})
    await cut.response.aclose()
    kept = await begin(client, here, SAMPLED, resumable("kept"))
    await kept.response.aclose()

    async def status(headers: dict[str, str], body: Any = SAMPLED) -> int:
        return (await client.post(there, json=body, headers=headers)).status_code

    assert await status(resumable("plain", 3)) == 404
    assert await status(resumable("nobody", 3)) == 404
    assert await status(resumable("kept", 3) | OTHER) == 404
    assert await status(resumable("kept", 3), SAMPLED | {"inputs": "Other"}) == 422
    assert await status(resumable("kept", 90_000)) == 404
    assert await status(resumable("kept") | {"last-event-id": "x"}) == 404
    assert await status({"x-tgq-resume": "maybe"}) == 422
    several = {"prompt": ["a", "b"], "stream": True}
    refused = await client.post(service.urls[0] + TEXT, json=several, headers={"x-tgq-resume": "true"})
    assert (refused.status_code, "one prompt" in refused.text) == (422, True)
    refused = await client.post(service.urls[0] + "/generate", json=SAMPLED, headers={"x-tgq-resume": "true"})
    assert (refused.status_code, "streams only" in refused.text) == (422, True)
    # None of this has disturbed the stream.
    assert await status(resumable("kept", 3)) == 200


async def test_b09_who_comes_too_late_is_told_so(service: LocalService, client: httpx.AsyncClient) -> None:
    with Observer(service) as seen:
        await seen.until_idle(20)
        part = await begin(client, service.urls[0] + NATIVE, LONG, resumable("gone"))
        await part.response.aclose()
        assert seen.permits() == 1
        await until(lambda: seen.permits() == 0, RESUME_SECONDS + 10, "the end of its time")
        await until(lambda: seen.running() == 0, 10, "idle engines")
    late = resumable("gone", part.events)
    again = await client.post(service.urls[1] + NATIVE, json=LONG, headers=late)
    assert (again.status_code, again.json()["error_type"]) == (410, "gone")
    chat = await client.post(service.urls[0] + CHAT, json=SEVERAL, headers=late)
    assert (chat.status_code, chat.json()["error"]["code"]) == (410, "gone")
    # To everybody else it never was.
    other = await client.post(service.urls[1] + NATIVE, json=LONG, headers=late | OTHER)
    assert other.status_code == 404
    with Observer(service) as seen:
        marks = request_keys(seen, "stream_known")
        assert marks
        assert {seen.redis.get(mark) for mark in marks} == {b""}
        assert all(0 < seen.redis.pttl(mark) <= KNOWN_MS + RESUME_SECONDS * 1000 for mark in marks)


@pytest.mark.parametrize(("headers", "later"), [({"x-request-id": "stop"}, 404), (resumable("stop"), 410)])
async def test_b04_a_stream_is_cancelled_at_another_node(
    service: LocalService, client: httpx.AsyncClient, headers: dict[str, str], later: int
) -> None:
    here, there = service.urls[:2]
    part = await begin(client, here + NATIVE, LONG, headers)
    assert await cancel(client, there, "stop", headers=OTHER) == 404
    assert await cancel(client, there, "stop") == 200
    *tokens, error = data_of((await part.rest()).decode())
    assert len(tokens) >= 3
    assert json.loads(error) == {"error": "The request was cancelled", "error_type": "cancelled"}
    assert await cancel(client, there, "stop") == 404
    with Observer(service) as seen:
        await until(lambda: seen.running() == 0 and seen.permits() == 0, 10, "idle engines")
    assert (await client.post(there + NATIVE, json=LONG, headers=resumable("stop", 1))).status_code == later


async def test_however_quickly_a_node_lets_go_the_caller_hears_that_it_did(
    service: LocalService, client: httpx.AsyncClient
) -> None:
    here, there = service.urls[:2]
    found = []
    with Observer(service) as seen:
        for number in range(25):
            part = await begin(client, here + NATIVE, LONG, {"x-request-id": f"quick-{number}"}, 1)
            found.append(await cancel(client, there, f"quick-{number}"))
            await part.rest()
            # The node has nothing else: its lease goes with this request.
            await until(lambda: seen.permits() == 0, 10, "the permit")
    assert found == [200] * 25


async def test_a_chat_is_cancelled_in_its_dialect(service: LocalService, client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": LONG["inputs"]}], "max_tokens": 900, "stream": True}
    part = await begin(client, service.urls[0] + CHAT, body, {"x-request-id": "chat"})
    assert await cancel(client, service.urls[0], "chat") == 200
    error = json.loads(data_of((await part.rest()).decode())[-1])["error"]
    assert (error["code"], error["message"]) == ("cancelled", "The request was cancelled")


async def test_waiting_and_whole_answers_are_cancelled(service: LocalService, client: httpx.AsyncClient) -> None:
    here, there = service.urls[:2]
    with Observer(service) as seen:
        running = [asyncio.create_task(post_whole(client, here, "twin")) for _ in range(8)]
        await until(lambda: seen.running() == 8, 15, "full engines")
        queued = asyncio.create_task(post_whole(client, here, "queued"))
        await until(lambda: seen.queued() == 1, 10, "the queue")
        assert await cancel(client, there, "queued") == 200
        assert (await queued).status_code == 499
        await until(lambda: seen.queued() == 0, 10, "an empty queue")
        # Two requests of one id are cancelled together, and so are eight.
        assert await cancel(client, there, "twin") == 200
        answers = await asyncio.gather(*running)
        assert {(answer.status_code, answer.json()["error_type"]) for answer in answers} == {(499, "cancelled")}
        await until(lambda: seen.running() == 0 and seen.permits() == 0, 10, "idle engines")
    assert await cancel(client, there, "twin") == 404


async def post_whole(client: httpx.AsyncClient, url: str, name: str) -> httpx.Response:
    return await client.post(f"{url}/generate", json=LONG, headers={"x-request-id": name})


async def test_a_stream_whose_client_is_gone_is_cancelled(service: LocalService, client: httpx.AsyncClient) -> None:
    here, there = service.urls[:2]
    part = await begin(client, here + NATIVE, LONG, resumable("left"))
    await part.response.aclose()
    assert await cancel(client, there, "left") == 200
    with Observer(service) as seen:
        await until(lambda: seen.running() == 0 and seen.permits() == 0, 5, "idle engines")
    assert (await client.post(there + NATIVE, json=LONG, headers=resumable("left", 3))).status_code == 410
    assert await cancel(client, here, "left") == 404
