"""What the tests of the native routes share: scripts for the scripted model, answers that are checked, one more web node."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import httpx

from ops.local_service import LocalService, Part
from tests.acceptance.observation import Observer
from tests.contract.tgi import check_answer
from tests.event_streams import data_of

GENERATING = ("/", "/generate", "/generate_stream")
TIMEOUT = 120.0
IN_FLIGHT = "tgq_requests_in_flight"
Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of one line of `/metrics`."""


def script(text: str | None = None, **fields: Any) -> str:
    """A prompt that makes the scripted model say `text`; see `workers.engine.scripted_model` for the fields."""
    if text is not None:
        fields["text"] = text
    return f"<<script {json.dumps(fields, ensure_ascii=False)}>>"


def post(url: str, inputs: Any, *, headers: Mapping[str, str] | None = None, **fields: Any) -> httpx.Response:
    """Post a generate request and hold the answer, whatever it is, against both contracts.

    Args:
        url: address with the route's path.
        fields: `stream` goes beside `inputs`, all others into `parameters`; without any there are no `parameters`.
    """
    body: dict[str, Any] = {"inputs": inputs}
    if "stream" in fields:
        body["stream"] = fields.pop("stream")
    if fields:
        body["parameters"] = fields
    return checked(httpx.post(url, json=body, headers=headers, timeout=TIMEOUT))


def checked(response: httpx.Response) -> httpx.Response:
    check_answer(response)
    return response


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Events of a stream."""
    assert response.headers["content-type"] == "text/event-stream"
    return parse_events(response.text)


def parse_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(data) for data in data_of(text)]


def text_of(response: httpx.Response) -> str:
    """The generated text of an answer, whole or streamed."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"] == "text/event-stream":
        return str(events(response)[-1]["generated_text"])
    body = response.json()
    return str((body[0] if isinstance(body, list) else body)["generated_text"])


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer, a JSON body or the only event."""
    if response.headers["content-type"] == "text/event-stream":
        (event,) = events(response)
        return event
    body: dict[str, Any] = response.json()
    return body


def refused(response: httpx.Response, named: str) -> str:
    """A 422 for breaking a rule, naming `named`; returns the message."""
    assert response.status_code == 422, response.text
    error = error_of(response)
    assert error["error_type"] == "validation"
    message = str(error["error"])
    assert message.startswith("Input validation error: ")
    assert named in message
    return message


def samples(url: str) -> dict[Series, float]:
    """Every series of `/metrics`: (name, labels) -> value."""
    text = checked(httpx.get(f"{url}/metrics", timeout=TIMEOUT)).text
    # By hand: the parser of Prometheus' own library gives counters other names than they have.
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {_series(line): float(line.rpartition(" ")[2]) for line in lines}


def gauges(url: str) -> set[str]:
    """The names of `/metrics` that may fall."""
    text = checked(httpx.get(f"{url}/metrics", timeout=TIMEOUT)).text
    return set(re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE))


def _series(line: str) -> Series:
    name = re.match(r"[a-zA-Z_:][\w:]*", line)
    assert name, line
    return name[0], tuple(sorted(re.findall(r'(\w+)="([^"]*)"', line)))


def web_series(url: str) -> set[Series]:
    """The series a web node makes itself; those of the engines come with the workers' heartbeats."""
    return {series for series in samples(url) if not series[0].startswith("tgi_batch_")}


def value(series: Mapping[Series, float], name: str, **labels: str) -> float:
    return series.get((name, tuple(sorted(labels.items()))), 0.0)


def until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Poll until `condition` returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still waiting for {what} after {seconds:g} s"
        time.sleep(0.02)
    return found


def settled(service: LocalService) -> None:
    """Wait until no request is under way, so that what one test left does not show in the next."""

    def told_of_none() -> bool:
        series = samples(service.url)
        return not any(value(series, name) for name in ("tgi_batch_current_size", "tgi_queue_size", IN_FLIGHT))

    with Observer(service) as seen:
        # What the engines do is told with a heartbeat, which may be from before the last request.
        until(seen.idle, "the end of all requests")
    until(told_of_none, "the engine to be idle")


def until_free(service: LocalService) -> None:
    """Wait until no place of any web node is taken: each gives those of its answers back a moment after them."""
    with Observer(service) as seen:
        until(lambda: seen.permits() == 0, "all places to be free")


class Occupied:
    """Holds one place of a service whose model is scripted: a request that runs until the block ends."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(30)
        until(lambda: value(samples(self._url), IN_FLIGHT) == 0, "the place to be free")

    def _run(self) -> None:
        # The requests before, at any node, leave their places a moment after their answers.
        while not self._over.is_set() and not self._ran():
            time.sleep(0.02)

    def _ran(self) -> bool:
        body = {"inputs": script("slow ", repeat=1000, step_ms=50), "parameters": {"max_new_tokens": 1000}}
        with httpx.stream("POST", f"{self._url}/generate_stream", json=body, timeout=TIMEOUT) as response:
            if response.status_code == 429:
                return False
            for _ in response.iter_raw():
                self._begun.set()
                if self._over.is_set():
                    break
        return True


@contextmanager
def another_web_node(service: LocalService, settings: Mapping[str, str]) -> Iterator[tuple[str, Part]]:
    """One more web node of a running service, with settings of its own; yields its address and process."""
    with more_web_nodes(service, settings) as (node,):
        yield node


@contextmanager
def more_web_nodes(service: LocalService, *settings: Mapping[str, str]) -> Iterator[list[tuple[str, Part]]]:
    """Several, which start and stop at once."""
    nodes = []
    for own in settings:
        part = service.add_web(own)
        nodes.append((service.urls[-1], part))
    try:
        for url, part in nodes:
            until(partial(_answers, url, part), part.name, 120)
        yield nodes
    finally:
        for url, part in nodes:
            service.web.remove(part)
            service.urls.remove(url)
            part.terminate()
        for _, part in nodes:
            part.wait(30)


def _answers(url: str, part: Part) -> bool:
    assert part.alive, part.tail()
    try:
        return httpx.get(f"{url}/info", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def log_lines(part: Part, word: str) -> list[str]:
    return [line for line in part.log.read_text(errors="replace").splitlines() if re.search(re.escape(word), line)]
